"""Before submission, on a real Slurm: a plan that it would refuse or never start is reported, and not submitted."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from cluster import Cluster
from project_copy import Checkout, copy_project

pytestmark = pytest.mark.slurm

NODE = {"gpus": 4, "device": "cpu", "gres": "gpu", "cpus": 8, "memory_mb": 8000}
SMALL = {"stage1": {"scales": ["1x1"], "runtime": 5}}
NODES_3 = {**SMALL, "stage3": {"scales": ["3x1", "3x2"], "runtime": 5}}

# Slurm values, stages, and the message: key and Slurm's words, what was asked for, and the advice.
MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, str]] = {
    "partition": (
        {"partition": "gpus"},
        SMALL,
        "config/cluster.yaml: slurm.partition: Slurm refuses the job of 1x1: invalid partition specified: gpus; "
        "Invalid partition name specified",
        "--partition=gpus",
        'did you mean "gpu"?',
    ),
    "nodes": (
        {"partition": "debug"},
        NODES_3,
        "config/config.yaml: stages.stage3.scales: Slurm refuses the job of 3x1, 3x2: "
        "Requested node configuration is not available",
        "--nodes=3",
        "change one of config/config.yaml: stages.stage3.scales, config/cluster.yaml: node.gres",
    ),
    "shape": (
        {"partition": "gpu"},
        {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": {"scales": ["1x2", "1x8"], "runtime": 5}},
        "config/cluster.yaml: node: no node is as large as described here; Slurm refuses the jobs of 1x8: "
        "Requested node configuration is not available",
        "node.gpus: 8, node.gres: gpu, node.cpus: 8, node.memory_mb: 8000",
        "set node.gpus: 4, node.gres: gpu, node.cpus: 8 or less, node.memory_mb: 16000 or less",
    ),
    "time": (
        {"partition": "debug"},
        {"stage1": {"scales": ["1x1"], "runtime": 31}},
        "config/config.yaml: stages.stage1.runtime: longer than the partition debug allows",
        "31 min",
        "set runtime: 30 or less",
    ),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One for all: a start that was stopped must leave nothing that stops the next."""
    return copy_project(tmp_path_factory.mktemp("project"))


def configure(checkout: Checkout, slurm: dict[str, Any], stages: dict[str, Any]) -> None:
    checkout.configure(stages=stages)
    gpus = 8 if "1x8" in str(stages) else NODE["gpus"]
    site = {"site": "test", "slurm": slurm, "node": {**NODE, "gpus": gpus}}
    (checkout.path / "config/cluster.yaml").write_text(yaml.safe_dump(site))


def jobs(cluster: Cluster) -> str:
    return cluster.run(["squeue", "--states=all", "--noheader"]).stdout


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_message_and_nothing_is_submitted(cluster: Cluster, checkout: Checkout, mistake: str) -> None:
    slurm, stages, message, found, advice = MISTAKES[mistake]
    configure(checkout, slurm, stages)
    before = jobs(cluster)
    result = Checkout(checkout.path, cluster).snakemake("--profile", "profiles/slurm")
    assert result.returncode == 1
    profile, *lines = result.stdout.splitlines()
    assert profile.startswith("Using profile")
    assert lines[0] == message
    assert lines[1].split()[0] == "found"
    assert found in lines[1]
    assert lines[-1].split()[0] == "next"
    assert advice in lines[-1]
    assert jobs(cluster) == before


def test_resources_for_slurm_that_no_job_uses_are_named(cluster: Cluster, checkout: Checkout) -> None:
    configure(checkout, {"partition": "gpus"}, SMALL)
    asked = ("--profile", "profiles/slurm", "--default-resources", "slurm_account=whoever", "runtime=7")
    printed = Checkout(checkout.path, cluster).snakemake(*asked).stdout
    assert (
        "warning: no job uses slurm_account=whoever, runtime=7; all ask for what is in config/cluster.yaml " in printed
    )
    assert "(slurm.account: null, slurm.partition: gpus)" in printed


def test_doctor_with_accounting(cluster: Cluster, checkout: Checkout) -> None:
    configure(checkout, {"partition": "gpu", "qos": "smal"}, NODES_3)
    done = Checkout(checkout.path, cluster).snakemake("doctor")
    assert done.returncode == 1
    plain = " ".join(done.stdout.split())
    assert "pass controller Slurm answers; partitions: gpu, debug" in plain
    assert "FAIL jobs config/cluster.yaml: slurm.qos: Slurm refuses the job of 1x1: Invalid qos specification" in plain
    assert "failed, " in done.stdout.splitlines()[-1]


def test_doctor_without_accounting(cluster_without_accounting: Cluster, checkout: Checkout) -> None:
    configure(checkout, {"partition": "gpu", "account": "whoever"}, SMALL)
    site = yaml.safe_load((checkout.path / "config/cluster.yaml").read_text())
    checkout.site(node={**site["node"], "gpus": 2, "cpus": 4})
    done = Checkout(checkout.path, cluster_without_accounting).snakemake("doctor")
    assert done.returncode == 0, done.stdout
    plain = " ".join(done.stdout.split())
    assert "pass jobs Slurm takes all of them: 1x1" in plain
    assert re.search(r"pass start if submitted now: 1x1 at \d{4}-", plain)
