"""Ladders of thousands of runs: records read in several processes, and a list of runs that a browser can show."""

import csv
import os
from pathlib import Path

import pytest
from ddp_ladder.records import record, run_records
from ddp_ladder.records.record import Record
from ddp_ladder.report import plots
from ddp_ladder.report.efficiency_plot import efficiency_figure
from ddp_ladder.report.missing import believed_records
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.run_list import MOST_LISTED, listed_runs, runs_table
from ddp_ladder.report.svg import Drawing
from ddp_ladder.report.throughput_plot import throughput_figure
from ddp_ladder.report.view import NAMED_PLACES, make_view
from make_records import make_failed_record, make_plan_of, make_record, make_spec, make_specs, records_by_name
from make_runs import edit, write_ladder
from test_report import TODAY


def test_records_are_the_same_read_in_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = write_ladder(tmp_path, scales=("1x1", "1x2"))
    edit(tmp_path / "runs/default/weak/1x2/r1/record.json", lambda record: record.update(later=1))
    (tmp_path / "runs/default/weak/1x2/r2/record.json").unlink()
    alone = believed_records(run_records.RunRecords(tmp_path), plan.runs)
    monkeypatch.setattr(run_records, "MANY", 2)
    monkeypatch.setattr(run_records, "A_PART", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    runs = run_records.RunRecords(tmp_path)
    runs.believe_all(plan.runs)
    monkeypatch.setattr(run_records.RunRecords, "_believe", None)  # every record has been read
    assert believed_records(runs, plan.runs) == alone
    assert len(alone.records) == 3
    assert alone.unread == 1


def test_only_a_record_with_another_text_than_this_version_writes_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_ladder(tmp_path, scales=("1x1",))
    _, other = plan.runs
    edit(tmp_path / "runs" / other.name / "record.json", lambda record: None)  # says the same without line breaks
    parsed: list[Path] = []

    def read_record(path: Path) -> Record:
        parsed.append(path)
        return record.read_record(path)

    monkeypatch.setattr(run_records, "read_record", read_record)
    assert len(believed_records(run_records.RunRecords(tmp_path), plan.runs).records) == 2
    assert parsed == [tmp_path / "runs" / other.name / "record.json"]


def test_the_page_lists_failed_runs_first_if_there_are_too_many() -> None:
    one, bad = make_record(make_spec()), make_failed_record(make_spec(repeat=2))
    runs = [one] * MOST_LISTED
    assert listed_runs(runs) == tuple(runs)
    assert listed_runs([*runs, bad]) == (*runs[:-1], bad)
    header, *rows = csv.reader(runs_table([*runs, bad]).splitlines())
    assert len(rows) == MOST_LISTED + 1
    assert [dict(zip(header, row, strict=True))["status"] for row in rows[-2:]] == ["ok", "failed"]


def test_a_value_names_only_some_of_its_many_runs() -> None:
    specs = [make_spec(repeat=k) for k in range(1, 2 * NAMED_PLACES + 3)]
    records = [make_record(spec, fingerprint={"torch": f"2.{spec.repeat % 2}"}) for spec in specs]
    view = make_view(LadderResults(make_plan_of(specs), records_by_name(records), {}, ()), TODAY)
    (values,) = (row.values for row in view.measured if row.name == "torch")
    assert [value for value, _ in values] == ["2.1", "2.0"]
    assert all(places.endswith(" and 1 more") for _, places in values)


def test_a_large_crowd_is_drawn_at_once_and_the_first_variant_still_shows_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = make_specs(["1x1", "1x2", "2x1"], repeats=1, variants=["default", *(f"v{k}" for k in range(1, 9))])
    points = LadderResults(make_plan_of(specs), records_by_name(map(make_record, specs)), {}, ()).points

    def drawn() -> list[tuple[int, int]]:
        figures = [throughput_figure(points, "GPUs"), efficiency_figure(points, {})]
        texts = [Drawing(figure).file().decode() for figure in figures]
        return [(text.count("<title>"), text.count("<use ")) for text in texts]

    each = drawn()
    monkeypatch.setattr(plots, "MOST_VALUES", 8 * 3 - 1)
    at_once = drawn()
    assert [values for values, _ in each] == [len(points)] * 2
    assert [values for values, _ in at_once] == [3, 3]
    assert [marks for _, marks in at_once] == [marks for _, marks in each]
