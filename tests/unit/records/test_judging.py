"""Results that other rules judged: the kept logs are judged anew, nothing is measured again, and it is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ddp_ladder.assembly import run_records
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.ladder import restore_records, runs_to_do
from ddp_ladder.common.files import RunDirectory, sha256
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records import judging
from ddp_ladder.records.record import read_record
from ddp_ladder.report.view import read_results
from ddp_ladder_instrument import judgement, log
from ddp_ladder_instrument.log import Log
from ddp_ladder_instrument.machine import RULES
from make_runs import STARTED_AT_S, edit_rank, read_steps, reassemble, write_ladder, write_steps

LOADER = {"num_workers": 0, "sampler": "DistributedSampler", "shuffle": True, "dataset_size": 64, "shards": True}
DRAWN, TRAINED = 80, 64


def write_log(directory: RunDirectory, rank: int, cut_at: int | None = None) -> None:
    """Write the log of a rank: 64 are trained on in each step, and in each fourth 16 are drawn with gradients off."""
    events, rows = Log(), read_steps(directory, rank)
    now_s = 100.0
    events.add(log.RANK, now_s, now_s, rank, STARTED_AT_S, log.FORMAT)
    events.add(log.PASS, now_s, now_s, 1, 0, -1, -1)
    events.add(log.MADE, now_s, now_s, 1)
    for number, row in enumerate(rows if cut_at is None else rows[:cut_at]):
        step_s, wait_s = float(row[3]), float(row[4])
        if number % 4 == 3:
            events.add(log.DRAW_NO_GRAD, now_s, now_s, 1, DRAWN - TRAINED, 0, -1)
        events.add(log.DRAW, now_s, now_s + wait_s, 1, TRAINED, 0, -1)
        now_s += step_s
        events.add(log.BACKWARD, now_s, now_s)
        events.add(log.STEP, now_s, now_s, 0, 0, 0, -1)
    events.add(log.OVER, now_s, now_s)
    data = events.to_bytes()
    (directory.ranks / f"rank{rank}.log").write_bytes(data)
    facts = {
        "sha256": sha256(data), "world_size": 1, "warmup_steps": 5, "samples_per_step": None, "source": "counted",
        "began_at_s": STARTED_AT_S, "training_ended_at_s": STARTED_AT_S + now_s, "is_cut": cut_at is not None,
        "loaders": [{**LOADER, "dataset": 0, "unclear_sizes": []}], "digests": {},
        "collectives": [], "ddp": None,
    }  # fmt: skip
    edit_rank(directory, rank, log=facts)


def as_judged_before(directory: RunDirectory) -> None:
    """Let the rows be those of an earlier rule, which counted every batch that is drawn."""
    rows = [[row[0], str(DRAWN if number % 4 == 3 else TRAINED), *row[2:]] for number, row in
            enumerate(read_steps(directory, 0))]  # fmt: skip
    write_steps(directory, 0, rows)
    write_log(directory, 0)
    reassemble(directory)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = write_ladder(tmp_path / "results", scales=("1x1",), repeats=2)
    for run in plan.runs:
        as_judged_before(RunDirectory(tmp_path / "results" / "runs" / run.name))
    return plan


def let_the_rules_change(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (judging, run_records, judgement):
        monkeypatch.setattr(module, "RULES", RULES + 1)


def test_results_of_earlier_rules_give_the_figures_of_these_and_nothing_is_measured_again(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    before = {run.name: read_record(results / "runs" / run.name / "record.json") for run in plan.runs}
    assert {record.rules for record in before.values()} == {RULES}
    assert not RunRecords(results).changes_of_rules()
    let_the_rules_change(monkeypatch)
    runs = RunRecords(results)
    assert not runs_to_do(plan, runs)
    report = read_results(results, plan)
    first, _ = plan.runs
    now = report.records[first.name]
    assert now.rules == RULES + 1
    assert (now.ranks[0].samples, before[first.name].ranks[0].samples) == (60 * TRAINED, 60 * TRAINED + 15 * 16)
    assert now.throughput
    assert now.throughput.samples_per_s < before[first.name].throughput.samples_per_s  # type: ignore[union-attr]
    (told,) = report.warnings
    begin = f"2 runs of an earlier version judged anew from the logs, by rules {RULES + 1}: samples/s changed in 2"
    assert told.startswith(begin)
    assert f"{first.name}: 1,091 -> 1,024" in told
    assert "15 of 75 batches were drawn and not trained" in " ".join(remark.measured for remark in now.remarks)
    # A start writes the records; from then on there is nothing to say.
    assert len([*restore_records(plan, runs)]) == 2
    assert read_record(results / "runs" / first.name / "record.json").rules == RULES + 1
    assert not RunRecords(results).changes_of_rules()


def test_a_long_run_of_which_an_earlier_version_judged_the_begin_wrongly_has_its_figures(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end record could not even be read: its first rows were those of later steps, without the log's time."""
    results, run = tmp_path / "results", plan.runs[0]
    directory = RunDirectory(results / "runs" / run.name)
    rows = read_steps(directory, 0)
    write_log(directory, 0, cut_at=20)
    write_steps(directory, 0, [[*row[:3], "1e-12" if k < 9 else row[3], *row[4:]] for k, row in enumerate(rows)])
    edit_rank(directory, 0, startup_s={"import_torch": 2.0, "total": -1.8e9})
    reassemble(directory)
    assert read_record(directory.record).checks[0].measured.startswith("ranks/rank0.json is damaged")
    let_the_rules_change(monkeypatch)
    runs = RunRecords(results)
    assert not [missing for missing in runs_to_do(plan, runs).values() if run in missing]
    now = read_results(results, plan).records[run.name]
    assert now.failure is None
    assert now.ranks[0].samples == 19 * TRAINED + (41 * TRAINED + 11 * 16)
    assert now.ranks[0].startup_s["total"] == pytest.approx(float(rows[0][3]), abs=1e-5)
    (told,) = runs.changes_of_rules()
    assert f"{run.name}: none -> " in told


