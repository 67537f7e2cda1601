"""A ladder that is interrupted, or of which something fails, and its next start."""

from __future__ import annotations

import os
import re
import signal

from project_copy import NO_TORCH, Checkout

ALL = ("--cores", "all")
HANG_IN_THE_LAST = """
import os, signal
if os.path.exists("hang") and "/1x2/r2/" in os.environ["DDP_LADDER_RUN"]:
    signal.pause()
"""


def test_ctrl_c_in_the_second_run_then_rerun_continues(checkout: Checkout) -> None:
    """It reaches the whole process group; test_ends_and_locks.py has a signal that reaches Snakemake alone."""
    checkout.configure(repeats=2, stages={"stage1": {"scales": ["1x2"], "runtime": 5}})
    checkout.without_torch(HANG_IN_THE_LAST + NO_TORCH, launcher="torchrun")
    (checkout.path / "hang").touch()
    climbing = checkout.start("--profile", "profiles/local")
    assert climbing.stdout is not None
    for line in climbing.stdout:
        if re.match(r"stage1 1x2 \[2/2\].*started", line):
            break
    os.killpg(climbing.pid, signal.SIGINT)
    climbing.communicate(timeout=120)
    assert climbing.returncode != 0
    assert checkout.processes() == []
    before = checkout.run_times()
    (checkout.path / "hang").unlink()
    climbed = checkout.snakemake("stage1", *ALL)
    assert climbed.returncode == 0, climbed.stdout
    after = checkout.run_times()
    assert {run for run in after if after[run] != before.get(run)} == {"default/weak/1x2/r2"}


def test_a_failing_variant_does_not_stop_the_others_and_is_tried_again(checkout: Checkout) -> None:
    checkout.configure(
        variants={
            "broken": {"args": ["--crash"]},
            "lost": {"network": {"interface": "no-such0"}},
            "default": {},
        },
        repeats=2,
        stages={
            "stage1": {"scales": ["1x1"], "runtime": 5},
            "stage3": {"scales": ["2x1"], "runtime": 5},
        },
    )
    checkout.without_torch(NO_TORCH + 'if "--crash" in sys.argv: raise ValueError("this variant is broken")\n')
    climbed = checkout.snakemake("stage3", *ALL)
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage1: open (without broken, lost: see the report)" in climbed.stdout
    assert "no interface no-such0" in checkout.record("lost/weak/1x1/r1")["failure"]["why"]
    failure = checkout.record("broken/weak/1x1/r1")["failure"]
    assert failure["verdict"] == "the script raised an exception"
    assert failure["why"] == "rank 0: ValueError: this variant is broken"
    # Neither the repeat nor the next stage of a broken variant are worth the GPU hours.
    for run in ("broken/weak/1x1/r2", "broken/weak/2x1/r1"):
        assert checkout.record(run)["failure"]["verdict"] == "not run"
    assert checkout.record("default/weak/2x1/r2")["status"] == "ok"

    before = checkout.run_times()
    checkout.without_torch()
    climbed = checkout.snakemake("stage3", *ALL)
    assert climbed.returncode == 0, climbed.stdout
    after = checkout.run_times()
    assert {run.split("/")[0] for run in after if after[run] != before.get(run)} == {"broken"}
    assert checkout.record("broken/weak/1x1/r2")["status"] == "ok"
    assert (checkout.results / "runs/broken/weak/1x1/r1/attempts/1/ranks/rank0.json").exists()
