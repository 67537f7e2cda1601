"""Predictions of curves whose truth is known, and of what is hardly known at all."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import predict as predict_command
import pytest
from ddp_ladder.analysis.prediction import (
    MeasuredSeries,
    Step,
    estimate,
    predict,
    series_of,
    step_to,
)
from ddp_ladder.gates.figures import SCALING_CSV, csv_row
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.report.document import csv_text
from ddp_ladder.settings.terms import Mode, Scale
from make_records import make_record, make_specs, records_by_name, repeated

SHAPES = (Scale(1, 1), Scale(1, 2), Scale(1, 4), Scale(2, 4))
COMPUTE_S, INSIDE_S, BETWEEN_S = 0.01, 0.001, 0.002


def ring_rate(scale: Scale) -> float:
    inside = INSIDE_S * (scale.gpus_per_node - 1) / scale.gpus_per_node
    between = BETWEEN_S * (scale.nodes - 1) / scale.nodes
    return scale.world_size / (COMPUTE_S + inside + between)


RING = MeasuredSeries.of("weak", [(scale, ring_rate(scale)) for scale in SHAPES])


def series(mode: Mode = "weak", **efficiencies: float) -> MeasuredSeries:
    """Return a series from efficiencies by scale, written ``s1x2``."""
    scales = [(Scale.parse(name[1:]), value) for name, value in efficiencies.items()]
    return MeasuredSeries.of(mode, [(scale, 100 * scale.world_size * value) for scale, value in scales])


def known(measured: MeasuredSeries, at: Scale) -> tuple[float, float, float]:
    """Return the lower end, the figure and the upper end of an estimate."""
    found = estimate(measured, at)
    return found.low, found.value, found.high


def step(measured: MeasuredSeries, at: str) -> Step:
    return step_to(measured, Scale.parse(at))


@pytest.mark.parametrize(
    ("scales", "at", "kind", "doublings"),
    [
        (("1x1", "1x2"), "1x4", "inside a node, after the step from one GPU", 1),
        (("1x1", "1x2", "1x4"), "1x16", "inside a node", 2),
        (("1x1", "1x2", "1x4"), "2x4", "first of several nodes", 1),
        (("1x1", "1x2"), "2x1", "first of several nodes", 1),  # as many GPUs, and one doubling of the nodes
        (("1x1", "1x2"), "2x4", "first of several nodes, with more GPUs in each", 2),
        (("1x1", "1x4", "2x4"), "8x4", "second of several nodes", 2),
        (("1x4", "2x4", "4x4"), "6x4", "more nodes", math.log2(1.5)),
        (("1x1", "1x2", "2x1"), "1x4", "inside a node, after the step from one GPU", 1),
        (("1x1", "1x2", "2x1"), "2x2", "second of several nodes", 1),
        (("1x1", "1x8", "2x8"), "1x4", "between measured scales", 2),
    ],
)
def test_the_kind_of_step(scales: tuple[str, ...], at: str, kind: str, doublings: float) -> None:
    found = step(series(**{f"s{name}": 1.0 for name in scales}), at)
    assert (found.kind, found.doublings) == (kind, pytest.approx(doublings))


def test_the_loss_before_is_that_of_a_doubling_and_counts_twice_where_the_batch_halves() -> None:
    loss = {"s1x4": 1.0, "s4x4": math.exp(-0.2)}
    assert step(series(**loss), "8x4").lost_before == pytest.approx(0.1)
    assert step(series("strong", **loss), "8x4").lost_before == pytest.approx(0.2)
    assert step(series(s1x4=1.0, s2x4=1.02), "4x4").lost_before == 0
    assert step(series(s1x1=1.0, s1x2=0.5), "2x2").lost_before == pytest.approx(0.1)  # says no more of a network


def test_a_prediction_holds_the_truth() -> None:
    found = predict(RING, Scale(8, 4))
    low, rate, high = known(RING, Scale(8, 4))
    assert low < ring_rate(Scale(8, 4)) < high
    assert (found.samples_per_s_low, found.samples_per_s, found.samples_per_s_high) == (low, rate, high)
    assert found.efficiency == pytest.approx(rate / 32 / ring_rate(Scale(1, 1)))
    assert found.gpu_hours_per_million_samples == pytest.approx(32e6 / rate / 3600)
    assert (found.baseline, found.largest_measured, found.samples_per_s_bound) == ("1x1", "2x4", None)


def test_the_interval_grows_with_the_distance_and_over_a_border_that_was_not_measured() -> None:
    (near_low, _, near_high), (far_low, _, far_high) = (known(RING, Scale(n, 4)) for n in (4, 8))
    assert far_high / far_low > near_high / near_low
    inside = replace(RING, points=RING.points[:3])
    low, rate, high = known(inside, Scale(1, 8))
    beyond_low, beyond, beyond_high = known(inside, Scale(2, 4))
    assert beyond_high / beyond_low > 1.2 * high / low
    assert beyond < rate
    assert any("node boundary" in note for note in predict(inside, Scale(2, 4)).notes)
    assert not any("node boundary" in note for note in predict(inside, Scale(1, 8)).notes)


def test_a_scale_between_two_measured_ones_lies_between_them() -> None:
    measured = series(s1x1=1.0, s1x8=0.8, s2x8=0.7)
    low, rate, high = known(measured, Scale(1, 2))
    assert 0.9 < rate / 200 < 0.95
    assert low < rate < high
    assert high / low < 1.3


@pytest.mark.parametrize(
    ("measured", "at", "note"),
    [
        (series(s1x1=1.0), "1x2", "only 1x1 was measured: no forecast, only an upper bound; measure a second scale"),
        (RING, "64x4", "not known from these scales: only an upper bound; measure a scale in between"),
        (
            series(s1x1=1.0, s1x2=0.4, s1x4=0.1),
            "1x8",
            "not known from these scales: only an upper bound; measure a scale in between",
        ),
    ],
)
def test_what_is_not_known_has_an_upper_bound_alone(measured: MeasuredSeries, at: str, note: str) -> None:
    scale = Scale.parse(at)
    assert estimate(measured, scale) is None
    found = predict(measured, scale)
    assert (found.samples_per_s, found.efficiency, found.gpu_hours_per_million_samples) == (None, None, None)
    assert found.samples_per_s_bound == pytest.approx(scale.world_size / measured.largest.gpu_s_per_sample)
    assert note in found.notes


def test_series_from_the_points_of_the_gates() -> None:
    points = [
        ScalePoint(
            variant="default", mode="weak", stage="stage1", nodes=scale.nodes, gpus_per_node=scale.gpus_per_node,
            world_size=scale.world_size, batch_per_gpu=64, global_batch=64, repeats=3, status="ok",
            figures={"samples_per_s": Estimate(1.0, 0.98, 1.02) * ring_rate(scale)},
        )
        for scale in SHAPES
    ]  # fmt: skip
    points.append(replace(points[0], nodes=4, status="not comparable"))
    points.append(replace(points[0], nodes=8, status="not run", figures={}))
    points.append(replace(points[0], variant="gloo"))
    found = series_of(points, "default", "weak")
    assert [str(point.scale) for point in found.points] == ["1x1", "1x2", "1x4", "2x4"]
    assert found.noise_of(found.largest) == pytest.approx(math.log(1.02 / 0.98) / 2)
    wide = [point.having({"samples_per_s": point["samples_per_s"]}) for point in points]
    assert estimate(found, Scale(4, 4))
    assert estimate(series_of(wide, "default", "weak"), Scale(4, 4)) is None  # no exact prediction from wide scatter


# predict.py: what it prints, and one clear message for each mistake


Captured = pytest.CaptureFixture[str]
HEADER = "nodes,gpus_per_node,samples_per_s"
# CSC ml-benchmarks, LUMI-G, ResNet-50 with fp16 (tests/published_scaling.csv).
LUMI = f"{HEADER}\n1,1,931.08\n1,2,1725.14\n1,8,6419.29\n2,8,12042.89\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "points.csv"
    file.write_text(LUMI)
    return file


def printed(capsys: Captured, *argv: object) -> dict[str, Any]:
    assert predict_command.main([*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_people_get_a_table(table: Path, capsys: Captured) -> None:
    assert predict_command.main(["--table", str(table), "--at", "4x8", "--at", "64x8"]) == 0
    heading, _, near, far, *notes = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[0] == "scale"
    assert re.fullmatch(r"4x8    weak +[\d,]+ +\[[\d,]+.[\d,]+\] +\d+ % of 1x1 +[\d.]+", near), near
    assert far.startswith("64x8")
    assert all(note.startswith("64x8: ") for note in notes)


@pytest.mark.parametrize(
    ("status", "largest"), [("ok", "2x8"), ("failed", "1x8"), ("check", "1x8"), ("not comparable", "1x8")]
)
def test_the_reports_table_is_read_as_the_report_judges_it(
    status: str, largest: str, table: Path, capsys: Captured
) -> None:
    statuses = ("ok", "ok", "incomplete", status)
    figures = [*zip(LUMI.splitlines()[1:], statuses, strict=True)]
    rows = [f"{variant},{row},{word}" for variant in ("plain", "default", "gloo") for row, word in figures]
    table.write_text("\n".join((f"variant,{HEADER},status", *rows, "default,4,8,,not run")))
    assert printed(capsys, "--table", table, "--at", "4x8")["largest_measured"] == largest
    assert predict_command.main(["--table", str(table), "--at", "4x8", "--variant", "srun"]) == 1
    assert "allowed  default, gloo" in capsys.readouterr().err


def test_the_table_of_the_report_gives_the_figures_of_the_report(table: Path, capsys: Captured) -> None:
    """Three repeats of each scale."""
    rates = {"1x1": 931.08, "1x2": 1725.14, "1x8": 6419.29, "2x8": 12042.89}
    records = [make_record(spec, repeated(rates[str(spec.scale)], spec)) for spec in make_specs(list(rates))]
    points = scale_points([record.spec for record in records], records_by_name(records))
    table.write_text(csv_text(map(csv_row, points), SCALING_CSV))
    for at in ("4x8", "2x8"):
        found = printed(capsys, "--table", table, "--at", at)
        shown = predict(series_of(points, "default", "weak"), Scale.parse(at))
        assert (found["baseline"], shown.baseline) == ("1x1", "1x1")
        for name in ("samples_per_s", "samples_per_s_low", "samples_per_s_high", "efficiency"):
            assert found[name] == pytest.approx(getattr(shown, name), rel=1e-4), name
        assert found["samples_per_s_low"] < found["samples_per_s"] < found["samples_per_s_high"]


MISTAKES = [
    (f"{HEADER},samples_per_s_low,samples_per_s_high\n1,1,3,4,5\n", "samples_per_s_low and samples_per_s_high: not an"),
    (f"variant,{HEADER},status\ndefault,1,1,3,check\n", "status: no scale counts"),
    ("", "it is empty"),
    ("nodes,gpus_per_node,samples_per_sec\n1,1,3\n", "line 2: this is no table of scales: samples_per_s is missing"),
    (f"{HEADER}\n", "no such variant that was measured"),
    (f"{HEADER}\n1,1,3\n0,1,3\n", "line 3: this is no table of scales: nodes: should be greater than or equal to 1"),
    (f"{HEADER}\n1,1,nan\n", ": samples_per_s: should be"),
    (f"{HEADER}\n1,1,16,621\n", "the number of cells is not that of the header"),
    (f"{HEADER},mode\n1,1,3,medium\n", "mode: should be 'weak' or 'strong'"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_in_the_table_is_named(text: str, message: str, table: Path, capsys: Captured) -> None:
    table.write_text(text)
    assert predict_command.main(["--table", str(table), "--at", "8x4"]) == 1
    told = capsys.readouterr()
    assert message in told.err
    assert str(table) in told.err
    assert told.out == ""
