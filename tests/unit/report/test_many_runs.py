"""Ladders of thousands of runs: records read in several processes, and a list of runs that a browser can show."""

import csv

import pytest
from ddp_ladder.report import plots
from ddp_ladder.report.efficiency_plot import efficiency_figure
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.run_list import MOST_LISTED, listed_runs, runs_table
from ddp_ladder.report.svg import Drawing
from ddp_ladder.report.throughput_plot import throughput_figure
from ddp_ladder.report.view import NAMED_PLACES, make_view
from make_records import make_failed_record, make_plan_of, make_record, make_spec, make_specs, records_by_name
from test_report import TODAY


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
