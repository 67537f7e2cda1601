"""Ratios to one node and to the smallest scale measured: like for like, or named as not."""

from collections.abc import Mapping
from typing import Any

import pytest
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import not_comparable, scale_points, serial_fraction
from make_records import make_failed_record, make_record, make_specs, records_by_name, repeated

OLIVIA = {"1x1": 5126.4, "1x4": 37244.4, "2x4": 63190.2}  # images/s of the PyTorch guide for Olivia (NRIS)
AMP = {"autocast_dtype": "float16", "num_workers": 8}


def points_of(
    rates: Mapping[str, float],
    fingerprints: Mapping[str, Mapping[str, Any]] | None = None,
    may_differ: tuple[str, ...] = (),
    failed: str = "",
    **changes: Any,
) -> dict[str, ScalePoint]:
    """The points of a ladder with these samples/s, by scale."""
    specs = make_specs(list(rates), **changes)
    records = [
        make_failed_record(spec)
        if str(spec.scale) == failed
        else make_record(
            spec, repeated(rates[str(spec.scale)], spec), fingerprint=(fingerprints or {}).get(str(spec.scale))
        )
        for spec in specs
    ]
    return {str(point.scale): point for point in scale_points(specs, records_by_name(records), may_differ)}


def test_the_olivia_guide_compares_4_to_8_gpus_but_not_1_to_4() -> None:
    one, node, two = points_of(OLIVIA, {"1x4": AMP, "2x4": AMP}).values()
    assert (node.status, node.speedup, node.efficiency) == ("not comparable", None, None)
    assert not_comparable(node.differing) == "not comparable: precision, workers"
    assert node.smallest_obstacle == "1x1 not comparable: precision, workers"
    assert two.efficiency is None
    assert two.efficiency_node == two.efficiency_smallest == pytest.approx(0.848, abs=5e-4)
    assert two.speedup_node == pytest.approx(1.6966, abs=1e-4)
    assert (two.node_baseline, two.smallest_baseline) == ("1x4", "1x4")
    assert "against 1x4, the smallest scale that compares: speed-up 1.70, efficiency 84.8\u00a0% [" in two.note
    assert (one.smallest_baseline, one.efficiency_smallest, one.smallest_obstacle) == ("1x1", 1, "")
    assert "against" not in node.note


RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_each_baseline_has_a_ratio_of_its_own(mode: str) -> None:
    points = points_of(RATES, modes=[mode])
    top = points["2x4"]
    assert top.efficiency == top.efficiency_smallest == pytest.approx(6500 / 8000)
    assert (top.speedup_node, top.efficiency_node) == (pytest.approx(6500 / 3500), pytest.approx(6500 / 7000))
    for ends in (
        (top.efficiency_node_low, top.efficiency_node, top.efficiency_node_high),
        (top.speedup_smallest_low, top.speedup_smallest, top.speedup_smallest_high),
        (top.serial_fraction_low, top.serial_fraction, top.serial_fraction_high),
    ):
        low, value, high = ends
        assert low is not None
        assert value is not None
        assert high is not None
        assert low < value < high
    assert [points[scale].node_baseline for scale in RATES] == ["", "", "1x4", "1x4"]
    assert points["1x4"].efficiency_node == 1
    assert {point.smallest_baseline for point in points.values()} == {"1x1"}


def test_a_ladder_whose_model_does_not_fit_one_gpu() -> None:
    points = points_of(RATES, failed="1x1")
    top = points["2x4"]
    assert (top.status, top.efficiency, top.smallest_baseline) == ("not comparable", None, "1x2")
    assert (top.speedup_smallest, top.efficiency_smallest) == (pytest.approx(6500 / 1900), pytest.approx(6500 / 7600))
    assert top.serial_fraction == pytest.approx(serial_fraction(6500 / 1900, 4))
    assert top.note.startswith("the 1x1 baseline of default, weak, failed; against 1x2, the smallest scale that ")
    assert points["1x1"].smallest_baseline == ""


@pytest.mark.parametrize(("failed", "why"), [("", "1x4 is not in the plan"), ("1x4", "1x4 failed")])
def test_without_a_measured_node_it_is_said(failed: str, why: str) -> None:
    rates = RATES if failed else {scale: rate for scale, rate in RATES.items() if scale != "1x4"}
    top = points_of(rates, failed=failed)["2x4"]
    assert (top.efficiency_node, top.node_baseline, top.node_obstacle) == (None, "", why)
    assert top.efficiency == top.efficiency_smallest


def test_the_serial_fraction_of_amdahl_is_found() -> None:
    serial = 0.05
    speedups = {times: 1 / (serial + (1 - serial) / times) for times in (2, 8, 64)}
    assert [serial_fraction(speedup, times) for times, speedup in speedups.items()] == pytest.approx([serial] * 3)
    assert serial_fraction(8, 8) == 0
