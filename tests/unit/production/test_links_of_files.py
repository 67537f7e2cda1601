"""What the files of a chain tell of its links."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.assembly.assemble import not_run
from ddp_ladder.common.files import Agent, RunDirectory, write_json
from ddp_ladder.plan.plan import Hours, Plan
from ddp_ladder.production import chain
from ddp_ladder.production.chain import Link, keep_links, read_links
from ddp_ladder.records.packed import pack
from ddp_ladder.records.record import write_record
from ddp_ladder.slurm.jobs import JobEnd, write_job_end
from make_jobs import LINK, make_chain, make_row, write_job
from make_records import make_plan_of, make_spec
from make_runs import STARTED_AT_S, STEPS, edit, edit_rank, write_run

SPEC = make_spec("2x1", stage="production")
PLAN: Plan = make_plan_of([SPEC])
HOUR_S = 3600.0


def begin(results: Path, job: int, begun_at_s: float = 0.0, ended_at_s: float | None = None, **more: Any) -> None:
    until_s = None if ended_at_s is None else STARTED_AT_S + ended_at_s
    times = {"begun_at_s": STARTED_AT_S + begun_at_s, "ended_at_s": until_s}
    write_job(results, str(job), job_id=str(job), **{**LINK, "scale": "2x1", "nodes": 2}, **times, **more)


def start(results: Path, job: int, attempt: int = 1, begun_at_s: float = 0.0) -> RunDirectory:
    """Write the files of a start of the script, and move those of the one before."""
    directory = RunDirectory(results / "runs" / SPEC.name)
    if directory.run.exists():
        shutil.move(directory.path, results / "before")
        shutil.copytree(results / "before", directory.attempts / str(attempt - 1), dirs_exist_ok=True)
        shutil.rmtree(results / "before")
    run = write_run(results, SPEC)
    for path in (*run.path.glob("*.json"), *run.ranks.glob("*.json"), *run.nodes.glob("*.json")):
        if "job" in json.loads(path.read_text()):
            edit(path, lambda data: data["job"].update(id=str(job), attempt=attempt))
    edit(run.ended, lambda end: end.update(started_at_s=STARTED_AT_S + begun_at_s, ended_at_s=STARTED_AT_S + 400))
    run.record.unlink()
    return run


def lose(run: RunDirectory, *ranks: int) -> None:
    """Delete what ranks, and the job, would have written at their ends."""
    for path in (run.ended, *(path for rank in ranks for path in run.ranks.glob(f"rank{rank}.*"))):
        path.unlink()


def links_at(results: Path, seconds: float = 100.0, **options: Any) -> tuple[Link, ...]:
    return read_links(results, PLAN, STARTED_AT_S + seconds, **options)


def show(run: RunDirectory, saves: int) -> None:
    progress = {"step": 9, "saves": saves, "samples_per_s": None, "elapsed_s": 1.0, "updated_at_s": STARTED_AT_S}
    write_json(run.progress, progress)


@pytest.mark.parametrize(
    ("shown", "lost", "saves"),
    [(3, (0, 1), 3), (0, (0, 1), None), (0, (0,), 0), (None, (0, 1), None), (None, (1,), None)],
)
def test_the_saves_of_killed_ranks(tmp_path: Path, shown: int | None, lost: tuple[int, ...], saves: int | None) -> None:
    """Rank 0's progress tells of its saves, not of another rank's."""
    begin(tmp_path, 7)
    run = start(tmp_path, 7)
    phases = {"epoch_steps": [1], "validations_s": [], "saves_s": []}
    for rank in (0, 1):
        edit_rank(run, rank, phases=phases)
    lose(run, *lost)
    if shown is not None:
        show(run, shown)
    (link,) = links_at(tmp_path)
    assert (link.end, link.saves) == ("failed", saves)
    assert link.steps == (STEPS if len(lost) == 1 else 0 if shown is None else 9)
    if shown is None and len(lost) == 2:  # a program that reports its own steps
        (run.ranks / "metrics0.jsonl").touch()
        assert links_at(tmp_path)[0].steps is None
        pack(run, Agent(0), [0])
        assert links_at(tmp_path)[0].steps is None


def test_hours_are_of_the_gpus_that_the_job_held_which_its_ranks_need_not_use(tmp_path: Path) -> None:
    """By the job's own environment; then by sacct, which knows more."""
    begin(tmp_path, 7, ended_at_s=50.0, gpus_allocated=8)
    start(tmp_path, 7)
    ((by_itself,), row) = links_at(tmp_path), {"scale": "2x1", "gpus": 16, "elapsed_s": 60.0}
    edit(tmp_path / "jobs/2x1/7.json", lambda file: file.update(row=make_row(**row).model_dump()))
    (by_sacct,) = links_at(tmp_path)
    assert [(each.gpus, each.hours * HOUR_S) for each in (by_itself, by_sacct)] == [(8, 400), (16, 960)]
    chain = make_chain(scale="2x1").holding([by_sacct])
    assert (chain.cost(16.0), chain.full_links_left(PLAN.jobs[0], 0.0)) == (Hours(16.0, 2.0), 7)


