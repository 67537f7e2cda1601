"""The runs that follow their batches, in the job of the first scale: what they leave, whatever becomes of them."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.plan.plan import Plan, RunSpec, WitnessLimits
from ddp_ladder.records.record import FailureKind, Record
from ddp_ladder.records.witness import Witness, Witnesses, missing_witnesses, read_witness, witness_file
from ddp_ladder.run import short_runs
from ddp_ladder.run.job import Context
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.run.short_runs import make_witnesses
from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import Log
from make_records import BATCH_PER_GPU, make_failed_record, make_plan_of, make_specs
from make_runs import STARTED_AT_S, STEPS, edit, edit_rank, reassemble, write_run

PLACE = {
    "lines": ["/home/me/train.py:12", "0123abcd"], "passes": 2, "passes_that_train": 2, "batches": STEPS,
    "trained": STEPS, "samples": STEPS * BATCH_PER_GPU, "samples_trained": STEPS * BATCH_PER_GPU,
    "sizes": {"64": STEPS}, "batches_of_a_step": {"1": STEPS}, "targets": 0, "shares": [1.0, 1.0],
}  # fmt: skip
TESTIMONY: dict[str, Any] = {
    "schema_version": 1, "steps": STEPS, "samples": [BATCH_PER_GPU] * STEPS, "optimizers": {"0": STEPS},
    "retrained": 0, "places": [PLACE], "doubts": {}, "not_followed": {}, "steps_in_a_row": 1,
    "flops": {"why": "no matrix product was seen"},
}  # fmt: skip


def write_log(run: RunDirectory) -> None:
    """Write rank 0's log: each step trains on a batch."""
    events, now_s = Log(), 100.0
    events.add(log.RANK, now_s, now_s, 0, STARTED_AT_S, log.FORMAT)
    events.add(log.PASS, now_s, now_s, 1, 0, -1, -1)
    events.add(log.MADE, now_s, now_s, 1)
    events.add(log.PLACE, now_s, now_s, 1, 0)
    for _ in range(STEPS):
        events.add(log.DRAW, now_s, now_s, 1, BATCH_PER_GPU, 0, -1)
        now_s += 0.01
        events.add(log.BACKWARD, now_s, now_s)
        events.add(log.STEP, now_s, now_s, 0, 0, 0, -1)
    events.add(log.OVER, now_s, now_s)
    (run.ranks / "rank0.log").write_bytes(events.to_bytes())
    edit_rank(run, 0, log={"samples_per_step": None, "places": [PLACE["lines"]]})


