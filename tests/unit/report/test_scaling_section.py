"""The tables of the other baselines and of the cost, on the page and in Markdown."""

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import report as report_command
from ddp_ladder.analysis.cost import Work
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.report.efficiency_plot import efficiency_figure
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults, read_results
from ddp_ladder.report.scaling_section import ScalingSection, scaling_section
from ddp_ladder.report.throughput_plot import rate_per_gpu
from ddp_ladder.report.tikz import efficiency_tikz
from ddp_ladder.report.view import ReportView, make_view
from make_records import make_plan_of, make_record, make_specs, records_by_name, repeated
from make_runs import edit, reassemble, write_ladder

TODAY = date(2026, 11, 20)
AMP = {"autocast_dtype": "float16", "num_workers": 8}
RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}
OLIVIA = {"1x1": 5126.4, "1x4": 37244.4, "2x4": 63190.2}


def view_of(
    rates: dict[str, float], amp_above_one: bool = False, work: Work | None = None, **changes: list[str]
) -> ReportView:
    specs = make_specs(list(rates), **changes)  # type: ignore[arg-type]
    records = [
        make_record(
            spec, repeated(rates[str(spec.scale)], spec), fingerprint=AMP if amp_above_one and spec.gpus > 1 else None
        )
        for spec in specs
    ]
    return make_view(LadderResults(make_plan_of(specs), records_by_name(records), {}, (), work=work or Work()), TODAY)


def headings(section: ScalingSection, kind: str) -> list[str]:
    table = next(table for table in section.tables if table.kind == kind)
    return [heading for _, heading, _ in table.headings]


def row(section: ScalingSection, kind: str, name: str) -> dict[str, str]:
    """The row of a scale: text and mark by heading."""
    table = next(table for table in section.tables if table.kind == kind)
    cells = dict(table.rows)[name]
    shown = (f"{cell.text} {cell.mark}".strip().replace("\u00a0", " ") for cell in cells)
    return dict(zip(headings(section, kind), shown, strict=True))


def test_a_ladder_from_one_gpu_needs_no_other_smallest_scale() -> None:
    section = scaling_section(view_of(RATES))
    assert headings(section, "baselines") == [
        "efficiency against one GPU",
        "speed-up over one node",
        "efficiency against one node",
        "serial fraction (Karp-Flatt)",
        "efficiency by total time",
        "wall time",
    ]
    assert headings(section, "cost") == ["GPU h per million samples", "time per million samples"]
    assert row(section, "baselines", "1x2")["efficiency against one node"] == "\u2013"


def test_the_olivia_guide_in_the_table() -> None:
    section = scaling_section(view_of(OLIVIA, amp_above_one=True))
    node, two = (row(section, "baselines", scale) for scale in ("1x4", "2x4"))
    assert node["efficiency against one GPU"] == "\u2013 not comparable: precision, workers"
    assert two["efficiency against one GPU"] == "\u2013 not comparable: precision, workers"
    assert re.fullmatch(r"84\.8 % \[84\.\d\u201385\.\d %\] vs 1x4", two["efficiency against one node"])
    assert section.notes[0].startswith("Cheapest: 1x4 (least process hours per sample): 37,244 samples/s, 0.0298 ")
    assert section.notes[1].startswith(
        "Fastest and recommended: 2x4 (most samples per second; the largest scale whose "
    )
    assert "efficiency 84.8\u00a0% [" in section.notes[1]


def test_without_one_gpu_the_smallest_scale_is_a_baseline_of_its_own() -> None:
    view = view_of({scale: rate for scale, rate in RATES.items() if scale != "1x1"})
    top = row(scaling_section(view), "baselines", "2x4")
    assert top["efficiency against the smallest scale"].endswith(" vs 1x2")
    assert top["efficiency against the smallest scale"].startswith("85.5 %")
    assert rate_per_gpu(view.rungs) == 950
    texts = [text.get_text() for text in efficiency_figure(view.rungs, {}).axes[0].texts]
    assert "not comparable" not in texts
    assert "86\u00a0%" in texts


