"""Predictions of curves whose truth is known, and of what is hardly known at all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from ddp_ladder.analysis.prediction import (
    MeasuredSeries,
    Step,
    estimate,
    predict,
    series_of,
    step_to,
)
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.settings.terms import Mode, Scale

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