def test_all_ranks_end_with_0_or_it_is_not_complete(tmp_path: Path) -> None:
    begin(tmp_path, 7, ended_at_s=50.0)
    run = start(tmp_path, 7)
    assert [link.end for link in links_at(tmp_path)] == ["complete"]
    edit_rank(run, 1, exit_code=1)
    assert [link.end for link in links_at(tmp_path)] == ["failed"]
    lose(run, 1)
    assert [link.end for link in links_at(tmp_path)] == ["failed"]


def test_a_link_that_started_no_script(tmp_path: Path) -> None:
    """Its record says why; that of a link before is not its own."""
    begin(tmp_path, 7, ended_at_s=10.0)
    start(tmp_path, 7)
    begin(tmp_path, 8, 20.0, 30.0)
    directory = RunDirectory(tmp_path / "runs" / SPEC.name)
    (directory.attempts / "1").mkdir(parents=True)
    for name in ("run.json", "ended.json", "ranks", "nodes"):
        shutil.move(directory.path / name, directory.attempts / "1")
    assert [(link.end, link.cause) for link in links_at(tmp_path)][1] == ("failed", "it left no record")
    write_record(directory.record, not_run(SPEC, "preflight failed", "node2 has another torch", "repair it"))
    first, second = links_at(tmp_path)
    assert (first.end, second.end, second.steps, second.saves) == ("complete", "failed", 0, 0)
    assert second.failure is not None
    assert second.failure.why == "node2 has another torch"


def test_what_slurm_says_of_an_end(tmp_path: Path) -> None:
    begin(tmp_path, 7)
    lose(start(tmp_path, 7), 0, 1)
    assert links_at(tmp_path, alive="7")[0].end == "running"
    for state, end in (("NODE_FAIL", "failed"), ("TIMEOUT", "time limit"), ("SUBMITTED", "failed")):
        write_job_end(tmp_path, JobEnd("7", "production", "2x1", state, ""))
        (link,) = links_at(tmp_path)
        assert (link.state, link.end) == (None if state == "SUBMITTED" else state, end)


