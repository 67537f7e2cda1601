"""The entries of jobs in generated campaigns: they add up to what each job held, and each owner has its seconds.

A campaign is some jobs of a scale, one after the other, each with runs that end well, lose a file of a rank, or are
killed with their job. Those of chains are in tests/unit/production/test_final_report.py.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import read_json, write_json
from ddp_ladder.ledger import jobs
from ddp_ladder.ledger.entries import IDLE, PREFLIGHT, TRAINING, Ledger
from ddp_ladder.ledger.jobs import Accounted, JobRow, begun_at, job_files, ledger_of, starts_of, update
from ddp_ladder.measuring.owners import END, LAUNCHER, NOT_TOLD_APART, SAVING, STARTUP, VALIDATION
from hypothesis import given, settings
from hypothesis import strategies as st
from make_jobs import write_job
from make_preflight import write_preflight
from make_records import make_plan_of, make_spec
from make_runs import LOOP_AT_S, STARTED_AT_S, STARTUP_S, edit, end_run, write_loop, write_run

SPEC, NAME = make_spec("1x2"), "1x2-ddp-ladder-0123456789-0123456789"
LAUNCH_S, ENDING_S, STEP_S = 0.1, 0.3, 0.5  # before the ranks of a run, after their last step, of a step
NEAR_S = 0.02  # ends of steps are kept in milliseconds


@dataclass(frozen=True)
class Ran:
    """A run. before_s: idle before it; pause: before its fourth step; after_s: from the end of its ranks to its own."""

    before_s: float
    steps: int
    pause: tuple[str, float]
    after_s: float
    end: str  # well, lost: a rank's file is gone, killed: with its job, in its start-up

    @property
    def wall_s(self) -> float:
        loop_s = (self.steps - 1) * STEP_S + self.pause[1]
        return LAUNCH_S + STARTUP_S + loop_s + ENDING_S + self.after_s

    @property
    def owners_s(self) -> dict[str, float]:
        paused = {"validation": VALIDATION, "save": SAVING}[self.pause[0]]
        loop_s = {NOT_TOLD_APART: (self.steps - 1) * STEP_S, paused: self.pause[1], END: ENDING_S}
        return {LAUNCHER: LAUNCH_S + self.after_s, STARTUP: STARTUP_S, **loop_s}


@dataclass(frozen=True)
class Job:
    """A job. after_s: idle after its last run; clock_s: that of its node is wrong by; gpus: that it held."""

    runs: tuple[Ran, ...]
    after_s: float
    clock_s: float
    gpus: int
    is_known: bool  # to sacct
    preflight_s: float  # 0: there was none

    @property
    def elapsed_s(self) -> float:
        return 1.0 + self.preflight_s + math.fsum(run.before_s + run.wall_s for run in self.runs) + self.after_s

    def owners_s(self, in_allocation: bool) -> dict[str, float]:
        """Of a run that was killed in its start-up, nothing tells which start in an allocation made it."""
        found = Counter({PREFLIGHT: self.preflight_s})
        for run in self.runs:
            if run.end == "well":
                found.update(run.owners_s)
        if self.runs and self.runs[-1].end == "killed" and not in_allocation:
            ended_s = math.fsum(run.wall_s for run in self.runs if run.end != "killed")
            found[STARTUP] += self.elapsed_s - self.preflight_s - ended_s
        found[IDLE] = self.elapsed_s - math.fsum(found.values())
        return dict(found)


@st.composite
def campaigns(draw: st.DrawFn) -> tuple[list[Job], bool]:
    """Jobs of their own, or several starts in one allocation."""
    in_allocation = draw(st.booleans())
    runs = st.builds(
        Ran,
        st.floats(0.0, 9.0),
        st.integers(4, 12),
        st.tuples(st.sampled_from(["validation", "save"]), st.floats(0.1, 5.0)),
        st.floats(0.5, 7.0),
        st.sampled_from(["well", "well", "lost"]),
    )
    killed = st.builds(Ran, st.floats(0.0, 9.0), st.just(4), st.just(("save", 0.0)), st.just(1.0), st.just("killed"))
    found = []
    for number in range(draw(st.integers(2, 3))):
        ran = draw(st.lists(runs, max_size=2)) + draw(st.lists(killed, max_size=1))
        clock_s = 0.0 if in_allocation else draw(st.sampled_from([0.0, 0.0, -2.6e6, 2.6e6]))
        preflight_s = draw(st.sampled_from([7.0, 0.0])) * (number == 0)
        is_known = not in_allocation and not clock_s and draw(st.booleans())
        gpus = draw(st.sampled_from([2, 4]))
        found.append(Job(tuple(ran), draw(st.floats(0.0, 60.0)), clock_s, gpus, is_known, preflight_s))
    return found, in_allocation


def write_ran(results: Path, repeat: int, ran: Ran, begun_s: float, job: str) -> None:
    run = write_run(results, SPEC.replace(repeat=repeat))
    run.record.unlink()
    ended_s = LOOP_AT_S
    for rank in (0, 1):
        ended_s = write_loop(run, rank, steps_s=[STEP_S] * ran.steps, pauses={4: ran.pause}, end_s=ENDING_S)
    end_run(run, ended_s, ran.after_s)
    for path in (run.run, run.ended, *run.ranks.glob("*.json"), *run.nodes.glob("*.json")):
        edit(path, lambda file: file["job"].update(id=job))
    moved_s = begun_s - STARTED_AT_S
    edit(run.ended, lambda end: end.update({key: end[key] + moved_s for key in ("started_at_s", "ended_at_s")}))
    if ran.end == "lost":
        (run.ranks / "rank1.json").unlink()
    if ran.end == "killed":
        run.ended.unlink()
        shutil.rmtree(run.ranks)
        run.ranks.mkdir()


def write_campaign(results: Path, made: list[Job], in_allocation: bool) -> dict[str, Accounted]:
    """Write its files; return what sacct knows."""
    known, begun_s, repeat = {}, STARTED_AT_S, 0
    for number, job in enumerate(made, start=1):
        job_id = "41" if in_allocation else str(40 + number)
        begun_at_s = begun_s + job.clock_s
        if job.preflight_s:
            write_preflight(results, make_plan_of([SPEC]).jobs[0])
            times = {"started_at_s": begun_at_s + 1, "took_s": job.preflight_s}
            path = results / "preflight/1x2.json"
            preflight = read_json(path)
            write_json(path, {**preflight, **times, "job": {**preflight["job"], "id": job_id}})
        now_s = begun_at_s + 1 + job.preflight_s
        for ran in job.runs:
            repeat += 1
            write_ran(results, repeat, ran, now_s + ran.before_s, job_id)
            now_s += ran.before_s + ran.wall_s
        ended_at_s = None if job.is_known else begun_at_s + job.elapsed_s
        times = {"begun_at_s": begun_at_s, "ended_at_s": ended_at_s, "gpus_allocated": job.gpus}
        name = f"{job_id}.{number}" if in_allocation and number > 1 else job_id
        write_job(results, name, job_id=job_id, in_allocation=in_allocation, number=number, **times)
        begun_s += job.elapsed_s + 60
        if job.is_known:
            figures = {
                "source": "sacct", "state": "COMPLETED", "ended_at": jobs._utc(begun_s), "queue_wait_s": 60.0,
                "elapsed_s": job.elapsed_s, "nodes": 1, "node_list": "node1", "gpus": job.gpus,
            }  # fmt: skip
            known[job_id] = Accounted(NAME, begun_s - 60, figures)
    return known


def ledgers(results: Path, rows: tuple[JobRow, ...]) -> Iterator[tuple[JobRow, Ledger]]:
    files = {path.stem: file for path, file in job_files(results)}
    for row in rows:
        file = files[row.job_id]
        starts = starts_of(RunRecords(results), begun_at(results, file.scale), file, file.begun_at_s + row.elapsed_s)
        yield row, ledger_of(results, file, starts, (row.elapsed_s, row.gpus))


@settings(deadline=None, max_examples=30)
@given(campaigns())
def test_the_entries_of_jobs_are_those_of_the_campaign(campaign: tuple[list[Job], bool]) -> None:
    """Kills, lost files, wrong clocks, several starts in one allocation, nodes held whole by a job of a part."""
    made, in_allocation = campaign
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        results = Path(directory) / "results"
        known = write_campaign(results, made, in_allocation)
        patched.setattr(jobs, "ask_sacct", lambda ids: {job_id: known[job_id] for job_id in ids if job_id in known})
        rows = {row.job_id: row for row in update(results)}
        found = dict(zip(rows, ledgers(results, tuple(rows.values())), strict=True))
    assert len(found) == len(made)
    for number, job in enumerate(made, start=1):
        name = "41" if in_allocation and number == 1 else f"41.{number}" if in_allocation else str(40 + number)
        row, ledger = found[name]
        assert math.fsum(entry.seconds for entry in ledger.entries) == pytest.approx(job.elapsed_s)
        truth = job.owners_s(in_allocation)
        told = {owner: ledger.seconds(owner) for owner in truth}
        assert told == pytest.approx(truth, abs=NEAR_S), job
        assert row.source == ("sacct" if job.is_known else "none")
        assert row.gpu_hours_held == pytest.approx(job.elapsed_s * job.gpus / 3600)
        training_s = math.fsum(truth.get(owner, 0.0) for owner in TRAINING)
        assert row.gpu_hours_training == pytest.approx(training_s * 2 / 3600, abs=NEAR_S)
        told = {PREFLIGHT: row.preflight_s, STARTUP: row.startup_s, LAUNCHER: row.launcher_s, END: row.end_s}
        assert told == pytest.approx({owner: truth.get(owner, 0.0) for owner in told}, abs=NEAR_S)
        assert row.runs_measured == sum(run.end != "killed" for run in job.runs)
