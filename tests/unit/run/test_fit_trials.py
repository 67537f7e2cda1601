"""What a trial of the search for the batch per GPU shows, by its record."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest
from ddp_ladder.plan.plan import Plan, make_plan
from ddp_ladder.plan.short_runs import Trial, trials_file
from ddp_ladder.records.record import FailureKind, Record
from ddp_ladder.run import short_runs
from ddp_ladder.run.job import Context
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.run.short_runs import NoBatch, choose_batch, trial_of
from ddp_ladder.settings.load import load_settings
from make_records import make_failed_record, make_record, make_spec

CONTEXT = cast(Context, type("Job", (), {"label": "stage1 1x1"}))
SPEC = make_spec("1x1", device="cuda")


def failed(kind: FailureKind | None) -> Record:
    record = make_failed_record(SPEC)
    assert record.failure
    return record.replace(failure=record.failure.replace(kind=kind, why="it ended", next="look"))


def test_a_batch_that_fits_has_its_figures() -> None:
    record = make_record(SPEC)
    trial = trial_of(record, CONTEXT, Path("fit"), ())
    assert record.throughput
    assert (trial.fits, trial.samples_per_s) == (True, record.throughput.samples_per_s)
    assert (trial.peak_memory_bytes, trial.memory_headroom_fraction) == (9_800_000_000, 0.75)


@pytest.mark.parametrize(
    ("kind", "outcome", "why"),
    [
        ("out of memory", "out of memory", "it ended"),
        ("killed", "out of memory", "it ended, as by the kernel's out-of-memory killer"),
        ("too few steps", "too little data", "it ended"),
        ("probably out of memory", "out of memory", "it ended"),
    ],
)
def test_failures_that_are_results_of_a_search(kind: FailureKind, outcome: str, why: str) -> None:
    less = Trial(batch_per_gpu=SPEC.batch_per_gpu // 2, outcome="fits")
    trial = trial_of(failed(kind), CONTEXT, Path("fit"), [less])
    assert (trial.outcome, trial.why.rpartition(": ")[2]) == (outcome, why)


@pytest.mark.parametrize("kind", [None, "probably out of memory"])
def test_any_other_failure_ends_the_search_with_its_next_step(kind: FailureKind | None) -> None:
    with pytest.raises(NoBatch, match=r"the trial of batch .* failed: the script raised an exception") as found:
        trial_of(failed(kind), CONTEXT, Path("results/fit/8"), ())
    assert found.value.next_step == "look"
    assert "results/fit/8" in found.value.why


def test_a_search_at_the_end_of_its_time_names_the_key_and_the_best_batch_so_far_and_keeps_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = {"batch_per_gpu": {"from": 8, "to": 512}}
    plan = make_plan(load_settings(Path("config/config.yaml"), Path("config/sites/local.yaml"), {"workload": workload}))
    left_s, tried = [100.0], list[int]()

    class Job(Context):
        @property
        def left_s(self) -> float:
            return left_s[0]

    def take_30_s(_context: Context, _plan: Plan, batch: int, _before: object) -> Trial:
        left_s[0] -= 30.0
        tried.append(batch)
        return Trial(batch_per_gpu=batch, outcome="fits", samples_per_s=1000.0)

    monkeypatch.setattr(short_runs, "_tried", take_30_s)
    context = Job(plan.jobs[0], tmp_path, ThisMachine("1"), 0.0, RunConsole(1, io.StringIO()))
    with pytest.raises(NoBatch, match="the search needs more time: a trial takes 30 s, 10 s are left") as found:
        choose_batch(context, plan)
    assert found.value.next_step == (
        "raise stages.stage1.runtime and start snakemake again: the trials are kept; "
        "or take the best so far, workload.batch_per_gpu: 8"
    )
    left_s[0] = 1000.0
    assert choose_batch(context, plan).chosen == 8
    assert tried == [8, 16, 32, 64, 128, 256, 512]
    assert not trials_file(tmp_path).exists()
