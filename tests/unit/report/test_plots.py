"""The plots: bars that add up, room for points, and the picture of what a run used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.nodes.read import Span, Timeline
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.report.page import write_report
from ddp_ladder.report.plots import attribution_figure, efficiency_figure
from ddp_ladder.report.results import read_results
from ddp_ladder.report.usage import BINS, Panel, Trace, band, downsampled, draw_usage, panels, usage_figure
from make_course import course
from make_records import make_plan_of, make_record, make_specs, records_by_name, repeated, with_ranks
from make_runs import write_run
from make_sampled_runs import sample_nodes, write_sampled_run
from matplotlib.patches import Rectangle

TODAY = date(2026, 11, 22)
STEPS = {"1x1": (0.05, 0.0), "1x2": (0.055, 0.004), "2x2": (0.1, 0.045)}  # step and exposed communication, in s
RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}


def points(timed: bool = True, scales: Sequence[str] = tuple(STEPS)) -> tuple[ScalePoint, ...]:
    """The points of a ladder whose ranks timed the parts of a step; DDP's only if ``timed``."""
    records = []
    for spec in make_specs(list(scales), repeats=1):
        step_s, exposed_s = STEPS[str(spec.scale)]
        n = spec.world_size
        parts = {"exposed_comm_s": [exposed_s] * n if timed else None, "data_wait_s": [0.001] * n}
        records.append(with_ranks(make_record(spec, spec.global_batch / step_s), compute_s=[0.04] * n, **parts))
    return points_of(records)


def points_of(records: Sequence[Record]) -> tuple[ScalePoint, ...]:
    return scale_points([record.spec for record in records], records_by_name(records))


def rates(left_out: str = "") -> tuple[ScalePoint, ...]:
    specs = make_specs([scale for scale in RATES if scale != left_out])
    return points_of([make_record(spec, repeated(RATES[str(spec.scale)], spec)) for spec in specs])


def test_the_bars_add_up_to_the_step_and_end_at_one_over_the_efficiency() -> None:
    axes = attribution_figure(points()).axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    for place, (step_s, _) in enumerate(STEPS.values()):
        own = [bar for bar in bars if bar.get_x() < place < bar.get_x() + bar.get_width()]
        assert sum(bar.get_height() for bar in own) == pytest.approx(step_s / 0.05)
    assert {"50.0 ms", "55.0 ms", "100 ms", "45.0"} <= {text.get_text() for text in axes.texts}


def test_time_that_is_not_told_apart_is_hatched() -> None:
    assert not any(patch.get_hatch() for patch in attribution_figure(points()).axes[0].patches)
    figure = attribution_figure(points(timed=False))
    assert any(patch.get_hatch() for patch in figure.axes[0].patches)
    assert "hatched: with compute: not told apart" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_nothing_to_compare_is_said() -> None:
    (text,) = attribution_figure(points(scales=["2x2"])).axes[0].texts
    assert text.get_text() == "no step has been compared with one at 1x1 yet"


@pytest.mark.parametrize(("value", "high", "top"), [(0.9, 1.02, 1.02), (0.9, 227.5, 1.5), (6.1, 900.0, 6.1)])
def test_an_interval_beyond_all_sense_leaves_room_for_the_points(value: float, high: float, top: float) -> None:
    found = [replace(point, efficiency=value, efficiency_low=value, efficiency_high=high) for point in rates()]
    axes = efficiency_figure(found, {}).axes[0]
    assert axes.get_ylim()[1] == pytest.approx(1.09 * 1.05 * top)
    assert len(axes.get_yticks()) < 12


def sampled(results: Path, scales: Sequence[str], gpus: int = 0) -> tuple[RunSpec, ...]:
    specs = make_specs(list(scales), device="cuda" if gpus else "cpu", repeats=2)
    for spec in specs:
        write_sampled_run(results, spec, gpu_count=gpus)
    return tuple(specs)


def test_each_scale_has_one_picture_and_its_files(tmp_path: Path) -> None:
    plan = make_plan_of(sampled(tmp_path, ["1x1", "1x2"]))
    files = write_report(tmp_path, read_results(tmp_path, plan), TODAY)
    names = [path.name for path in files if path.parent.name == "usage"]
    assert names == [f"usage_default_weak_{scale}_r1.{kind}" for scale in ("1x1", "1x2") for kind in ("svg", "png")]
    page = (tmp_path / "report/index.html").read_text()
    assert page.count('<figure class="usage">') == 2
    assert "1x2 weak, r1. 1 node, no GPU." in page


def test_damaged_samples_are_a_note(tmp_path: Path) -> None:
    (spec, _) = sampled(tmp_path, ["1x1"])
    results = read_results(tmp_path, make_plan_of([spec]))
    samples = tmp_path / "runs" / spec.name / "nodes/node0.csv"
    samples.write_text("time_s,cpu_fraction\n1.0,much\n")
    usage, files = draw_usage(tmp_path, list(results.records.values()))
    assert usage.pictures == ()
    assert files == {}
    assert "node0.csv" in usage.notes[0]


def test_of_many_gpus_a_band_is_drawn(tmp_path: Path) -> None:
    spec = make_specs(["2x8"], repeats=1, device="cuda")[0]
    run = write_run(tmp_path, spec)
    record = sample_nodes(run, 8, **course(8, 63, [(60, 70, 0.1)]))
    usage, files = draw_usage(tmp_path, [record])
    assert "Bands go from the lowest to the highest" in usage.pictures[0].caption
    assert len(files) == 2


def test_no_peak_is_lost_in_a_long_run() -> None:
    times_s = np.arange(10_000.0)
    values = np.zeros(10_000)
    values[[1234, 8765]] = 1.0, -1.0
    values[5000:5100] = np.nan
    shown_s, shown = downsampled(Trace(times_s, values))
    assert len(shown) <= 2 * BINS
    assert {1234.0, 8765.0} <= {*shown_s}
    assert (np.nanmin(shown), np.nanmax(shown)) == (-1, 1)
    assert np.isnan(shown).any()


def test_a_band_is_the_lowest_the_median_and_the_highest_of_all() -> None:
    times_s = np.arange(10.0)
    traces = [Trace(times_s, np.full(10, level)) for level in (1.0, 2.0, 7.0)]
    _, low, middle, high = band(traces)
    assert ({*low}, {*middle}, {*high}) == ({1.0}, {2.0}, {7.0})


def test_a_limit_far_above_all_values_is_not_drawn() -> None:
    spans = [("start-up", 0.0, 5.0), ("training", 5.0, 10.0)]
    timeline = Timeline(tuple(Span(*each) for each in spans))  # type: ignore[arg-type]
    trace = [Trace(np.arange(10.0), np.full(10, 4.0))]
    for limit, top in ((512.0, 4.2), (8.0, 8.4)):
        figure = usage_figure([Panel("Host memory, GB", {"training": trace}, limit=("node", limit))], timeline)
        assert figure.axes[0].get_ylim()[1] == pytest.approx(top)
    assert panels([]) == []


def test_results_without_samples_have_no_picture() -> None:
    assert draw_usage(Path("nowhere"), [])[0].pictures == ()
