"""FLOP/s of each GPU, and their shares of the matrix rate and of the data sheet's peak."""

import pytest
from ddp_ladder.analysis.decisions import in_words, peaks, rate_of, with_flops
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.records.raw_models import Flops
from make_records import make_record, make_specs, records_by_name

A100 = "NVIDIA A100-SXM4-40GB"
COUNTED = Flops(forward=8.2e9, backward=16.2e9, recomputed=8e9, precisions={"bf16": 1.0}, steps=3)


def points_of(flops: Flops, other: str = "") -> dict[str, ScalePoint]:
    specs, records = make_specs(["1x1", "1x4", "2x4"], device="cuda"), []
    for spec in specs:
        seen = {"gpu": A100} | ({"autocast_dtype": "float16"} if str(spec.scale) == other else {})
        record = make_record(spec, 1000.0 * spec.gpus, fingerprint=seen)
        records.append(record.replace(flops=flops if str(spec.scale) == "1x1" else None, ranks=()))
    points = scale_points(specs, records_by_name(records))
    rates = {"1x1": {"bf16": 250.0, "fp32": 19.0}, "1x4": {"bf16": 200.0}, "2x4": {"bf16": 20.0}}
    return {str(point.scale): point for point in with_flops(points, rates)}


def test_flops_of_the_first_scale_hold_at_every_other() -> None:
    points = points_of(COUNTED)
    for point in points.values():
        assert point["model_flops_per_sample"] == 24.4e9  # what is recomputed is no work of the model
        assert point["tflop_per_s_per_gpu"] == pytest.approx(24.4)
        assert point["fraction_of_peak"] == pytest.approx(24.4 / 312)
    shares = [point["fraction_of_matrix_rate"] for point in points.values()]
    # The last is not measured well: the training does more.
    assert shares == [pytest.approx(24.4 / 250), pytest.approx(24.4 / 200), None]


def test_flops_of_another_fingerprint_are_not_used() -> None:
    points = points_of(COUNTED, other="2x4")
    assert points["1x4"]["tflop_per_s_per_gpu"] is not None
    assert (points["2x4"]["tflop_per_s_per_gpu"], points["2x4"]["model_flops_per_sample"]) == (None, None)


def test_what_was_not_counted_is_said_at_every_scale() -> None:
    points = points_of(Flops(why="torch.compile"))
    assert {point.flops_not_counted for point in points.values()} == {"torch.compile"}
    assert {point["tflop_per_s_per_gpu"] for point in points.values()} == {None}


def test_parts_in_several_precisions_are_done_one_after_another() -> None:
    mixed = {"fp32": 0.1, "tf32": 0.9}
    assert rate_of(mixed, {"fp32": 20.0, "tf32": 100.0}) == pytest.approx(1 / (0.1 / 20 + 0.9 / 100))
    assert rate_of(mixed, {"tf32": 100.0}) is None
    assert (in_words(mixed).split(), in_words({"bf16": 1.0})) == (["90", "%", "tf32,", "10", "%", "fp32"], "bf16")


@pytest.mark.parametrize(
    ("gpu", "bf16"),
    [
        (A100, 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A100-SXM-64GB", None),  # Leonardo's, which has more multiprocessors
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA GH200 120GB", 989.4),
        ("NVIDIA H200", 989.4),
        ("AMD Instinct MI250X", 191.5),
        ("Tesla V100-SXM2-32GB", None),
        ("NVIDIA L40S", 362.05),
        (None, None),
    ],
)
def test_peaks_are_those_of_exactly_this_gpu(gpu: str | None, bf16: float | None) -> None:
    assert peaks(gpu).get("bf16") == bf16


def test_a_point_without_a_baseline_is_left_as_it_is() -> None:
    (point, *_) = points_of(COUNTED).values()
    alone = point.having({"tflop_per_s_per_gpu": None}, nodes=4, baseline="1x1")
    assert with_flops([alone], {}) == (alone,)
