"""The plots: bars that add up, room for points, and the picture of what a run used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.records.record import Record
from ddp_ladder.report.page import write_report
from ddp_ladder.report.plots import attribution_figure, efficiency_figure
from ddp_ladder.report.results import read_results
from ddp_ladder.report.usage import BINS, draw_usage, in_bins
from make_records import make_plan_of, make_record, make_specs, records_by_name, repeated, with_ranks
from make_sampled_runs import write_sampled_run
from matplotlib.patches import Rectangle

TODAY = date(2026, 11, 22)
STEPS = {"1x1": (0.05, 0.0), "1x2": (0.055, 0.004), "2x2": (0.1, 0.045)}  # step and exposed communication, in s
RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}


def points(scales: Sequence[str] = tuple(STEPS)) -> tuple[ScalePoint, ...]:
    """The points of a ladder whose ranks timed the parts of a step."""
    records = []
    for spec in make_specs(list(scales), repeats=1):
        step_s, exposed_s = STEPS[str(spec.scale)]
        n = spec.world_size
        parts = {"exposed_comm_s": [exposed_s] * n, "data_wait_s": [0.001] * n}
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
    (text,) = attribution_figure(points(scales=["2x2"])).axes[0].texts
    assert text.get_text() == "no step has been compared with one at 1x1 yet"


@pytest.mark.parametrize(("value", "high", "top"), [(0.9, 1.02, 1.02), (0.9, 227.5, 1.5), (6.1, 900.0, 6.1)])
def test_an_interval_beyond_all_sense_leaves_room_for_the_points(value: float, high: float, top: float) -> None:
    found = [replace(point, efficiency=value, efficiency_low=value, efficiency_high=high) for point in rates()]
    assert efficiency_figure(found, {}).axes[0].get_ylim()[1] == pytest.approx(1.05 * top)


def test_each_scale_has_one_picture_and_damaged_samples_are_a_note(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"], repeats=2)
    for spec in specs:
        write_sampled_run(tmp_path, spec, gpu_count=0)
    results = read_results(tmp_path, make_plan_of(specs))
    files = write_report(tmp_path, results, TODAY)
    names = [path.name for path in files if path.parent.name == "usage"]
    assert names == [f"usage_default_weak_{scale}_r1.{kind}" for scale in ("1x1", "1x2") for kind in ("svg", "png")]
    page = (tmp_path / "report/index.html").read_text()
    assert page.count('<figure class="usage">') == 2
    assert "What 1x2 weak, r1 used over time. 1 node, no GPU." in page
    for repeat in (1, 2):
        samples = tmp_path / f"runs/default/weak/1x1/r{repeat}/nodes/node0.csv"
        samples.write_text("time_s,cpu_fraction\n1.0,much\n")
    picture, notes = draw_usage(tmp_path, list(results.records.values()))[0]
    assert "1x2" in picture.picture
    assert "node0.csv" in str(notes.items[0])


def test_no_peak_is_lost_in_a_long_run_and_a_band_holds_all_traces() -> None:
    values = np.zeros(10_000)
    values[[1234, 8765]] = 1.0, -1.0
    values[5000:5100] = np.nan
    shown = in_bins([pd.Series(values, np.arange(10_000.0))])
    assert len(shown) == BINS
    assert (shown["min"].min(), shown["max"].max()) == (-1, 1)
    assert shown["median"].isna().any()
    band = in_bins([pd.Series(np.full(10, level), np.arange(10.0)) for level in (1.0, 2.0, 7.0)])
    assert [{*band[name]} for name in ("min", "median", "max")] == [{1.0}, {2.0}, {7.0}]
