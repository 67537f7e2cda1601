"""The ready-made experiments on a real Slurm, as small as CPUs and a few seconds ask for.

But for digits, which is the shipped one (test_ladder_on_slurm.py). What Snakemake adds is not repeated here: that one
and test_laptop.py climb with it.

Of each experiment everything stays but scales, steps, batch and thresholds: script, arguments, variants, mode and
scaling rules. The site has Gloo in place of NCCL. The scales of an experiment run in one allocation, each before its
gate.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import Cluster
from cluster_config import Spec
from conftest import running
from project_copy import ANY_EFFICIENCY, ROOT, copy_project
from scales import salloc
from small_datasets import write_cifar, write_mnist

pytestmark = pytest.mark.slurm

STEPS = 4
MEASURE = {"warmup_steps": 1, "min_steps": 2, "max_steps": STEPS, "max_seconds": None, "plain_baseline": False}
GATE = {
    "min_efficiency": 0.0001,
    "max_efficiency": ANY_EFFICIENCY,
}  # cores that all the ranks share say nothing of how a program scales

# A GPU of the site is a core and what Slurm can allocate: a device file.
SITE = {
    "site": "test",
    "slurm": {"partition": "gpu"},
    "node": {"gpus": 2, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": 4000},
    "launcher": "srun",
}

# Keeps what each rank sees beside its run.json; sitecustomize is imported by every Python that starts.
PROBE = """
import json, os, pathlib
if "RANK" in os.environ and "DDP_LADDER_RUN" in os.environ:
    seen = pathlib.Path(os.environ["DDP_LADDER_RUN"]).with_name(f"seen{os.environ['RANK']}.json")
    seen.write_text(json.dumps(dict(os.environ)))
