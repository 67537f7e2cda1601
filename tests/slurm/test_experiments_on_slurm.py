"""The ready-made experiments climb on a real Slurm, as small as CPUs and a few seconds ask for.

But for digits, which is the shipped one (test_ladder_on_slurm.py).

Of each experiment everything stays but scales, steps, batch and thresholds: script, arguments, variants,
mode, scaling rules, and the preparation of data where it needs no internet. The site has Gloo in place of NCCL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from climbs import Climb, climb
from cluster import Cluster
from cluster_config import Spec
from conftest import running
from project_copy import ANY_EFFICIENCY, ROOT, copy_project
from small_datasets import write_cifar, write_mnist

pytestmark = pytest.mark.slurm

TIMEOUT_S = 500
STEPS = 6
MEASURE = {"warmup_steps": 1, "min_steps": 4, "max_steps": STEPS, "max_seconds": None, "plain_baseline": False}
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
class Climbed:
    """An experiment that was climbed."""

    climb: Climb
    results: Path
    scale: str

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


def scaled_down(name: str, small: Small) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / f"config/experiments/{name}.yaml").read_text())
    upper = "stage2" if small.scale.startswith("1x") else "stage3"
    config["stages"] = {
        "stage1": {"scales": ["1x1"], "runtime": 5, "gate": {}},
        upper: {"scales": [small.scale], "runtime": 5, "gate": GATE},
    }
    if name == "ethernet6-mlp":  # the default is nccl
        config["variants"]["default"] = config["variants"].pop("gloo")
    for variant in small.without:
        del config["variants"][variant]
    config["workload"] |= small.workload
    if small.batch_per_gpu is not None:
        config["workload"]["batch_per_gpu"] = small.batch_per_gpu
    return {**config, "measure": MEASURE, "repeats": 1}


def start(cluster: Cluster, path: Path, name: str) -> Climb:
    small = SMALL[name]
    checkout = copy_project(path, cluster)
    (path / "probe").mkdir()
    (path / "probe/sitecustomize.py").write_text(PROBE)
    (path / "small_cifar.py").write_text(SMALL_CIFAR)
    if name == "enccs-mnist":
        write_mnist(path / "data/mnist", train=60_000, test=10_000)  # as many as there are: less, and they are fetched
    if name == "olivia-cifar":
        write_cifar(path / "data/cifar100", train=400)
    site = {**SITE, "launcher": small.launcher, "software": {"setup": f"export PYTHONPATH={path}/probe"}}
    (path / "config/sites/test.yaml").write_text(yaml.safe_dump(site))
    experiment = f"config/experiments/{name}.yaml"
    (path / experiment).write_text(yaml.safe_dump(scaled_down(name, small)))
    return climb(checkout, "--configfile", experiment, "--config", "cluster=config/sites/test.yaml")


@pytest.fixture(scope="module")
def all_climbed(tmp_path_factory: pytest.TempPathFactory, no_orphans: None) -> Iterator[dict[str, Climbed]]:
    """The experiments side by side: most of each is Python starting."""
    with running(Spec(nodes=6, gpus=8, cpus=8)) as cluster:
        climbs = {name: start(cluster, tmp_path_factory.mktemp(name), name) for name in SMALL}
        for each in climbs.values():
            each.end(TIMEOUT_S)
        yield {
            name: Climbed(each, each.checkout.path / scaled_down(name, SMALL[name])["results"], SMALL[name].scale)
            for name, each in climbs.items()
        }


@pytest.mark.parametrize("name", SMALL)
def test_every_gate_opens_on_good_runs(all_climbed: dict[str, Climbed], name: str) -> None:
    climbed = all_climbed[name]
    assert climbed.climb.process.returncode == 0, climbed.climb.text
    upper = "stage2" if climbed.scale.startswith("1x") else "stage3"
    assert sorted(file.name for file in (climbed.results / "gates").iterdir()) == ["stage1.json", f"{upper}.json"]
    assert (climbed.results / "report/index.html").exists()
    records = list(climbed.records())
    assert {record["status"] for record in records} == {"ok"}
    launched = [record for record in records if record["spec"]["launcher"] != "python"]
    assert {record["world"]["backend"] for record in launched} == {"gloo"}
    assert {rank["ended_by"] for record in records for rank in record["ranks"]} == {"max_steps"}


def test_enccs_exercises_strong_scaling_torchrun_and_srun_and_nccl_algo(all_climbed: dict[str, Climbed]) -> None:
    """NCCL_ALGO reaches the ranks; what it does takes NCCL, and GPUs."""
    climbed = all_climbed["enccs-mnist"]
    assert climbed.samples() == {"1x1": {16 * STEPS}, "1x2": {16 * STEPS}}
    assert {spec["batch_per_gpu"] for (_, scale), spec in climbed.specs().items() if scale == "1x2"} == {8}
    for scale in ("1x1", "1x2"):
        seen = {variant: climbed.seen(variant, scale) for variant in ("default", "srun", "tree")}
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


def test_olivia_weak_scaling_in_two_precisions(all_climbed: dict[str, Climbed]) -> None:
    climbed = all_climbed["olivia-cifar"]
    assert climbed.samples() == {"1x1": {4 * STEPS}, "2x1": {2 * 4 * STEPS}}
    autocast = {record["spec"]["variant"]: record["fingerprint"]["autocast_dtype"] for record in climbed.records()}
    assert autocast == {"default": "bfloat16", "fp32": None}
    asked = {scale: spec["args"] for (variant, scale), spec in climbed.specs().items() if variant == "default"}
    sizes = {scale: args[args.index("--batch-size") + 1] for scale, args in asked.items()}
    assert sizes == {"1x1": "4", "2x1": "8"}


def test_vega_resnet_50_on_whole_images(all_climbed: dict[str, Climbed]) -> None:
    climbed = all_climbed["vega-resnet50"]
    assert climbed.samples() == {"1x1": {STEPS}, "1x2": {2 * STEPS}}
    for record in climbed.records():
        assert {rank["parameters"]["count"] for rank in record["ranks"]} == {25_557_032}
        assert record["fingerprint"]["autocast_dtype"] == "bfloat16"


def test_ethernet6_on_several_nodes_with_gloo_for_nccl_needs_gpus(all_climbed: dict[str, Climbed]) -> None:
    climbed = all_climbed["ethernet6-mlp"]
    samples = {}
    for record in climbed.records():
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
