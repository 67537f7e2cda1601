"""A ladder that starts above one GPU: every ratio and sentence of its gates is against its first scale."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.gates.attribution import Attribution, attribution, baseline_of
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import performance
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from make_records import (
    make_failed_record,
    make_plan_of,
    make_record,
    make_specs,
    records_by_name,
    repeated,
    with_ranks,
)

RATES = {"1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}
STEPS_S = {"1x2": 0.05, "1x4": 0.1}  # 40 ms compute, 2 ms data wait, 8 ms rest at 1x2


def specs_of(*scales: str, mode: str = "weak") -> tuple[RunSpec, ...]:
    """Runs of a ladder whose first scale is the first of these; strong mode keeps its global batch."""
    first, *others = scales
    specs = (*make_specs([first], stage="stage1", modes=[mode]), *make_specs(others, modes=[mode]))
    if mode == "weak":
        return specs
    batch = 64 * specs[0].gpus
    return tuple(spec.replace(batch_per_gpu=batch // spec.gpus, global_batch=batch) for spec in specs)


def points_of(mode: str = "weak", failed: str = "") -> dict[str, ScalePoint]:
    specs = specs_of(*RATES, mode=mode)
    records = [
        make_failed_record(spec)
        if str(spec.scale) == failed
        else make_record(spec, repeated(RATES[str(spec.scale)], spec))
        for spec in specs
    ]
    return {str(point.scale): point for point in scale_points(specs, records_by_name(records))}


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_efficiency_is_per_gpu_of_the_first_scale(mode: str) -> None:
    points = points_of(mode)
    first, top = points["1x2"], points["2x4"]
    assert {point.baseline for point in points.values()} == {"1x2"}
    assert (first.status, first.speedup, first.efficiency, first.is_baseline) == ("ok", 1.0, 1.0, True)
    assert (top.status, top.speedup) == ("ok", pytest.approx(6500 / 1900))
    assert top.efficiency == pytest.approx(6500 / 1900 / 4)
    assert top.efficiency_low is not None
    assert top.efficiency_high is not None
    assert top.efficiency_low < (top.efficiency or 0) < top.efficiency_high
    assert top.efficiency_plain is None
    assert top.note == ""


def steps(*, data_s: float = 0.002, compute_s: float = 0.04) -> list[Record]:
    """Records of 1x2 with steps of 50 ms, and of 1x4 with 100 ms."""
    found = []
    for spec in specs_of(*STEPS_S):
        step_s = STEPS_S[str(spec.scale)] * (1 + 0.01 * (spec.repeat - 2))
        is_first = str(spec.scale) == "1x2"
        parts = ([0.04] if is_first else [compute_s], [0.0], [0.002] if is_first else [data_s])
        compute, exposed, data = (part * spec.gpus for part in parts)
        record = make_record(spec, spec.global_batch / step_s)
        found.append(with_ranks(record, compute_s=compute, exposed_comm_s=exposed, data_wait_s=data))
    return found


def attributed(records: list[Record]) -> tuple[tuple[ScalePoint, ...], Attribution]:
    points = scale_points([record.spec for record in records], records_by_name(records))
    found = attribution(points[-1], baseline_of(points[-1], points))
    assert found
    return points, found


def test_losses_are_against_the_first_scale() -> None:
    points, found = attributed(steps(compute_s=0.088))
    assert points[1].efficiency == pytest.approx(0.5)
    assert found.ideal_s == pytest.approx(0.05, rel=1e-3)
    (loss,) = found.named
    assert loss.name == "slower computation than at 1x2"
    assert loss.evidence == "forward and backward pass take 88.0 ms, and 40.0 ms for as many samples at 1x2"
    assert found.next.startswith("see whether the ranks share what 1x2 had alone")
    _, found = attributed(steps(data_s=0.05))
    assert found.named[0].evidence == "data wait 50.0 ms in each step, 2.00 ms at 1x2"


def test_more_than_the_ideal_names_the_first_scale() -> None:
    specs = specs_of("2x2", "2x4")
    records = [make_record(spec, repeated(1000.0 * (5 if spec.gpus == 8 else 1), spec)) for spec in specs]
    points = scale_points(specs, records_by_name(records))
    (finding,) = (
        one for one in performance(make_plan_of(specs), points[-1], points, Path("results")) if one.check == "baseline"
    )
    assert not finding.ok
    assert "look for other load on the nodes of 2x2, delete results/runs/default/weak/2x2 and start" in finding.next
