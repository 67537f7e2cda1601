"""Further repeats: a job goes on until its figures are known, its maximum is reached, or its time holds no more."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.climb.ladder import restore_records, runs_to_do
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.gates.gate import judge
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.plan.text import plan_text
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run import job as scale_job
from ddp_ladder.run.job import Context, RunsSoFar, run_scale
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.settings.terms import Scale
from make_records import make_plan_of, make_specs
from make_runs import edit, reassemble, write_run

ONE, TWO = Scale(1, 1), Scale(1, 2)
TOOK_S = 100.0
Rate = Callable[[RunSpec], float]


def quiet(spec: RunSpec) -> float:
    return 1000.0 * spec.gpus * (1 + 0.0005 * (-1) ** spec.repeat)


def noisy(spec: RunSpec) -> float:
    """Its throughput is known to 30 % after three repeats, and to 7 % after eight."""
    return quiet(spec) * (1.08 if spec.repeat % 2 else 0.92)


def noisy_at_first(spec: RunSpec) -> float:
    return quiet(spec) * (1.03 if spec.repeat == 1 else 1.0)


def adaptive(at_least: int = 3, at_most: int = 8, until_percent: float = 3.0, **changes: object) -> Plan:
    specs = make_specs(("1x1", "1x2"), repeats=at_most, **changes)  # type: ignore[arg-type]
    plan = make_plan_of(specs, min_efficiency=None)

    def of(job: ScaleJob) -> ScaleJob:
        runs, more = (tuple(run for run in job.runs if (run.repeat <= at_least) is side) for side in (True, False))
        return replace(job, runs=runs, more=more, until_percent=until_percent)

    return replace(plan, jobs=tuple(map(of, plan.jobs)))


class Job:
    """Jobs of a scale whose runs take no time but by their own clock. made: the runs that were started, in turn."""

    def __init__(self, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.results, self.made, self.said, self.ends = results, list[str](), "", dict[str, Callable[[Path], None]]()
        self._now_s, self.number = 0.0, 0
        self._rate: Rate = quiet
        monkeypatch.setattr(scale_job, "time", SimpleNamespace(monotonic=lambda: self._now_s))
        monkeypatch.setattr(scale_job, "run_on_free_port", self._run)

    def run(self, plan: Plan, scale: Scale, rate: Rate = quiet, time_s: float = 1e6) -> list[str]:
        """Make a job of a scale in this time; return the runs that it made: ``default r1``."""
        said, self.made, self._rate, self.number = io.StringIO(), [], rate, self.number + 1
        made = as_made(plan, RunRecords(self.results))
        until_s = self._now_s + time_s
        context = Context(made.job(scale), self.results, ThisMachine("job"), until_s, RunConsole(1, said))
        with closing(context.assembler):
            run_scale(context, made, {})
        self.said = said.getvalue()
        return self.made

    def _run(self, context: Context, directory: RunDirectory, spec: RunSpec, runs: RunsSoFar) -> Record:
        assert self._now_s + TOOK_S <= context.deadline_s, f"{spec.name} would be cut off"
        self._now_s += TOOK_S
        self.made.append(f"{spec.variant} r{spec.repeat}")
        write_run(self.results, spec, self._rate(spec))
        for file in directory.path.rglob("*.json"):
            if file != directory.record:
                edit(file, lambda data: data.get("job", {}).update(id=f"{self.number}"))  # not in checked.json
        edit(directory.ended, lambda end: end.update(started_at_s=end["ended_at_s"] - TOOK_S))
        self.ends.get(spec.name, lambda path: None)(directory.path)
        return reassemble(directory)

    def due(self, plan: Plan) -> dict[str, list[int]]:
        found = runs_to_do(plan, RunRecords(self.results))
        return {scale: [run.repeat for run in runs] for scale, runs in found.items()}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path / "results", monkeypatch)


def repeats(*numbers: int) -> list[str]:
    return [f"default r{k}" for k in numbers]


def test_it_ends_as_soon_as_its_figure_is_known(job: Job) -> None:
    plan = adaptive()
    assert job.due(plan) == {"1x1": [1, 2, 3], "1x2": [1, 2, 3]}
    assert job.run(plan, ONE) == repeats(1, 2, 3)
    assert "3 of at most 8 repeats, each known to 3 %, or clear of the gate" in job.said
    assert job.run(plan, TWO, noisy_at_first) == repeats(1, 2, 3, 4)
    assert job.due(plan) == {}
    record = job.results / "runs/default/weak/1x2/r4/record.json"
    record.unlink()
    assert [*restore_records(plan, RunRecords(job.results))] == [record]
    assert judge(plan, "stage2", job.results).is_open


def test_it_ends_at_the_maximum(job: Job) -> None:
    plan = adaptive()
    job.run(plan, ONE)
    assert job.run(plan, TWO, noisy) == repeats(*range(1, 9))
    assert job.due(plan) == {}
    verdict = judge(plan, "stage2", job.results)
    assert judge(as_made(plan, RunRecords(job.results)), "stage2", job.results) == verdict
    assert next(point for point in verdict.points if point.scale == TWO).repeats == 8


def test_a_repeat_that_the_time_does_not_hold_is_made_by_the_next_start(job: Job) -> None:
    plan = adaptive(variants=["default", "b"])
    job.run(plan, ONE)
    made = job.run(plan, TWO, noisy, time_s=9.5 * TOOK_S)
    assert made == [f"{name} r{k}" for k in (1, 2, 3, 4) for name in ("default", "b")]
    assert "another repeat takes about 3 min 40 s, and the job has 2 min 30 s left" in job.said
    assert not (job.results / "runs/default/weak/1x2/r5").exists()
    assert judge(plan, "stage2", job.results).is_open
    assert job.due(plan) == {"1x2": [5, 5]}
    assert "2 to 8" in plan_text(
        as_made(plan, RunRecords(job.results)), ["stage2"], runs_to_do(plan, RunRecords(job.results))
    )
    assert job.run(plan, TWO, noisy) == [f"{name} r{k}" for k in (5, 6, 7, 8) for name in ("default", "b")]


def test_an_efficiency_that_clears_its_threshold_is_known_well_enough(job: Job) -> None:
    plan = adaptive()
    plan = replace(plan, gates={**plan.gates, "stage2": plan.gates["stage2"].replace(min_efficiency=0.5)})
    job.run(plan, ONE)
    assert job.run(plan, TWO, noisy) == repeats(*range(1, 4))
    near = replace(plan, gates={**plan.gates, "stage2": plan.gates["stage2"].replace(min_efficiency=0.95)})
    assert job.due(near) == {"1x2": [4]}


def test_other_bounds_measure_only_what_is_missing(job: Job) -> None:
    job.run(adaptive(at_least=3, at_most=3), ONE)
    job.run(adaptive(at_least=3, at_most=3), TWO, noisy_at_first)
    assert job.due(adaptive(at_least=3, at_most=3)) == {}
    assert job.due(adaptive(until_percent=10)) == {}
    assert job.due(adaptive()) == {"1x2": [4]}
    assert job.run(adaptive(), TWO, noisy_at_first) == repeats(4, 5)  # one repeat says little of another job's noise
    assert job.due(adaptive(until_percent=0.1)) == {"1x1": [4], "1x2": [6]}
    fewer = adaptive(at_least=2, at_most=2)
    assert job.due(fewer) == {}
    assert next(point for point in judge(fewer, "stage2", job.results).points if point.scale == TWO).repeats == 2


def test_a_further_repeat_that_failed_counts_as_any_run_and_is_made_again(job: Job) -> None:
    def fail(path: Path) -> None:
        edit(path / "ranks/rank1.json", lambda end: end.update(exit_code=3))

    plan = adaptive(variants=["default", "b"])
    job.run(plan, ONE)
    job.ends["b/weak/1x2/r4"] = fail
    assert job.run(plan, TWO, noisy)[-2:] == ["default r7", "default r8"]  # the others get the time
    verdict = judge(plan, "stage2", job.results)
    assert verdict.variants == {"default": "open", "b": "closed"}
    assert job.due(plan) == {"1x2": [4]}
    job.ends.clear()
    assert job.run(plan, TWO, noisy) == [f"b r{k}" for k in (4, 5, 6, 7, 8)]


def test_a_variant_that_fails_in_a_further_repeat_ends_those_of_all_its_modes_and_no_others(job: Job) -> None:
    plan = adaptive(at_most=5, variants=["default", "b"], modes=["weak", "strong"])
    job.run(plan, ONE)
    job.ends["b/weak/1x2/r4"] = lambda path: edit(path / "ranks/rank1.json", lambda end: end.update(exit_code=3))
    made = job.run(plan, TWO, noisy)
    assert made[-5:] == ["default r4", "b r4", "default r4", "default r5", "default r5"]
    assert "5 of at most 5 repeats; default weak: known to" in job.said
    assert not (job.results / "runs/b/strong/1x2/r4/record.json").exists()


def test_a_planned_repeat_is_not_started_to_be_cut_off(job: Job) -> None:
    plan = adaptive(at_least=3, at_most=3)
    assert job.run(plan, ONE, time_s=2.5 * TOOK_S) == repeats(1, 2)
    failure = read_record(job.results / "runs/default/weak/1x1/r3/record.json").failure
    assert failure
    assert (failure.verdict, failure.why) == ("not run", "the job had 50 s left for it, and it takes about 1 min 50 s")
    assert job.due(plan)["1x1"] == [3]
