"""The ladder as `snakemake --profile profiles/slurm`: real jobs on nodes with networks of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml
from cluster import Cluster
from project_copy import Checkout, copy_project, environment

pytestmark = pytest.mark.slurm

STAGES = {
    "stage1": {"scales": ["1x1"], "runtime": 5},
    "stage2": {"scales": ["1x2"], "runtime": 5},
    "stage3": {"scales": ["2x1", "2x2"], "runtime": 5},
}

Climbed = tuple[Checkout, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def climbed(cluster_without_accounting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    """A ladder of four jobs on a Slurm without slurmdbd."""
    checkout = copy_project(tmp_path_factory.mktemp("project"))
    checkout.configure(stages=STAGES, measure={"warmup_steps": 1, "min_steps": 5, "max_steps": 12})
    site = {
        "site": "test",
        "slurm": {"partition": "gpu", "extra": ["--hint=nomultithread"]},
        "node": {"gpus": 2, "device": "cpu", "gres": "gpu", "cpus": 4, "memory_mb": 8000},
    }
    (checkout.path / "config/cluster.yaml").write_text(yaml.safe_dump(site))
    argv = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm"]
    told = subprocess.run(
        cluster_without_accounting.command(argv, cwd=checkout.path),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    return checkout, told


def test_climbs_through_all_stages(climbed: Climbed) -> None:
    checkout, told = climbed
    assert told.returncode == 0, told.stdout
    assert re.findall(r"^gate (\w+): open", told.stdout, re.MULTILINE) == ["stage1", "stage2", "stage3"]
    assert (checkout.results / "report/index.html").exists()


def test_every_run_is_of_its_slurm_job_and_its_nodes(climbed: Climbed) -> None:
    checkout, _ = climbed
    jobs = set()
    for scale, hosts in (("1x1", 1), ("1x2", 1), ("2x1", 2), ("2x2", 2)):
        record = checkout.record(f"default/weak/{scale}/r1")
        assert record["job"]["id"].isdigit()
        jobs.add(record["job"]["id"])
        assert len(record["world"]["hosts"]) == hosts
        assert record["status"] == "ok"
    assert len(jobs) == 4


def test_nodes_meet_at_an_address_that_both_reach(climbed: Climbed, cluster_without_accounting: Cluster) -> None:
    checkout, _ = climbed
    run = json.loads((checkout.results / "runs/default/weak/2x2/r1/run.json").read_text())
    nodes = set(cluster_without_accounting.addresses.values())
    assert run["rendezvous"]["host"] in nodes
    own = [
        next(word for word in json.loads(file.read_text())["argv"] if word.startswith("--local-addr="))
        for file in sorted((checkout.results / "runs/default/weak/2x2/r1/nodes").glob("node*.json"))
    ]
    assert len(set(own)) == 2
    assert {word.partition("=")[2] for word in own} <= nodes


def test_jobs_ask_for_what_the_plan_says(climbed: Climbed, cluster_without_accounting: Cluster) -> None:
    """What Slurm itself remembers of each job."""
    checkout, _ = climbed
    for scale, nodes, gpus, cpus, memory in (
        ("1x1", 1, 1, 2, "4000M"),
        ("1x2", 1, 2, 4, "8000M"),
        ("2x2", 2, 2, 4, "8000M"),
    ):
        job = checkout.record(f"default/weak/{scale}/r1")["job"]["id"]
        shown = cluster_without_accounting.run(["scontrol", "--oneliner", "show", "job", job]).stdout
        asked = dict(re.findall(r"(\S+?)=(\S*)", shown))
        assert asked["Partition"] == "gpu"
        assert asked["NumNodes"].split("-")[0] == str(nodes)
        assert asked["TresPerNode"] == f"gres:gpu:{gpus}"
        assert asked["CPUs/Task"] == str(cpus)
        assert asked["MinMemoryNode"] == memory
        assert asked["TimeLimit"] == "00:05:00"
        assert asked["Requeue"] == "0"