class Script:
    """Stands in for the run under the mode: it leaves the files of a good run, and what rank 0 has seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.testimony: dict[str, Any] | None = TESTIMONY
        self.failure: FailureKind | None = None
        self.specs: list[RunSpec] = []
        monkeypatch.setattr(short_runs, "run_on_free_port", self.run)

    def run(self, context: Context, directory: RunDirectory, spec: RunSpec, _runs: object) -> Record:
        assert context.is_witness
        self.specs.append(spec)
        run = write_run(context.results, spec, fingerprint={"torch": "2.9.0"})
        assert run.path == directory.path
        write_log(run)
        if self.testimony is not None:
            write_json(run.ranks / "rank0.witness.json", self.testimony)
        if self.failure is None:
            return reassemble(run)
        record = make_failed_record(spec)
        assert record.failure
        return record.replace(failure=record.failure.replace(kind=self.failure, verdict="CUDA out of memory"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


@pytest.fixture
def job(tmp_path: Path) -> tuple[Context, Plan, io.StringIO]:
    """A job of the first scale, with the time of its stage left."""
    plan = make_plan_of(make_specs(["1x1", "1x2"], modes=["weak", "strong"]))
    first, *others = plan.jobs
    plan = replace(plan, jobs=(replace(first, witness=WitnessLimits(steps=50, seconds=60)), *others))
    write_json(tmp_path / "plan.json", plan.to_json())
    said = io.StringIO()
    context = Context(plan.jobs[0], tmp_path, ThisMachine("1"), time.monotonic() + 1200, RunConsole(1, said))
    return context, plan, said


def made(context: Context, plan: Plan) -> Witness:
    make_witnesses(context, plan)
    found = read_witness(witness_file(context.results, "default"))
    assert found is not None
    return found


def test_it_is_said_kept_and_told_in_the_record_of_every_run(
    job: tuple[Context, Plan, io.StringIO], script: Script
) -> None:
    context, plan, said = job
    seen = made(context, plan)
    assert (seen.status, seen.why, seen.steps, seen.torch) == ("witnessed", "", STEPS, "2.9.0")
    counted = {"counted": STEPS * BATCH_PER_GPU}
    assert [place.model_dump(mode="json") for place in seen.places] == [{**PLACE, **counted}]
    (spec,) = script.specs
    assert (spec.max_steps, spec.max_seconds) == (50, 60)
    before, after = said.getvalue().splitlines()
    assert "witness of default: follows each batch to the parameters, for 50 steps or 2 passes, at most 2 min" in before
    assert "1.4 to 7.5 times slower, and nothing is timed" in before
    assert f"witness of default: witnessed, {STEPS} steps in 0 s: /home/me/train.py:12: {STEPS} batches, " in after
    make_witnesses(context, plan)
    assert len(script.specs) == 1
    for run in plan.runs:
        told = Witnesses(context.results).told(run)
        assert told is not None
        assert (told.status, told.places) == ("witnessed", seen.places)
    write_run(context.results, spec)
    edit(RunDirectory(context.results / "runs" / spec.name).run, lambda run: run.update(witness=told.model_dump()))
    assert reassemble(RunDirectory(context.results / "runs" / spec.name)).witness == told


def test_a_count_that_is_not_what_changed_the_parameters_differs_with_both_sums(
    job: tuple[Context, Plan, io.StringIO], script: Script
) -> None:
    script.testimony = {**TESTIMONY, "samples": [BATCH_PER_GPU // 2] * STEPS}
    seen = made(*job[:2])
    half, all_ = STEPS * BATCH_PER_GPU // 2, STEPS * BATCH_PER_GPU
    why = f"in {STEPS} steps the witness saw {half:,} samples that were trained on, where the rules count {all_:,}"
    assert (seen.status, seen.why) == ("differs", why)


@pytest.mark.parametrize(
    ("failure", "testimony", "why"),
    [
        ("out of memory", TESTIMONY, "CUDA out of memory"),
        ("time limit", None, "it had not ended after 2 min 00 s; raise measure.witness_s"),
        (None, None, "rank 0 left no account of its batches"),
        (None, {"steps": 3}, "what rank 0 has seen cannot be read"),
        (None, {**TESTIMONY, "not_followed": {"a kernel that no dispatcher shows": 3}}, "a kernel that no dispatcher"),
        (None, {**TESTIMONY, "samples": [0], "doubts": {"data of no loader": 3}}, "data of no loader"),
    ],
)
def test_what_fails_is_no_failure_of_the_job_and_is_tried_again_by_the_next_one(
    job: tuple[Context, Plan, io.StringIO],
    script: Script,
    failure: FailureKind | None,
    testimony: dict[str, Any] | None,
    why: str,
) -> None:
    context, plan, said = job
    script.failure, script.testimony = failure, testimony
    seen = made(context, plan)
    assert seen.status == "not followed"
    assert seen.why.startswith(why)
    assert f"witness of default: not followed ({why}" in said.getvalue()
    script.failure, script.testimony = None, TESTIMONY
    assert made(context, plan).status == "witnessed"


def test_it_has_a_part_of_the_time_and_needs_some(job: tuple[Context, Plan, io.StringIO], script: Script) -> None:
    context, plan, _ = job
    made(replace(context, deadline_s=time.monotonic() + 80), plan)
    assert script.specs[0].max_seconds == pytest.approx(10, abs=0.5)
    witness_file(context.results, "default").unlink()
    seen = made(replace(context, deadline_s=time.monotonic() + 30), plan)
    assert (seen.status, len(script.specs)) == ("not followed", 1)
    assert seen.why.startswith("no time: the job had 30 s left; raise stages.stage1.runtime")


def test_a_run_is_told_why_it_has_no_witness(job: tuple[Context, Plan, io.StringIO], script: Script) -> None:
    context, plan, _ = job
    spec, results = plan.runs[0], context.results

    def told(**changes: Any) -> str | None:
        found = Witnesses(results).told(spec.replace(**changes))
        return found and found.status

    assert told() == "not made"
    made(context, plan)
    assert told() == "witnessed"
    assert told(launcher="srun", interface="eth0", repeat=3) == "witnessed"
    assert told(args_template=("--workers", "2")) == told(script="workflow/workloads/mlp.py") == "not made"
    assert told(stage="production") is told(throughput_regex="(.*)") is None
    witness_file(results, "default").write_text("{")
    assert told() == "not made"
    assert [run.variants for run in missing_witnesses(plan, results)] == [("default",)]
    edited = json.loads((results / "plan.json").read_text())
    edited["jobs"][0]["witness"] = None
    write_json(results / "plan.json", edited)
    assert told() == "off"