def test_links_that_are_over_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hours stay, too, if nothing but the look of a start told when they ended."""
    begin(tmp_path, 7)
    lose(start(tmp_path, 7), 1)
    kept = links_at(tmp_path, 100.0)
    assert kept[0].hours == pytest.approx(2 * 100 / HOUR_S)
    keep_links(tmp_path, kept)
    read, stored = [], chain.RunRecords.stored_or_assembled

    def noted(records: Any, directory: RunDirectory) -> Any:
        read.append(directory.path.relative_to(tmp_path / "runs" / SPEC.name).as_posix())
        return stored(records, directory)

    monkeypatch.setattr(chain.RunRecords, "stored_or_assembled", noted)
    assert links_at(tmp_path, 500.0) == kept
    assert read == []
    begin(tmp_path, 8, 200.0, 300.0)
    start(tmp_path, 8, attempt=2, begun_at_s=201.0)
    first, second = links_at(tmp_path, 500.0)
    assert (first, second.end, second.attempt) == (kept[0], "complete", 2)
    assert read == ["."]
    # Without the file all are read; a killed one has ended before the next has begun.
    (tmp_path / chain.LINKS_FILE).unlink()
    first, second = links_at(tmp_path, 500.0)
    assert (first.end, first.attempt, second.end) == ("failed", 1, "complete")
    assert first.hours == pytest.approx(2 * 200 / HOUR_S)


MONTH_S = 30 * 24 * HOUR_S


def test_links_are_in_the_order_of_their_numbers_by_whatever_clock_they_began(tmp_path: Path) -> None:
    """The first one was killed under a clock a month ahead; nothing tells how long it held its nodes."""
    begin(tmp_path, 7, MONTH_S, number=1)
    start(tmp_path, 7, begun_at_s=MONTH_S)
    (first,) = links_at(tmp_path, MONTH_S + 60)
    assert first.hours == pytest.approx(2 * 60 / HOUR_S)
    begin(tmp_path, 8, 10.0, 50.0, number=2)
    start(tmp_path, 8, attempt=2, begun_at_s=5.0)
    first, second = links_at(tmp_path)
    assert [(link.number, link.job_id, link.end) for link in (first, second)] == [
        (1, "7", "failed"),
        (2, "8", "complete"),
    ]
    (most_min,) = {job.runtime_min for job in PLAN.jobs}
    assert first.hours == pytest.approx(2 * 60 * most_min / HOUR_S)
    assert second.hours == pytest.approx(2 * 40 / HOUR_S)
    keep_links(tmp_path, (first, second))
    begin(tmp_path, 9, -7200.0, -7190.0, number=3)
    assert [link.number for link in links_at(tmp_path)] == [1, 2, 3]


def test_a_job_that_began_no_link_has_held_its_nodes_all_the_same(tmp_path: Path) -> None:
    begin(tmp_path, 7, 0.0, number=1, has_begun=False)
    assert links_at(tmp_path) == ()  # it may wait in the queue
    begin(tmp_path, 7, 0.0, 50.0, number=1, has_begun=False)
    (link,) = links_at(tmp_path)
    assert (link.end, link.steps, link.hours) == ("failed", 0, pytest.approx(2 * 50 / HOUR_S))
    assert link.cause == "no link began: the job held its nodes, and its link wrote nothing"


@pytest.mark.parametrize(
    ("ended_by", "state", "cause", "by_person"),
    [
        ("SIGKILL", None, "the job was killed: its process was ended by SIGKILL", False),
        ("SIGINT", None, "the job was killed: its process was ended by SIGINT", True),
        ("SIGTERM", None, "the job was killed: its process was ended by SIGTERM", False),  # Slurm sends it, too
        ("SIGTERM", "CANCELLED", "someone cancelled it (scancel), or Slurm did", True),
        (
            "SIGTERM",
            "PREEMPTED",
            "the job was killed: its process was ended by SIGTERM; Slurm ended it: PREEMPTED",
            False,
        ),
        (None, None, "the job was killed: job 7 left no end record of the run", False),
    ],
)
def test_who_ended_a_link(tmp_path: Path, ended_by: str | None, state: str | None, cause: str, by_person: bool) -> None:
    begin(tmp_path, 7, ended_at_s=50.0, ended_by=ended_by)
    run = start(tmp_path, 7)
    lose(run, 0, 1)
    shutil.rmtree(run.nodes)
    if state is not None:
        write_job_end(tmp_path, JobEnd("7", "production", "2x1", state, ""))
    (link,) = links_at(tmp_path)
    assert link.cause.startswith(cause)
    assert link.is_ended_by_person == by_person
