"""What ``snakemake stage2 --dry-run`` tells, and that it touches nothing."""

from __future__ import annotations

from project_copy import EXPERIMENT, Checkout


def test_dry_run_shows_the_plan_up_to_the_stage(checkout: Checkout) -> None:
    """Also on a terminal that cannot print a character. test_second_start.py has one on results that are there."""
    workload = {**EXPERIMENT["workload"], "args": ["{batch_per_gpu}", "größe"]}
    checkout.configure(workload=workload, variants={"default": {"env": {"NCCL_SOCKET_IFNAM": "eth0"}}})
    planned = checkout.snakemake("stage2", "--dry-run", PYTHONIOENCODING="ascii:strict")
    assert planned.returncode == 0, planned.stdout
    warning, _, plan = planned.stdout.partition("The plan for site local:")
    assert warning.count("variants.default.env.NCCL_SOCKET_IFNAM: ") == 1
    assert '  next     did you mean "NCCL_SOCKET_IFNAME"?' in warning
    assert "rule " not in plan  # Snakemake's list of jobs comes with --printshellcmds
    rows = [line.split() for line in plan.splitlines() if line.startswith("stage")]
    assert ["stage1", "1x1", "1", "1", "(default;", "weak;", "1", "repeat)", "1", "5", "min", "0.08"] in rows
    assert ["stage2", "1x2", "2", "1", "(default;", "weak;", "1", "repeat)", "1", "5", "min", "0.17"] in rows
    assert not [row for row in rows if row[0] == "stage3"]
    assert "At most 0.25 GPU hours from here" in plan
    assert "loop.py 16 gr\\xf6\\xdfe" in plan
    assert not checkout.results.exists()
