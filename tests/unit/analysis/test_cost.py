"""What a training costs at each scale, and which one is recommended."""

from dataclasses import replace

import pytest
from ddp_ladder.analysis.cost import Work, recommended, with_cost
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from make_records import make_record, make_specs, records_by_name, repeated

RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}
GATES = {"stage1": None, "stage2": None, "stage3": None}


def points_of(rates: dict[str, float], other: str = "") -> dict[str, ScalePoint]:
    """The points of a ladder with these samples/s, by scale; one of them of another precision."""
    specs = make_specs(list(rates))
    records = [
        make_record(
            spec,
            repeated(rates[str(spec.scale)], spec),
            fingerprint={"autocast_dtype": "float16"} if str(spec.scale) == other else None,
        )
        for spec in specs
    ]
    return {str(point.scale): point for point in scale_points(specs, records_by_name(records))}


def priced(work: Work, joules: float | None = 7.2) -> ScalePoint:
    """2x4 at 6,500 samples/s."""
    (point,) = with_cost([replace(points_of(RATES)["2x4"], energy_j_per_sample=joules)], work)
    return point


@pytest.mark.parametrize("work", [Work(90, None, 50_000), Work(None, 4_500_000), Work(3, 4_500_000, 50_000)])
def test_a_whole_training(work: Work) -> None:
    point = priced(work)
    assert point.hours_to_solution == pytest.approx(4_500_000 / 6500 / 3600)
    assert point.samples_per_s_low is not None
    assert point.hours_to_solution_high == pytest.approx(4_500_000 / point.samples_per_s_low / 3600)
    assert point.hours_to_solution_low is not None
    assert point.hours_to_solution_low < point.hours_to_solution
    assert point.gpu_hours_to_solution == pytest.approx(8 * 4_500_000 / 6500 / 3600)
    assert point.energy_kwh_to_solution == pytest.approx(9)
    # Start-up, and the rate end to end, which is 0.9 of the steps' rate in these records.
    assert point.wall_hours_to_solution == pytest.approx((4.2 + 4_500_000 / (0.9 * 6500)) / 3600)


def test_what_is_not_known_stays_unknown() -> None:
    point = priced(Work(epochs=90), joules=None)
    assert (point.hours_to_solution, point.energy_kwh_to_solution) == (None, None)
    assert "set report.samples" in Work(epochs=90).missing
    assert Work().missing == Work(90, None, 10).missing == Work(90, 5).missing == ""
    empty = ScalePoint("default", "weak", "stage2", 1, 2, 2, 64, 128, 0)
    assert with_cost([empty], Work(90, None, 10)) == (empty,)


def chosen(rates: dict[str, float], gates: dict[str, float | None] = GATES, other: str = "") -> str:
    found = recommended(list(points_of(rates, other).values()), gates)
    assert found
    return str(found[0].scale)


def test_the_recommended_scale() -> None:
    rates = {**RATES, "4x4": 9000.0}
    assert chosen(rates) == "2x4"
    assert chosen(rates, {**GATES, "stage3": 0.9}) == "1x4"
    assert chosen(rates, {**GATES, "stage3": 0.5}) == "4x4"
    assert chosen(rates, other="2x4") == "1x4"  # does not compare; 4x4 has less than 75 %
    assert chosen({"1x1": 1000.0, "1x2": 900.0}) == "1x1"
    low = {**GATES, "stage2": 0.3, "stage3": 0.2}
    assert chosen({"1x1": 1000.0, "1x2": 1100.0, "2x2": 900.0}, low) == "1x2"  # slower than a smaller one
    assert chosen({"1x1": 1000.0, "1x2": 2500.0}) == "1x1"  # more than the ideal
    assert recommended([], GATES) is None


@pytest.mark.parametrize(
    ("gates", "rule"),
    [(GATES, "75 %, as most centres ask for"), ({"stage3": 0.7}, "70 %, as the gate of stage3 asks for")],
)
def test_a_recommendation_says_its_rule(gates: dict[str, float | None], rule: str) -> None:
    found = recommended(list(points_of(RATES).values()), gates)
    assert found
    assert found[1] == f"the largest scale whose efficiency against 1x1 is at least {rule}"
