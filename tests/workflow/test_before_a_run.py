"""Machines without Slurm: the doctor still works, and whoever asks for Slurm is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from project_copy import Checkout

OF_SLURM = {"sbatch", "scontrol", "squeue", "sacct", "sacctmgr", "sinfo", "srun", "scancel", "salloc"}


@pytest.fixture
def laptop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with everything that this machine has, save Slurm."""
    programs = tmp_path_factory.mktemp("bin")
    for directory in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(directory).glob("*"):
            if program.name not in OF_SLURM:
                (programs / program.name).unlink(missing_ok=True)
                (programs / program.name).symlink_to(program)
    return str(programs)


def test_doctor_as_typed(checkout: Checkout, laptop: str) -> None:
    done = checkout.snakemake("doctor", PATH=laptop)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("importing torch with ")  # while it is silent
    assert [line for line in lines[1:] if line and not line.startswith(" ")][:6] == [
        "Versions", "Settings", "Files", "Training software", "Network", "Slurm",
    ]  # fmt: skip
    assert "not checked jobs no Slurm here" in " ".join(done.stdout.split())
    assert "FAIL" not in done.stdout
    assert not checkout.results.exists()


def test_preflight_as_typed(checkout: Checkout, laptop: str) -> None:
    checkout.configure(preflight={"enabled": True})
    checkout.site(launcher="srun")
    done = checkout.snakemake("preflight", "--config", "preflight_scale=1x1", PATH=laptop)
    assert done.returncode == 0, done.stdout
    assert "1x1: preflight passed" in done.stdout
    cores = len(os.sched_getaffinity(0))
    assert f"threads: {cores}\n" in done.stdout or cores == 1


def test_asking_for_slurm_where_there_is_none_is_one_message(checkout: Checkout, laptop: str) -> None:
    done = checkout.snakemake("--profile", "profiles/slurm", PATH=laptop)
    assert done.returncode == 1
    assert "Slurm does not answer: squeue: No such file or directory" in done.stdout
    assert "Traceback" not in done.stdout
    assert "Error" not in done.stdout
    assert not checkout.results.exists() or not list(checkout.results.glob("**/*.json"))
