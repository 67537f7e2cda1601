"""measure.profile_steps with real ranks over Gloo: the trace, and figures without the profiled steps."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.records.raw_models import Profiling
from ddp_ladder_instrument.stop import EndOfMeasurement, ProfiledSteps, RunLimits
from instrument_support import TORCHRUN, Ran, oldest_python, run, script

MEASURED, PROFILED = 12, 3
SLEEP_S = 0.03
TRAIN = f"""
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    steps = int(sys.argv[1])
    model = torch.nn.Linear(64, 64)
    rank = int(os.environ.get("RANK", 0))
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in DataLoader(TensorDataset(torch.randn(4 * steps, 64)), batch_size=4):
        if rank == 0:
            time.sleep({SLEEP_S})
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    print("the script ended by itself")
"""


def profiling(done: Ran, rank: int) -> Profiling:
    return Profiling.from_json(json.loads(done.path(rank, "profile.json").read_text()))


def trace(done: Ran, rank: int) -> list[dict[str, Any]]:
    content = json.loads(gzip.decompress(done.path(rank, "trace.json.gz").read_bytes()))
    return list(content["traceEvents"])


def test_profiled_steps_follow_the_measured_ones_and_are_in_no_figure(tmp_path: Path) -> None:
    """With the oldest torch; the newest one is in tests/workflow/test_profiled_runs.py."""
    words = [script(tmp_path, TRAIN), 100]
    limits = {"warmup_steps": 2, "max_steps": MEASURED, "profile_steps": PROFILED}
    done = run(tmp_path, *words, launcher=TORCHRUN, python=oldest_python(), **limits)
    assert done.code == 0, done.err
    assert "the script ended by itself" not in done.out
    for rank in (0, 1):
        record, rows = done.rank(rank), done.rows(rank)
        assert (len(rows), record["steps"]["count"], record["ended_by"]) == (MEASURED, MEASURED, "max_steps")
        assert record["training_s"] == pytest.approx(rows[-1]["ended_at_s"] - rows[0]["ended_at_s"], abs=0.01)
        steps = [each for each in trace(done, rank) if each["name"].startswith("ProfilerStep#")]
        assert len(steps) == PROFILED
        found = profiling(done, rank)
        assert (found.problem, found.rank) == (None, rank)
        assert found.took_s > sum(each["dur"] for each in steps) * 1e-6 > PROFILED * SLEEP_S
    left = {path.name for path in (done.directory / "ranks").iterdir()}
    ends = ("steps", "json", "log", "profile.json", "trace.json.gz")
    assert left == {f"rank{rank}.{end}" for rank in (0, 1) for end in ends}


def fail() -> None:
    raise RuntimeError("Profiler is already enabled on this thread")


def test_a_rank_whose_profiler_fails_makes_as_many_steps_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    profiled = ProfiledSteps(PROFILED, lambda: begun.append(1))
    monkeypatch.setattr(profiled, "_step", fail)
    limits = RunLimits(MEASURED, None, lambda: None, profiled.go_on)
    step = limits.first_check
    with contextlib.suppress(EndOfMeasurement):
        while limits.check(step, 0.0) == step + 1:
            step += 1
    assert (step, begun) == (MEASURED + 1 + PROFILED, [1])  # one more, in which the profiler starts
    profiled.write(tmp_path, {"rank": 4}, device_answers=True)
    assert "already enabled" in json.loads((tmp_path / "rank4.profile.json").read_text())["problem"]


def test_a_failed_rank_leaves_no_profile(tmp_path: Path) -> None:
    profiled = ProfiledSteps(PROFILED, lambda: None)
    profiled.write(tmp_path, {"rank": 0}, device_answers=False)
    assert not list(tmp_path.iterdir())
