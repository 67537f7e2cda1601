"""A plain baseline that fails or hangs costs no other run and no gate anything."""

from __future__ import annotations

import pytest
from project_copy import NO_TORCH, Checkout

RUNS = ["default/weak/1x1/r1", "plain/weak/1x1/r1", "default/weak/1x1/r2"]
# The second one waits, as scripts that wait for a peer do: nobody comes without a launcher.
SCRIPTS = {
    "rank 0: KeyError: 'RANK'": "import os\nrank = int(os.environ['RANK'])\n",
    "no first step": "import os, threading\nif 'RANK' not in os.environ: threading.Event().wait()\n",
}


@pytest.mark.parametrize("why", SCRIPTS)
def test_a_script_that_needs_a_launcher(checkout: Checkout, why: str) -> None:
    """A start that measures nothing again is in tests/unit/climb/test_to_do.py."""
    measure = {"warmup_steps": 5, "min_steps": 10, "plain_baseline": True}
    stages = {"stage1": {"scales": ["1x1"], "runtime": 3}}
    checkout.configure(stages=stages, measure=measure, repeats=2, hang={"first_step_s": 3, "at_least_s": 1})
    checkout.without_torch(SCRIPTS[why] + NO_TORCH)
    climbed = checkout.climb("stage1")
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage1: open" in climbed.stdout
    times = checkout.run_times()
    assert sorted(times, key=lambda run: times[run]) == RUNS  # it is not tried for every repeat
    assert [checkout.record(RUNS[k])["status"] for k in (0, 2)] == ["ok", "ok"]
    failure = checkout.record(RUNS[1])["failure"]
    assert why in (failure["verdict"], failure["why"])
    assert climbed.stdout.count("no plain baseline: ") == 1
    assert checkout.script("report.py").returncode == 0
    message = "no efficiency against the plain script: the script failed without a launcher"
    assert message in (checkout.results / "report/scaling.md").read_text()
    assert checkout.processes() == []