"""

# torchvision knows the checksums of the published files, and would refuse the small ones.
SMALL_CIFAR = f"""
import runpy, sys
from pathlib import Path
sys.path.append({str(ROOT / "tests")!r})
from small_datasets import accept_cifar
accept_cifar(Path("data/cifar100"))
script = "workflow/workloads/cifar.py"
sys.path.insert(0, str(Path(script).parent.resolve()))
runpy.run_path(script, run_name="__main__")
"""


@dataclass(frozen=True)
class Small:
    """How an experiment is scaled down. scale: the only one besides 1x1; batch_per_gpu: None leaves it.

    without: variants that another one differs from in nothing but a value.
    """

    scale: str
    batch_per_gpu: int | None = None
    launcher: str = "srun"  # the site's: Python starts once for each rank, with torchrun once more for each node
    workload: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


SMALL = {
    "enccs-mnist": Small("1x2", batch_per_gpu=16, launcher="torchrun", without=("ring",)),
    "olivia-cifar": Small(
        "2x1", batch_per_gpu=4, workload={"script": "small_cifar.py", "prepare": None, "data_dir": "data/cifar100"}
    ),
    "vega-resnet50": Small("1x2", batch_per_gpu=1),
    "ethernet6-mlp": Small("3x1"),
}


@dataclass(frozen=True)
class Ran:
    """An experiment whose scales have run and were judged. said: the output."""

    results: Path
    scale: str
    said: str

    def records(self) -> Iterator[dict[str, Any]]:
        for file in sorted(self.results.glob("runs/*/*/*/r*/record.json")):
            yield json.loads(file.read_text())

    def specs(self) -> dict[tuple[str, str], dict[str, Any]]:
        """What was run, by variant and scale."""
        specs = [record["spec"] for record in self.records()]
        return {(spec["variant"], f"{spec['nodes']}x{spec['gpus_per_node']}"): spec for spec in specs}

    def samples(self) -> dict[str, set[int]]:
        """Samples of all ranks together, by scale."""
        found: dict[str, set[int]] = {}
        for record in self.records():
            scale = f"{record['spec']['nodes']}x{record['spec']['gpus_per_node']}"
            found.setdefault(scale, set()).add(sum(rank["samples"] for rank in record["ranks"]))
        return found

    def seen(self, variant: str, scale: str) -> list[dict[str, str]]:
        """The environment of each rank, as the rank itself saw it."""
        files = sorted(self.results.glob(f"runs/{variant}/*/{scale}/r1/seen*.json"))
        return [json.loads(file.read_text()) for file in files]


def upper_stage(scale: str) -> str:
    return "stage2" if scale.startswith("1x") else "stage3"


def scaled_down(name: str, small: Small) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / f"config/experiments/{name}.yaml").read_text())
    config["stages"] = {
        "stage1": {"scales": ["1x1"], "runtime": 10, "gate": {}},
        upper_stage(small.scale): {"scales": [small.scale], "runtime": 10, "gate": GATE},
    }
    if name == "ethernet6-mlp":  # the default is nccl
        config["variants"]["default"] = config["variants"].pop("gloo")
    for variant in small.without:
        del config["variants"][variant]
    config["workload"] |= small.workload
    if small.batch_per_gpu is not None:
        config["workload"]["batch_per_gpu"] = small.batch_per_gpu
    return {**config, "measure": MEASURE, "repeats": 1, "preflight": {"enabled": False}}


def run(cluster: Cluster, path: Path, name: str) -> Ran:
    """Run the scales of an experiment in one allocation, and judge them."""
    small = SMALL[name]
    checkout = copy_project(path)
    (path / "probe").mkdir()
    (path / "probe/sitecustomize.py").write_text(PROBE)
    (path / "small_cifar.py").write_text(SMALL_CIFAR)
    if name == "enccs-mnist":
        write_mnist(path / "data/mnist", train=640, test=64)
    if name == "olivia-cifar":
        write_cifar(path / "data/cifar100", train=400)
    site = {**SITE, "launcher": small.launcher, "software": {"setup": f"export PYTHONPATH={path}/probe"}}
    (path / "config/cluster.yaml").write_text(yaml.safe_dump(site))
    config = scaled_down(name, small)
    (path / "config/config.yaml").write_text(yaml.safe_dump(config))
    plan = f"{config['results']}/plan.json"
    lines = [
        ["plan.py", "--out", plan],
        ["run_scale.py", "--plan", plan, "--scale", "1x1"],
        ["gate.py", "--plan", plan, "--stage", "stage1"],
        ["run_scale.py", "--plan", plan, "--scale", small.scale],
        ["gate.py", "--plan", plan, "--stage", upper_stage(small.scale)],
    ]
    script = " && ".join(shlex.join([sys.executable, f"workflow/scripts/{file}", *rest]) for file, *rest in lines)
    options = ["--ntasks-per-node=1", "--cpus-per-task=2", "--mem=4000", "--gres=gpu:2"]
    said = salloc(cluster, checkout, [f"--nodes={small.scale.partition('x')[0]}", *options], ["sh", "-c", script])
    return Ran(path / config["results"], small.scale, said)


@pytest.fixture(scope="module")
def all_ran(tmp_path_factory: pytest.TempPathFactory, no_orphans: None) -> Iterator[dict[str, Ran]]:
    """The experiments side by side: most of each is Python starting."""
    paths = {name: tmp_path_factory.mktemp(name) for name in SMALL}
    with running(Spec(nodes=6, gpus=8, cpus=8)) as cluster, ThreadPoolExecutor(len(SMALL)) as pool:
        started = {name: pool.submit(run, cluster, path, name) for name, path in paths.items()}
        yield {name: each.result() for name, each in started.items()}


@pytest.mark.parametrize("name", SMALL)
def test_every_gate_opens_on_good_runs(all_ran: dict[str, Ran], name: str) -> None:
    ran = all_ran[name]
    gates = sorted(file.name for file in (ran.results / "gates").iterdir())
    assert gates == ["stage1.json", f"{upper_stage(ran.scale)}.json"], ran.said
    records = list(ran.records())
    assert {record["status"] for record in records} == {"ok"}
    launched = [record for record in records if record["spec"]["launcher"] != "python"]
    assert {record["world"]["backend"] for record in launched} == {"gloo"}
    assert {rank["ended_by"] for record in records for rank in record["ranks"]} == {"max_steps"}


def test_enccs_exercises_strong_scaling_torchrun_and_srun_and_nccl_algo(all_ran: dict[str, Ran]) -> None:
    """NCCL_ALGO reaches the ranks; what it does takes NCCL, and GPUs."""
    ran = all_ran["enccs-mnist"]
    assert ran.samples() == {"1x1": {16 * STEPS}, "1x2": {16 * STEPS}}
    assert {spec["batch_per_gpu"] for (_, scale), spec in ran.specs().items() if scale == "1x2"} == {8}
    for scale in ("1x1", "1x2"):
        seen = {variant: ran.seen(variant, scale) for variant in ("default", "srun", "tree")}
        assert {len(ranks) for ranks in seen.values()} == {int(scale[-1])}
        assert {
            variant: {("TORCHELASTIC_RUN_ID" in env, env.get("NCCL_ALGO")) for env in ranks}
            for variant, ranks in seen.items()
        } == {
            "default": {(True, None)},
            "srun": {(False, None)},
            "tree": {(True, "allreduce:tree;broadcast:ring,tree")},
        }
        # Bonus exercise 2: the same threads, whoever starts the processes.
        assert len({env["OMP_NUM_THREADS"] for ranks in seen.values() for env in ranks}) == 1


def test_olivia_weak_scaling_in_two_precisions(all_ran: dict[str, Ran]) -> None:
    ran = all_ran["olivia-cifar"]
    assert ran.samples() == {"1x1": {4 * STEPS}, "2x1": {2 * 4 * STEPS}}
    autocast = {record["spec"]["variant"]: record["fingerprint"]["autocast_dtype"] for record in ran.records()}
    assert autocast == {"default": "bfloat16", "fp32": None}
    asked = {scale: spec["args"] for (variant, scale), spec in ran.specs().items() if variant == "default"}
    sizes = {scale: args[args.index("--batch-size") + 1] for scale, args in asked.items()}
    assert sizes == {"1x1": "4", "2x1": "8"}


def test_vega_resnet_50_on_whole_images(all_ran: dict[str, Ran]) -> None:
    ran = all_ran["vega-resnet50"]
    assert ran.samples() == {"1x1": {STEPS}, "1x2": {2 * STEPS}}
    for record in ran.records():
        assert {rank["parameters"]["count"] for rank in record["ranks"]} == {25_557_032}
        assert record["fingerprint"]["autocast_dtype"] == "bfloat16"


def test_ethernet6_on_several_nodes_with_gloo_for_nccl_needs_gpus(all_ran: dict[str, Ran]) -> None:
    ran = all_ran["ethernet6-mlp"]
    samples = {}
    for record in ran.records():
        spec = record["spec"]
        assert len(record["world"]["hosts"]) == spec["nodes"]
        assert spec["args"][spec["args"].index("--backend") + 1] == "gloo"
        samples[spec["variant"], spec["nodes"]] = sum(rank["samples"] for rank in record["ranks"])
    # Four batches per step where they are accumulated.
    assert samples == {
        ("default", 1): 64 * STEPS,
        ("default", 3): 3 * 64 * STEPS,
        ("accumulate", 1): 4 * 64 * STEPS,
        ("accumulate", 3): 3 * 4 * 64 * STEPS,
    }
