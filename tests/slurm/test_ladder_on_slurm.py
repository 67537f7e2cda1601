"""What users type, on a real Slurm: the whole ladder, and what it asks Slurm for. Nothing is trained: what the jobs of
longer ladders do with torch is in test_launchers.py."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster_config import ACCOUNT
from ddp_ladder.ledger.jobs import read_rows
from project_copy import NO_TORCH, Checkout, copy_project

pytestmark = pytest.mark.slurm

SCALES = ("1x1", "1x2", "2x1")
STAGES: dict[str, Any] = {
    "stage1": {"scales": ["1x1"], "runtime": 5},
    "stage2": {
        "scales": ["1x2"],
        "runtime": 6,
        "slurm": {"partition": "debug", "nodelist": "node2", "extra": ["--nice=7"]},
    },
    "stage3": {"scales": ["2x1"], "runtime": 7},
}
SITE = {
    "site": "test",
    "slurm": {"account": ACCOUNT, "partition": "gpu", "qos": "normal", "extra": ["--mail-type=NONE"]},
    "node": {"gpus": 4, "device": "cpu", "gres": "gpu", "cpus": 8, "memory_mb": 12000},
    "launcher": "srun",
}


@dataclass(frozen=True)
class Climbed:
    """A ladder that was climbed, on the cluster it was climbed on."""

    cluster: Cluster
    checkout: Checkout
    done: subprocess.CompletedProcess[str]

    def directory(self, scale: str) -> Path:
        return self.checkout.results / "runs/default/weak" / scale / "r1"

    def job(self, scale: str) -> int:
        return int(self.checkout.record(f"default/weak/{scale}/r1")["job"]["id"])

    def asked_for(self, scale: str) -> dict[str, str]:
        """What Slurm itself remembers of a scale's job."""
        shown = self.cluster.run(["scontrol", "--oneliner", "show", "job", str(self.job(scale))]).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", shown))


@pytest.fixture(scope="module")
def climbed(each_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    """Three stages, one of which has a partition of its own."""
    cluster = each_cluster
    checkout = copy_project(tmp_path_factory.mktemp("project"), cluster)
    checkout.set_up(NO_TORCH, SITE, stages=STAGES)
    climbed = Climbed(cluster, checkout, checkout.snakemake("--profile", "profiles/slurm", timeout_s=500))
    for scale in SCALES:
        cluster.await_accounted(climbed.job(scale))
    # As the next start does: the last job's row may have come before slurmdbd's.
    assert checkout.script("gate.py", "--stage", "stage3").returncode == 0
    return climbed


def test_climbs_through_all_stages(climbed: Climbed) -> None:
    done = climbed.done.stdout
    assert climbed.done.returncode == 0, done
    assert re.findall(r"^gate (\w+): open", done, re.MULTILINE) == ["stage1", "stage2", "stage3"]
    assert (climbed.checkout.results / "report/index.html").exists()
    jobs = set()
    for scale in SCALES:
        record = climbed.checkout.record(f"default/weak/{scale}/r1")
        assert record["status"] == "ok"
        assert len(record["world"]["hosts"]) == int(scale[0])
        jobs.add(record["job"]["id"])
    assert len(jobs) == len(SCALES)


def test_tells_what_its_jobs_do(climbed: Climbed) -> None:
    job = climbed.job("1x1")
    own = [line for line in climbed.done.stdout.splitlines() if line.startswith("stage1 1x1")]
    first = next(line for line in own if f"job {job}" in line)
    assert first.partition(";")[0] == f"stage1 1x1: job {job} submitted"
    assert re.fullmatch(rf"stage1 1x1: job {job} runs on node\d", next(line for line in own if "runs on" in line))
    assert "stage1 1x1 [1/1] default/weak/r1: started" in own
    assert any(re.search(r"r1: [\d,.]+ samples/s, \d+ steps measured", line) for line in own)
    assert re.fullmatch(rf"stage1 1x1: job {job} ended COMPLETED on node\d; it ran .*", own[-1])
    assert "guess" not in climbed.done.stdout.lower()
    script = climbed.cluster.run(["scontrol", "write", "batch_script", str(job), "-"]).stdout
    assert ("--executor local" in script, "jobstep" in script) == (True, False)  # one Snakemake in the job, not two


@pytest.mark.parametrize("scale", SCALES)
def test_accounting_agrees_with_slurm_and_the_records(climbed: Climbed, scale: str) -> None:
    nodes, gpus = map(int, scale.split("x"))
    (row,) = (row for row in read_rows(climbed.checkout.results) if row.scale == scale)
    asked = climbed.asked_for(scale)
    assert row.job_id == str(climbed.job(scale))
    assert (row.nodes, row.gpus) == (nodes, nodes * gpus)
    hours, minutes, seconds = map(int, asked["RunTime"].split(":"))
    assert row.elapsed_s == pytest.approx(3600 * hours + 60 * minutes + seconds, abs=1)
    # The run of the record is a part of its job, and so are its own parts.
    ended = json.loads((climbed.directory(scale) / "ended.json").read_text())
    wall_s = ended["ended_at_s"] - ended["started_at_s"]
    assert wall_s < row.elapsed_s
    assert row.startup_s + row.training_s == pytest.approx(wall_s, abs=0.1)
    assert row.preflight_s + wall_s < row.elapsed_s + 2
    assert row.training_s > 0
    assert (row.runs_planned, row.runs_measured, row.runs_ok) == (1, 1, 1)
    assert (row.source, row.state) == ("sacct", "COMPLETED")
    assert row.node_list == asked["NodeList"]
    assert "results/accounting.csv" in climbed.done.stdout


@pytest.mark.parametrize("scale", SCALES)
def test_slurm_saw_and_gave_what_the_plan_says(climbed: Climbed, scale: str) -> None:
    nodes, gpus = map(int, scale.split("x"))
    stage2 = scale == "1x2"
    asked = climbed.asked_for(scale)
    assert (asked["Account"], asked["QOS"], asked["Requeue"]) == (ACCOUNT, "normal", "0")
    assert asked["Partition"] == ("debug" if stage2 else "gpu")
    assert asked["ReqNodeList"] == ("node2" if stage2 else "(null)")
    assert asked["Nice"] == ("7" if stage2 else "0")
    assert asked["NumNodes"].partition("-")[0] == str(nodes)
    assert asked["NumTasks"] == str(nodes)
    assert asked["CPUs/Task"] == str(2 * gpus)
    assert asked["TresPerNode"] in {f"gres:gpu:{gpus}", f"gres/gpu:{gpus}"}  # 22.05, 24.11
    assert asked["MinMemoryNode"] == f"{3000 * gpus}M"
    assert asked["TimeLimit"] == f"00:0{5 + SCALES.index(scale)}:00"
    accounted = climbed.cluster.await_accounted(climbed.job(scale))
    given = dict(entry.split("=") for entry in accounted["AllocTRES"].split(","))
    assert (given["node"], given["gres/gpu"]) == (str(nodes), str(nodes * gpus))
    assert given["cpu"] == str(nodes * 2 * gpus)
    assert given["mem"] in {f"{nodes * 3000 * gpus}M", f"{nodes * 3000 * gpus / 1024:g}G"}


def test_a_second_start_submits_nothing(climbed: Climbed) -> None:
    rows = read_rows(climbed.checkout.results)
    done = climbed.checkout.snakemake("stage3", "--profile", "profiles/slurm")
    assert done.returncode == 0
    assert read_rows(climbed.checkout.results) == rows
    assert "nothing to measure" in done.stdout
    assert "submitted" not in done.stdout
