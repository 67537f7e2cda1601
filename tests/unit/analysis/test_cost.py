"""What a training costs at each scale."""

import pytest
from ddp_ladder.analysis.decisions import Work, with_cost
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import Units
from make_records import make_record, make_specs, records_by_name, repeated


def priced(work: Work, joules: float | None = 7.2) -> ScalePoint:
    """2x4 at 6,500 samples/s."""
    specs = make_specs(["1x1", "2x4"])
    records = [make_record(spec, repeated(1000.0 if spec.gpus == 1 else 6500.0, spec)) for spec in specs]
    _, point = scale_points(specs, records_by_name(records))
    (priced_point,) = with_cost([point.having({"energy_j_per_sample": joules})], work, Units())
    return priced_point


@pytest.mark.parametrize("work", [Work(90, None, 50_000), Work(None, 4_500_000), Work(3, 4_500_000, 50_000)])
def test_a_whole_training(work: Work) -> None:
    point = priced(work)
    assert point["hours_to_solution"] == pytest.approx(4_500_000 / 6500 / 3600)
    assert point.of("hours_to_solution").high == pytest.approx(4_500_000 / point.of("samples_per_s").low / 3600)
    assert point.of("hours_to_solution").low < point["hours_to_solution"]
    assert point["gpu_hours_to_solution"] == pytest.approx(8 * 4_500_000 / 6500 / 3600)
    assert point["energy_kwh_to_solution"] == pytest.approx(9)
    # Start-up, and the time of all steps and what is between them, which is 1 / 0.9 of that of the steps here.
    assert point["wall_hours_to_solution"] == pytest.approx((4.2 + 4_500_000 / (0.9 * 6500)) / 3600)


def test_what_is_not_known_stays_unknown() -> None:
    point = priced(Work(epochs=90), joules=None)
    assert (point["hours_to_solution"], point["energy_kwh_to_solution"]) == (None, None)
    assert "set report.samples" in Work(epochs=90).missing
    assert Work().missing == Work(90, None, 10).missing == Work(90, 5).missing == ""
    empty = ScalePoint("default", "weak", "stage2", 1, 2, 2, 64, 128, 0)
    assert with_cost([empty], Work(90, None, 10), Units()) == (empty,)
