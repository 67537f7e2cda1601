"""Before submission, on a real Slurm: a plan that it would refuse or never start is reported, and not submitted."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from cluster import Cluster
from project_copy import Checkout, copy_project, environment

pytestmark = pytest.mark.slurm

NODE = {"gpus": 4, "device": "cpu", "gres": "gpu", "cpus": 8, "memory_mb": 8000}
SMALL = {"stage1": {"scales": ["1x1"], "runtime": 5}}
NODES_3 = {**SMALL, "stage3": {"scales": ["3x1", "3x2"], "runtime": 5}}

# Slurm values, stages, and the message: key, what is wrong, what is allowed.
MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, str]] = {
    "partition": (
        {"partition": "gpus"},
        SMALL,
        "config/cluster.yaml: slurm.partition: there is no such partition",
        "debug, gpu",
        'did you mean "gpu"?',
    ),
    "account": (
        {"partition": "gpu", "account": "projekt"},
        SMALL,
        "config/cluster.yaml: slurm.account: root has no such account here",
        "project, root",
        'did you mean "project"?',
    ),
    "nodes": (
        {"partition": "debug"},
        NODES_3,
        "config/config.yaml: stages.stage3.scales: more nodes than the partition debug has",
        "up to 2 nodes: node1, node2",
        "leave out the scale",
    ),
    "time": (
        {"partition": "debug"},
        {"stage1": {"scales": ["1x1"], "runtime": 31}},
        "config/config.yaml: stages.stage1.runtime: longer than the partition debug allows",
        "up to 30 min",
        "set runtime: 30 or less",
    ),
    "qos": (
        {"partition": "gpu"},
        {**SMALL, "stage2": {"scales": ["1x4"], "runtime": 5, "slurm": {"qos": "small"}}},
        "config/config.yaml: stages.stage2.scales: more GPUs (gres/gpu) than the QOS small allows per job",
        "up to 2",
        "config/config.yaml: stages.stage2.slurm.qos",
    ),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One for all: a start that was stopped must leave nothing that stops the next."""
    return copy_project(tmp_path_factory.mktemp("project"))


def configure(checkout: Checkout, slurm: dict[str, Any], stages: dict[str, Any]) -> None:
    checkout.configure(stages=stages)
    site = {"site": "test", "slurm": slurm, "node": NODE}
    (checkout.path / "config/cluster.yaml").write_text(yaml.safe_dump(site))


def snakemake(cluster: Cluster, checkout: Checkout, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        cluster.command([sys.executable, "-m", "snakemake", *arguments], cwd=checkout.path),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def next_job(cluster: Cluster) -> str:
    """Number that Slurm will give to the next job: the same as before when nothing was submitted."""
    found = re.search(r"^NEXT_JOB_ID\s*=\s*(\d+)$", cluster.run(["scontrol", "show", "config"]).stdout, re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_message_and_nothing_is_submitted(cluster: Cluster, checkout: Checkout, mistake: str) -> None:
    slurm, stages, message, allowed, advice = MISTAKES[mistake]
    configure(checkout, slurm, stages)
    before = next_job(cluster)
    result = snakemake(cluster, checkout, "--profile", "profiles/slurm")
    assert result.returncode == 1
    profile, *lines = result.stdout.splitlines()
    assert profile.startswith("Using profile")
    assert lines[0] == message
    assert [line.split()[0] for line in lines[1:]] == ["found", "allowed", "next"]
    assert lines[2] == f"  allowed  {allowed}"
    assert advice in lines[3]
    assert next_job(cluster) == before


def test_doctor_with_accounting(cluster: Cluster, checkout: Checkout) -> None:
    configure(checkout, {"partition": "gpu", "qos": "smal"}, NODES_3)
    done = snakemake(cluster, checkout, "doctor")
    assert done.returncode == 1
    plain = " ".join(done.stdout.split())
    assert re.search(r"pass controller Slurm \d+\.\d+\.\d+ answers; partitions: gpu, debug", plain)
    assert "FAIL jobs config/cluster.yaml: slurm.qos: there is no such QOS (found smal; allowed normal, small)" in plain
    assert 'next: did you mean "small"?' in plain
    assert done.stdout.splitlines()[-1].startswith("1 failed, ")


def test_doctor_without_accounting(cluster_without_accounting: Cluster, checkout: Checkout) -> None:
    configure(checkout, {"partition": "gpu", "account": "whoever"}, SMALL)
    site = yaml.safe_load((checkout.path / "config/cluster.yaml").read_text())
    checkout.site(node={**site["node"], "gpus": 2, "cpus": 4})
    done = snakemake(cluster_without_accounting, checkout, "doctor")
    assert done.returncode == 0, done.stdout
    plain = " ".join(done.stdout.split())
    assert "pass jobs Slurm can take all of them: 1x1" in plain
    assert "not checked accounting account, QOS and their limits: this Slurm has no accounting" in plain
