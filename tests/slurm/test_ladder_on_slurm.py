"""What users type, on real Slurms: the whole ladder with the shipped workload, and what it asks Slurm for."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import Cluster
from cluster_config import ACCOUNT
from ddp_ladder.accounting.jobs import read_rows
from project_copy import ANY_EFFICIENCY, NO_TORCH, Checkout, copy_project

pytestmark = pytest.mark.slurm

SMALL = ("1x1", "1x2", "2x2")
LARGE = (*SMALL, "6x1")


@dataclass(frozen=True)
class Climbed:
    """A ladder that was climbed, on the cluster it was climbed on."""

    cluster: Cluster
    checkout: Checkout
    done: subprocess.CompletedProcess[str]

    def run_file(self, scale: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.directory(scale) / "run.json").read_text())
        return data

    def directory(self, scale: str) -> Path:
        return self.checkout.results / "runs/default/weak" / scale / "r1"

    def job(self, scale: str) -> int:
        return int(self.checkout.record(f"default/weak/{scale}/r1")["job"]["id"])


def climb(cluster: Cluster, path: Path, stages: Mapping[str, Any], site: Mapping[str, Any], **changes: Any) -> Climbed:
    """Climb with the shipped experiment and ``changes`` of it, each measurement once and few steps of it."""
    checkout = copy_project(path, cluster)
    file = checkout.path / "config/config.yaml"
    config = yaml.safe_load(file.read_text())
    measure = {"warmup_steps": 1, "min_steps": 4, "max_steps": 10, "plain_baseline": False}
    stages = {name: {**stage, "gate": {"max_efficiency": ANY_EFFICIENCY}} for name, stage in stages.items()}
    ours = {"stages": stages, "repeats": 1, "measure": measure, "preflight": {"enabled": False}}
    file.write_text(yaml.safe_dump({**config, **ours, **changes}))
    (checkout.path / "config/cluster.yaml").write_text(yaml.safe_dump(site))
    (checkout.path / "program.py").write_text(NO_TORCH)
    return Climbed(cluster, checkout, checkout.snakemake("--profile", "profiles/slurm", timeout_s=500))


@pytest.fixture(scope="module")
def small(cluster_without_accounting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    """Without slurmdbd."""
    stages = {
        "stage1": {"scales": ["1x1"], "runtime": 5},
        "stage2": {"scales": ["1x2"], "runtime": 5},
        "stage3": {"scales": ["2x2"], "runtime": 5},
    }
    site = {
        "site": "test",
        "slurm": {"partition": "gpu", "extra": ["--hint=nomultithread"]},
        "node": {"gpus": 2, "device": "cpu", "gres": "gpu", "cpus": 4, "memory_mb": 8000},
    }
    return climb(cluster_without_accounting, tmp_path_factory.mktemp("small"), stages, site)


@pytest.fixture(scope="module")
def large(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    """With slurmdbd; a stage with a partition and options of its own; no training, which the other one has."""
    stages = {
        "stage1": {"scales": ["1x1"], "runtime": 5},
        "stage2": {
            "scales": ["1x2"],
            "runtime": 6,
            "slurm": {"partition": "debug", "nodelist": "node2", "extra": ["--nice=7"]},
        },
        "stage3": {"scales": ["2x2", "6x1"], "runtime": 7},
    }
    site = {
        "site": "test",
        "slurm": {"account": ACCOUNT, "partition": "gpu", "qos": "normal", "extra": ["--mail-type=NONE"]},
        "node": {"gpus": 4, "device": "cpu", "gres": "gpu", "cpus": 8, "memory_mb": 12000},
        "launcher": "srun",  # torchrun, which imports torch on every node, is the other one's
    }
    workload = {"script": "program.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": 16}
    return climb(cluster, tmp_path_factory.mktemp("large"), stages, site, workload=workload)


@pytest.fixture(scope="module", params=["without slurmdbd", "with slurmdbd"])
def climbed(request: pytest.FixtureRequest) -> Climbed:
    found: Climbed = request.getfixturevalue("small" if request.param == "without slurmdbd" else "large")
    return found


def test_climbs_through_all_stages(climbed: Climbed) -> None:
    done = climbed.done.stdout
    assert climbed.done.returncode == 0, done
    assert re.findall(r"^gate (\w+): open", done, re.MULTILINE) == ["stage1", "stage2", "stage3"]
    assert (climbed.checkout.results / "report/index.html").exists()


def test_tells_what_its_jobs_do(climbed: Climbed) -> None:
    job = climbed.job("1x1")
    own = [line for line in climbed.done.stdout.splitlines() if line.startswith("stage1 1x1")]
    first = next(line for line in own if f"job {job}" in line)
    assert first.partition(";")[0] == f"stage1 1x1: job {job} submitted"
    assert re.fullmatch(rf"stage1 1x1: job {job} runs on node\d", next(line for line in own if "runs on" in line))
    assert "stage1 1x1 [1/1] default/weak/r1: started" in own
    assert any(re.search(r"r1: [\d,.]+ samples/s, \d+ steps measured", line) for line in own)
    assert re.fullmatch(rf"stage1 1x1: job {job} ended COMPLETED on node\d, after .*", own[-1])
    assert "guess" not in climbed.done.stdout.lower()


@pytest.mark.parametrize("scale", SMALL)
def test_accounting_agrees_with_slurm_and_the_records(climbed: Climbed, scale: str) -> None:
    nodes, gpus = map(int, scale.split("x"))
    (row,) = (row for row in read_rows(climbed.checkout.results) if row.scale == scale)
    asked = asked_for(climbed, scale)
    assert row.job_id == str(climbed.job(scale))
    assert (row.nodes, row.gpus, row.cpus) == (nodes, nodes * gpus, nodes * 2 * gpus)
    assert row.memory_asked_mb_per_node == int(asked["MinMemoryNode"].rstrip("M"))
    hours, minutes, seconds = map(int, asked["RunTime"].split(":"))
    run_time_s = 3600 * hours + 60 * minutes + seconds
    if climbed.cluster.spec.accounting:
        assert row.elapsed_s == pytest.approx(run_time_s, abs=1)
    else:  # the job's own times lack the start of its Snakemake
        assert row.elapsed_s <= run_time_s + 1
    # The run of the record is a part of its job, and so are its own parts.
    ended = json.loads((climbed.directory(scale) / "ended.json").read_text())
    wall_s = ended["ended_at_s"] - ended["started_at_s"]
    assert wall_s < row.elapsed_s
    assert row.startup_s + row.training_s == pytest.approx(wall_s, abs=0.1)
    assert row.preflight_s + wall_s + row.other_s == pytest.approx(row.elapsed_s, abs=2)
    assert row.training_s > 0
    assert (row.runs_planned, row.runs_measured, row.runs_ok) == (1, 1, 1)
    if climbed.cluster.spec.accounting:
        assert (row.source, row.state, row.exit_code) == ("sacct", "COMPLETED", asked["ExitCode"])
        assert row.node_list == asked["NodeList"]
        assert row.cpu_s
    else:
        assert (row.source, row.state) == ("none", "ENDED")
    assert "results/accounting.csv" in climbed.done.stdout


@pytest.mark.parametrize("scale", SMALL)
def test_every_run_is_of_its_slurm_job_and_its_nodes(climbed: Climbed, scale: str) -> None:
    record = climbed.checkout.record(f"default/weak/{scale}/r1")
    assert record["status"] == "ok"
    assert len(record["world"]["hosts"]) == int(scale[0])
    others = [climbed.job(other) for other in SMALL if other != scale]
    assert int(record["job"]["id"]) not in others


def test_nodes_meet_at_an_address_that_both_reach(climbed: Climbed) -> None:
    nodes = {address for name, address in climbed.cluster.addresses.items() if name.startswith("node")}
    met = climbed.run_file("2x2")["rendezvous"]["host"]
    assert met in nodes
    if climbed.checkout.record("default/weak/2x2/r1")["spec"]["launcher"] == "torchrun":
        for file in sorted((climbed.directory("2x2") / "nodes").glob("node?.json")):
            assert f"--master-addr={met}" in json.loads(file.read_text())["argv"]


@pytest.mark.parametrize("scale", SMALL)
def test_without_slurmdbd_slurm_saw_what_the_plan_says(small: Climbed, scale: str) -> None:
    nodes, gpus = map(int, scale.split("x"))
    asked = asked_for(small, scale)
    assert asked["Partition"] == "gpu"
    assert asked["NumNodes"].partition("-")[0] == str(nodes)
    assert asked["TresPerNode"] == f"gres:gpu:{gpus}"
    assert asked["CPUs/Task"] == str(2 * gpus)
    assert asked["MinMemoryNode"] == f"{4000 * gpus}M"
    assert asked["TimeLimit"] == "00:05:00"
    assert asked["Requeue"] == "0"


@pytest.mark.parametrize("scale", LARGE)
def test_with_slurmdbd_slurm_saw_what_the_plan_says(large: Climbed, scale: str) -> None:
    nodes, gpus = map(int, scale.split("x"))
    stage2 = nodes == 1 and gpus > 1
    asked = asked_for(large, scale)
    assert (asked["Account"], asked["QOS"]) == (ACCOUNT, "normal")
    assert asked["Partition"] == ("debug" if stage2 else "gpu")
    assert asked["ReqNodeList"] == ("node2" if stage2 else "(null)")
    assert asked["Nice"] == ("7" if stage2 else "0")
    assert asked["NumNodes"].partition("-")[0] == str(nodes)
    assert asked["NumTasks"] == str(nodes)
    assert asked["CPUs/Task"] == str(2 * gpus)
    assert asked["TresPerNode"] == f"gres:gpu:{gpus}"
    assert asked["MinMemoryNode"] == f"{3000 * gpus}M"
    limit = 5 if scale == "1x1" else 6 if stage2 else 7
    assert asked["TimeLimit"] == f"00:0{limit}:00"


@pytest.mark.parametrize("scale", LARGE)
def test_slurm_gave_what_the_plan_says(large: Climbed, scale: str) -> None:
    nodes, gpus = map(int, scale.split("x"))
    accounted = large.cluster.await_accounted(large.job(scale))
    given = dict(entry.split("=") for entry in accounted["AllocTRES"].split(","))
    assert given["node"] == str(nodes)
    assert given["gres/gpu"] == str(nodes * gpus)
    assert given["cpu"] == str(nodes * 2 * gpus)
    assert given["mem"] in {f"{nodes * 3000 * gpus}M", f"{nodes * 3000 * gpus / 1024:g}G"}


def asked_for(climbed: Climbed, scale: str) -> dict[str, str]:
    """What Slurm itself remembers of a scale's job."""
    shown = climbed.cluster.run(["scontrol", "--oneliner", "show", "job", str(climbed.job(scale))]).stdout
    return dict(re.findall(r"(\S+?)=(\S*)", shown))


def test_what_would_stage_2_do(climbed: Climbed) -> None:
    done = climbed.checkout.snakemake("stage2", "--dry-run")
    assert done.returncode == 0
    assert "1x2" in done.stdout
    assert "2x2" not in done.stdout


def test_a_second_start_submits_nothing(small: Climbed) -> None:
    rows = read_rows(small.checkout.results)
    done = small.checkout.snakemake("--profile", "profiles/slurm")
    assert done.returncode == 0
    assert read_rows(small.checkout.results) == rows
    assert "nothing to measure" in done.stdout
    assert "submitted" not in done.stdout