def test_a_long_run_of_which_an_earlier_version_counted_steps_twice_is_measured_again(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "results" / "runs" / plan.runs[0].name)
    write_log(directory, 0, cut_at=20)
    rows = read_steps(directory, 0)
    order = [*range(40), *range(18, 60)]
    write_steps(directory, 0, [[str(n), *rows[k][1:], str(STARTED_AT_S + k)] for n, k in enumerate(order, start=1)])
    let_the_rules_change(monkeypatch)
    record = assemble(directory)
    assert record.failure is not None
    assert "go back in time" in record.checks[0].measured
    to_do = runs_to_do(plan, RunRecords(tmp_path / "results")).values()
    assert plan.runs[0] in [run for missing in to_do for run in missing]


def test_each_attempt_of_a_run_has_figures_of_its_own(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of a chain is an attempt of its one run."""
    last = RunDirectory(tmp_path / "results" / "runs" / plan.runs[0].name)
    first = RunDirectory(last.attempts / "1")
    shutil.copytree(last.path, first.path)
    write_log(last, 0, cut_at=20)
    reassemble(last)
    let_the_rules_change(monkeypatch)
    runs = RunRecords(tmp_path / "results")
    samples = [runs.stored_or_assembled(directory).ranks[0].samples for directory in (first, last)]
    assert samples == [60 * TRAINED, 19 * TRAINED + (41 * TRAINED + 11 * 16)]


def test_a_damaged_log_costs_no_figure_and_is_named(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    path = results / "runs" / plan.runs[0].name / "ranks/rank0.log"
    path.write_bytes(path.read_bytes() + b"\0" * 8)
    let_the_rules_change(monkeypatch)
    report = read_results(results, plan)
    assert report.records[plan.runs[0].name].ranks[0].samples == 60 * TRAINED + 15 * 16
    assert report.warnings[0].startswith("1 run of an earlier version judged anew")
    assert report.warnings[1].startswith("1 run of an earlier version cannot be judged anew, as a log is missing")