@pytest.mark.parametrize("high", [1.02, 227.5])
def test_an_interval_beyond_all_sense_leaves_room_for_the_points(high: float) -> None:
    points = [replace(point, efficiency_high=high) for point in view_of(RATES).rungs]
    axes = efficiency_figure(points, {}).axes[0]
    assert axes.get_ylim()[1] == pytest.approx(1.09 * 1.05 * min(high, 1.5))
    assert len(axes.get_yticks()) == (6 if high < 1.1 else 8)
    assert f"ymax={105 * min(high, 1.5):.0f}," in efficiency_tikz(points, {})


def test_an_efficiency_beyond_all_sense_is_in_the_picture() -> None:
    points = [
        replace(point, efficiency=6.1, efficiency_low=6.0, efficiency_high=900.0) for point in view_of(RATES).rungs
    ]
    axes = efficiency_figure(points, {}).axes[0]
    assert axes.get_ylim()[1] > 6.1
    assert len(axes.get_yticks()) < 12


def test_nodes_of_one_gpu_are_no_other_baseline() -> None:
    section = scaling_section(view_of({"1x1": 1000.0, "2x1": 1900.0}))
    assert headings(section, "baselines") == [
        "efficiency against one GPU",
        "serial fraction (Karp-Flatt)",
        "efficiency by total time",
        "wall time",
    ]


def test_weak_and_strong_are_apart_and_variants_together() -> None:
    section = scaling_section(view_of(RATES, modes=["weak", "strong"], variants=["default", "b"]))
    assert [table.title for table in section.tables] == [
        "Against other baselines, weak scaling",
        "Cost, weak scaling",
        "Against other baselines, strong scaling",
        "Cost, strong scaling",
    ]
    assert [name for name, _ in section.tables[0].rows][:2] == ["1x1 default", "1x2 default"]
    assert len(section.tables[0].rows) == 8
    assert [note.partition(" (")[0] for note in section.notes] == [
        f"{kind} {mode} default"
        for mode in ("weak", "strong")
        for kind in ("Cheapest: 1x1", "Fastest and recommended: 2x4")
    ]


def test_nothing_measured_is_no_section() -> None:
    specs = make_specs(["1x1", "1x2"])
    assert scaling_section(make_view(LadderResults(make_plan_of(specs), {}, {}, ()), TODAY)).tables == ()


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (Work(90, None, 50_000), "90 epochs take 11 min 32 s (1.54 process h)."),
        (Work(None, 4.5e6), "4,500,000 samples take 11 min 32 s (1.54 process h)."),
        (Work(dataset_size=50_000), "an epoch takes 8 s."),
    ],
)
def test_what_a_training_takes(work: Work, told: str) -> None:
    section = scaling_section(view_of(RATES, work=work))
    assert any(note.endswith(told) for note in section.notes)
    assert ("time to solution" in headings(section, "cost")) == (work.total is not None)


def test_epochs_of_unknown_size_are_said() -> None:
    assert "set report.samples" in scaling_section(view_of(RATES, work=Work(epochs=90))).notes[-1]


def test_both_outputs_have_both_tables(tmp_path: Path) -> None:
    view = view_of(RATES, work=Work(90, None, 50_000))
    files = {path.name: path for path in write_report(tmp_path, view.results, TODAY)}
    page, text = files["index.html"].read_text(), files["scaling.md"].read_text()
    assert '<table class="baselines whole sortable">' in page
    assert '<table class="cost whole sortable">' in page
    assert "process h per epoch" in page
    assert "| 2x4 | 81.2 % \\[80.5\u201382.0 %\\] | 1.86 \\[" in text
    assert "time to solution" in page
    assert "time to solution" in text
    assert "<b>Fastest and recommended:</b> 2x4" in page
    assert "- **Fastest and recommended:** 2x4" in text


def test_the_command_takes_the_training_and_reads_the_data_sets_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_ladder(tmp_path)
    assert read_results(tmp_path, plan).work == Work()
    for spec in plan.runs:
        run = RunDirectory(tmp_path / "runs" / spec.name)
        edit(run.ranks / "rank0.json", lambda end: end["loader"].update(dataset_size=1797))
        reassemble(run)
    assert read_results(tmp_path, plan).work == Work(dataset_size=1797)
    assert report_command.main(["--results", str(tmp_path), "--epochs", "10"]) == 0
    assert "10 epochs take" in (tmp_path / "report/scaling.md").read_text()
    with pytest.raises(SystemExit):
        report_command.main(["--results", str(tmp_path), "--samples", "-1"])
    assert "'-1' is not a number above 0" in capsys.readouterr().err
