"""Efficiency by total time: the centres' formula, also where the runs trained different numbers of samples."""

import pytest
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import efficiency_by_total_time, gpu_s_per_sample, scale_points
from ddp_ladder.records.record import Record
from make_records import make_record, make_spec, make_specs, records_by_name


def run(scale: str, wall_s: float, samples: int, repeat: int = 1) -> Record:
    """A run that trained ``samples`` in all in a time."""
    record = make_record(make_spec(scale, repeat=repeat))
    assert record.timing is not None
    ranks = tuple(rank.replace(samples=samples // record.spec.gpus) for rank in record.ranks)
    return record.replace(ranks=ranks, timing=record.timing.replace(wall_s=wall_s))


def test_the_same_work_gives_the_centres_formula() -> None:
    """CSC: a speed-up of 1.5 when doubling the nodes, or of 3 when quadrupling, is 75 %."""
    base = run("1x4", 600.0, 8000)
    assert efficiency_by_total_time([run("2x4", 400.0, 8000)], [base]) == (pytest.approx(0.75), None, None)
    assert efficiency_by_total_time([run("4x4", 200.0, 8000)], [base]) == (pytest.approx(0.75), None, None)


def test_other_work_is_compared_by_the_sample() -> None:
    assert gpu_s_per_sample(run("2x4", 400.0, 16000)) == 0.2
    found = efficiency_by_total_time([run("2x4", 800.0, 16000)], [run("1x4", 600.0, 8000)])
    assert found == (pytest.approx(0.75), None, None)


def test_repeats_give_an_interval_and_unknown_samples_nothing() -> None:
    base = [run("1x1", 100 + k, 1000, k + 1) for k in range(3)]
    here = [run("1x2", 60 + k, 1000, k + 1) for k in range(3)]
    value, low, high = efficiency_by_total_time(here, base) or (0, 0, 0)
    assert value == pytest.approx(101 / (2 * 61))
    assert low < value < high
    assert efficiency_by_total_time([*here, run("1x2", 60, 0, 4)], base) is None
    assert efficiency_by_total_time(here, []) is None


def points_of(scales: list[str], startup_s: float) -> dict[str, ScalePoint]:
    specs = [spec.replace(stage="stage1" if str(spec.scale) == scales[0] else "stage3") for spec in make_specs(scales)]
    records = []
    for spec in specs:
        record = make_record(spec, 1000.0 * spec.gpus * 0.9 ** (spec.gpus - 1))
        assert record.timing is not None
        records.append(record.replace(timing=record.timing.replace(wall_s=130 * record.timing.step_time_s + startup_s)))
    return {str(point.scale): point for point in scale_points(specs, records_by_name(records))}


def test_it_is_against_the_first_scale() -> None:
    points = points_of(["1x2", "2x2"], 5.0)
    assert points["1x2"].efficiency_total_time == 1
    assert points["2x2"].efficiency_total_time is not None
