"""Predictions of curves whose truth is known, and of what is hardly known at all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from ddp_ladder.analysis.estimate import estimate
from ddp_ladder.analysis.forms import fitted_forms
from ddp_ladder.analysis.largest import FAR, largest_scale
from ddp_ladder.analysis.measured import Series, series_of
from ddp_ladder.analysis.network import AllReduce
from ddp_ladder.analysis.prediction import predict
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.settings.terms import Mode, Scale

SHAPES = (Scale(1, 1), Scale(1, 2), Scale(1, 4), Scale(2, 4))
COMPUTE_S, INSIDE_S, BETWEEN_S = 0.01, 0.001, 0.002


def ring_rate(scale: Scale) -> float:
    inside = INSIDE_S * (scale.gpus_per_node - 1) / scale.gpus_per_node
    between = BETWEEN_S * (scale.nodes - 1) / scale.nodes
    return scale.world_size / (COMPUTE_S + inside + between)


RING = Series.of("weak", [(scale, ring_rate(scale)) for scale in SHAPES])


def test_the_form_of_the_curve_finds_its_parameters() -> None:
    form = fitted_forms(RING.points, Scale(8, 4))["ring by level"]
    found = list(form.parameters.values())
    assert found == pytest.approx([COMPUTE_S, INSIDE_S, BETWEEN_S], rel=1e-3)
    assert form.residual < 1e-6


def test_laws_find_their_serial_fraction() -> None:
    serial = 0.03
    amdahl = Series.of("strong", [(Scale(1, n), 100 * n / (1 + serial * (n - 1))) for n in (1, 2, 4, 8)])
    gustafson = Series.of("weak", [(Scale(1, n), 100 * (n - serial * (n - 1))) for n in (1, 2, 4, 8)])
    found = fitted_forms(amdahl.points, Scale(1, 16))["Amdahl"]
    assert found.parameters["serial_s"] / found.parameters["compute_s"] == pytest.approx(serial, rel=1e-3)
    found = fitted_forms(gustafson.points, Scale(1, 16))["Gustafson"]
    assert found.parameters["serial_fraction"] == pytest.approx(serial, rel=1e-3)


def test_three_parameters_need_three_numbers_of_gpus() -> None:
    two = Series.of("weak", [(scale, ring_rate(scale)) for scale in (Scale(1, 1), Scale(1, 2), Scale(2, 1))])
    assert {"Amdahl", "Gustafson"} == fitted_forms(two.points, Scale(2, 2)).keys() & {"Amdahl", "Gustafson", "USL"}


def test_a_prediction_holds_the_truth_and_names_its_forms() -> None:
    found = predict(RING, Scale(8, 4))
    assert found.samples_per_s_low < ring_rate(Scale(8, 4)) < found.samples_per_s_high
    assert found.efficiency == pytest.approx(found.samples_per_s / 32 / ring_rate(Scale(1, 1)))
    assert found.efficiency_low < found.efficiency < found.efficiency_high
    assert found.gpu_hours_per_million_samples == pytest.approx(32e6 / found.samples_per_s / 3600)
    assert (found.baseline, found.largest_measured) == ("1x1", "2x4")
    assert {model.name for model in found.models} >= {"Amdahl", "Gustafson", "USL"}
    assert not any(model.in_prediction for model in found.models if model.name in ("Gustafson", "USL", "Amdahl"))


def test_the_interval_grows_with_the_distance_and_over_a_border_that_was_not_measured() -> None:
    near, far = (estimate(RING, Scale(nodes, 4)) for nodes in (4, 16))
    assert far.slower > near.slower
    assert far.faster > near.faster
    inside = replace(RING, points=RING.points[:3])
    border, beyond = estimate(inside, Scale(1, 8)), estimate(inside, Scale(2, 4))
    assert beyond.slower > border.slower + 0.1
    assert any("node boundary" in note for note in predict(inside, Scale(2, 4)).notes)
    assert not any("node boundary" in note for note in predict(inside, Scale(1, 8)).notes)


def test_a_measured_all_reduce_replaces_the_guess_at_the_border() -> None:
    inside = replace(RING, points=RING.points[:3])
    batch = 32
    network = AllReduce(
        scale=Scale(2, 4), alpha_s=0.0, beta_s_per_byte=1e-9, gradient_bytes=100_000_000, buckets=4, overlap_s=0.05,
        batch_per_gpu=batch,
    )  # fmt: skip
    assert network.exposed_s_per_sample(Scale(2, 4), "weak") == pytest.approx(0.05 / batch)
    assert network.exposed_s_per_sample(Scale(1, 4), "weak") == 0
    assert network.exposed_s_per_sample(Scale(4, 4), "strong") > 2 * network.exposed_s_per_sample(Scale(2, 4), "strong")
    slow = replace(network, beta_s_per_byte=1e-8)
    rates = [estimate(inside, Scale(2, 4), known).samples_per_s for known in (network, slow)]
    assert rates[1] < 0.9 * rates[0]


def test_repeats_widen_the_interval_by_their_noise() -> None:
    quiet = estimate(RING, Scale(4, 4))
    noisy = Series.of("weak", [(scale, ring_rate(scale) * by) for scale in SHAPES for by in (0.9, 1.0, 1.1)])
    assert estimate(noisy, Scale(4, 4)).slower > quiet.slower
    measured = estimate(noisy, Scale(2, 4))
    assert measured.samples_per_s == pytest.approx(ring_rate(Scale(2, 4)))
    assert 0.05 < measured.slower < 0.3  # 10 %, the t of eight degrees of freedom, three repeats
    assert predict(RING, Scale(2, 4)).samples_per_s_low == pytest.approx(ring_rate(Scale(2, 4)))


def test_one_scale_gives_a_wide_interval_and_says_so() -> None:
    found = predict(Series.of("weak", [(Scale(1, 1), 100.0)]), Scale(2, 4))
    assert found.efficiency == pytest.approx(1)
    assert found.efficiency_low < 0.7
    assert any("measure a second scale" in note for note in found.notes)
    with pytest.raises(ValueError, match="no scale"):
        predict(Series("weak", ()), Scale(2, 4))


def test_where_to_stop() -> None:
    found = largest_scale(RING, 0.8)
    assert found.scale is not None
    best = Scale.parse(found.scale)
    above = estimate(RING, Scale(best.nodes + 1, 4))
    ideal = above.samples_per_s / (4 * (best.nodes + 1)) / ring_rate(Scale(1, 1))
    assert ideal < 0.8 <= (found.efficiency or 0)
    assert found.certain_scale is not None
    assert Scale.parse(found.certain_scale).nodes < best.nodes
    assert largest_scale(RING, 1.0).scale == "1x1"
    far = largest_scale(RING, 0.1)
    assert far.scale == f"{2 * FAR}x4"
    assert "measure a larger one" in far.note


def test_a_measured_scale_is_certain_though_one_below_it_was_not_measured() -> None:
    rates = {"1x1": 1000.0, "1x4": 3760.0, "2x4": 6900.0, "8x4": 24000.0}
    series = Series.of("strong", [(Scale.parse(name), rate) for name, rate in rates.items()])
    assert predict(series, Scale(1, 2)).efficiency_low < 0.8
    assert largest_scale(series, 0.8).certain_scale == "2x4"


def test_a_measured_dip_does_not_hide_a_larger_measured_scale() -> None:
    rates = {"1x1": 1000.0, "1x2": 1570.0, "1x4": 3280.0, "2x4": 6480.0}
    found = largest_scale(Series.of("weak", [(Scale.parse(name), rate) for name, rate in rates.items()]), 0.8)
    assert (found.scale, found.note) == ("3x4", "stop at 3x4: 4x4 is below 80 %")
    assert found.dips == "1x2 is below, at 78.5 %"


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_scales_far_from_any_form_give_finite_figures(mode: Mode) -> None:
    # Found with random tables: nothing was left for compute, and a form's time was 0.
    rates = {Scale(8, 4): 1.9e8, Scale(8, 128): 3.3e-4, Scale(100_000, 128): 0.53}
    found = predict(Series.of(mode, list(rates.items())), Scale(1, 1))
    assert 0 <= found.samples_per_s_low < found.samples_per_s < found.samples_per_s_high < math.inf


def test_series_from_the_points_of_the_gates() -> None:
    points = [
        ScalePoint(
            variant="default", mode="weak", stage="stage1", nodes=scale.nodes, gpus_per_node=scale.gpus_per_node,
            world_size=scale.world_size, batch_per_gpu=64, global_batch=64, repeats=3, samples_per_s=ring_rate(scale),
            samples_per_s_low=0.98 * ring_rate(scale), samples_per_s_high=1.02 * ring_rate(scale), status="ok",
        )
        for scale in SHAPES
    ]  # fmt: skip
    points.append(replace(points[0], nodes=4, status="not comparable"))
    points.append(replace(points[0], nodes=8, status="not run", samples_per_s=None))
    points.append(replace(points[0], variant="gloo"))
    found = series_of(points, "default", "weak")
    assert [str(point.scale) for point in found.points] == ["1x1", "1x2", "1x4", "2x4"]
    assert found.noise_of(found.largest) == pytest.approx(math.log(1.02 / 0.98) / 2)
