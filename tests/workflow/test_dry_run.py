"""What ``snakemake stage2 --dry-run`` tells, and that it touches nothing."""

from __future__ import annotations

import pytest
from project_copy import EXPERIMENT, Checkout


def test_dry_run_shows_the_plan_up_to_the_stage(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a terminal that cannot print a character."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    checkout.configure(workload={**EXPERIMENT["workload"], "args": ["{batch_per_gpu}", "größe"]})
    planned = checkout.snakemake("stage2", "--dry-run")
    assert planned.returncode == 0, planned.stdout
    plan = planned.stdout
    assert plan.startswith("The plan for site local:")
    assert "rule " not in plan  # Snakemake's list of jobs comes with --printshellcmds
    rows = [line.split() for line in plan.splitlines() if line.startswith("stage")]
    assert ["stage1", "1x1", "1", "1", "(default;", "weak;", "1", "repeat)", "1", "5", "min", "0.08"] in rows
    assert ["stage2", "1x2", "2", "1", "(default;", "weak;", "1", "repeat)", "1", "5", "min", "0.17"] in rows
    assert not [row for row in rows if row[0] == "stage3"]
    assert "At most 0.25 GPU hours from here" in plan
    assert "loop.py 16 gr\\xf6\\xdfe" in plan
    assert not checkout.results.exists()


def test_dry_run_counts_what_is_there_already(checkout: Checkout) -> None:
    checkout.without_torch()
    assert checkout.snakemake("stage1", "--cores", "all").returncode == 0
    planned = checkout.snakemake("stage2", "--dry-run").stdout
    assert "At most 0.17 GPU hours from here" in planned
    assert "What the scales below let expect:\n  stage2 1x2: at most " in planned


def test_every_target_of_the_interface_is_there(checkout: Checkout) -> None:
    planned = checkout.snakemake("all", "stage1", "stage2", "stage3", "report", "compare", "eject", "--dry-run")
    assert planned.returncode == 0, planned.stdout
