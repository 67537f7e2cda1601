"""Before submission, on a real Slurm: a plan that it would refuse or never start is reported, and not submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from cluster import Cluster
from project_copy import NO_TORCH, ONE_STAGE, Checkout, copy_project

pytestmark = pytest.mark.slurm

NODE = {"gpus": 4, "device": "cpu", "gres": "gpu", "cpus": 8, "memory_mb": 8000}

# Slurm values, stages, and the message: key and Slurm's words, what was asked for, and the advice.
MISTAKES: dict[str, tuple[dict[str, Any], Mapping[str, Any], str, str, str]] = {
    "partition": (
        {"partition": "gpus"},
        ONE_STAGE,
        "config/cluster.yaml: slurm.partition: Slurm refuses the job of 1x1: invalid partition specified: gpus; "
        "Invalid partition name specified",
        "--partition=gpus",
        'did you mean "gpu"?',
    ),
    "shape": (
        {"partition": "gpu"},
        {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": {"scales": ["1x2", "1x8"], "runtime": 5}},
        "config/cluster.yaml: node: no node is as large as described here; Slurm refuses the jobs of 1x8: "
        "Requested node configuration is not available",
        "node.gpus: 8, node.gres: gpu, node.cpus: 8, node.memory_mb: 8000",
        "set node.gpus: 4, node.gres: gpu, node.cpus: 8 or less, node.memory_mb: 16000 or less",
    ),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One for all: a start that was stopped must leave nothing that stops the next."""
    return copy_project(tmp_path_factory.mktemp("project"))


def configure(
    checkout: Checkout, slurm: dict[str, Any], stages: Mapping[str, Any], node: Mapping[str, Any] = NODE
) -> None:
    gpus = 8 if "1x8" in str(stages) else node["gpus"]
    checkout.set_up(NO_TORCH, {"site": "test", "slurm": slurm, "node": {**node, "gpus": gpus}}, stages=stages)


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
    configure(checkout, {"partition": "gpus"}, ONE_STAGE)
    asked = ("--profile", "profiles/slurm", "--default-resources", "slurm_account=whoever", "runtime=7")
    printed = Checkout(checkout.path, cluster).snakemake(*asked).stdout
    assert (
        "warning: no job uses slurm_account=whoever, runtime=7; all ask for what is in config/cluster.yaml " in printed
    )
    assert "(slurm.account: null, slurm.partition: gpus)" in printed


def test_doctor_without_accounting(cluster_without_accounting: Cluster, checkout: Checkout) -> None:
    configure(checkout, {"partition": "gpu", "account": "whoever"}, ONE_STAGE, {**NODE, "gpus": 2, "cpus": 4})
    done = Checkout(checkout.path, cluster_without_accounting).snakemake("doctor")
    assert done.returncode == 0, done.stdout
    plain = " ".join(done.stdout.split())
    assert "pass jobs Slurm takes all of them: 1x1" in plain
    assert re.search(r"pass start if submitted now: 1x1 at \d{4}-", plain)
