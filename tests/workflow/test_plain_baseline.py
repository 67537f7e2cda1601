"""A plain baseline that hangs costs no other run and no gate anything."""

from __future__ import annotations

import subprocess
import sys

from project_copy import NO_TORCH, Checkout

# As scripts that wait for a peer do: nobody comes without a launcher.
WAITS = f'import os, threading\nif "RANK" not in os.environ: threading.Event().wait()\n{NO_TORCH}'
RUNS = ["default/weak/1x1/r1", "plain/weak/1x1/r1", "default/weak/1x1/r2"]


def measured(checkout: Checkout, script: str) -> str:
    """The job of 1x1, and the report; what they say."""
    measure = {"warmup_steps": 5, "min_steps": 10, "plain_baseline": True}
    stages = {"stage1": {"scales": ["1x1"], "runtime": 3}}
    checkout.configure(stages=stages, measure=measure, repeats=2, hang={"first_step_s": 3, "at_least_s": 1})
    checkout.without_torch(script)
    assert checkout.snakemake("plan", "--cores", "1").returncode == 0
    said = ""
    for argv in (
        [sys.executable, "workflow/scripts/run_scale.py", "--plan", "results/plan.json", "--scale", "1x1"],
        [sys.executable, "workflow/scripts/gate.py", "--plan", "results/plan.json", "--stage", "stage1"],
        [sys.executable, "workflow/scripts/report.py", "--plan", "results/plan.json"],
    ):
        done = subprocess.run(argv, cwd=checkout.path, capture_output=True, text=True, timeout=250, check=False)
        said += done.stdout + done.stderr
        assert done.returncode == 0, said
    return said


def test_a_script_that_waits_for_a_peer(checkout: Checkout) -> None:
    said = measured(checkout, WAITS)
    times = checkout.run_times()
    assert sorted(times, key=lambda run: times[run]) == RUNS  # it is not tried for every repeat
    assert [checkout.record(RUNS[k])["status"] for k in (0, 2)] == ["ok", "ok"]
    failure = checkout.record(RUNS[1])["failure"]
    assert failure["verdict"] == "no first step"
    assert "no plain baseline: " in said
    message = "no efficiency against the plain script: the script failed without a launcher"
    assert message in (checkout.results / "report/scaling.md").read_text()
    again = checkout.snakemake("stage1", "--cores", "all")
    assert again.returncode == 0, again.stdout
    assert checkout.run_times() == times
    assert checkout.processes() == []
