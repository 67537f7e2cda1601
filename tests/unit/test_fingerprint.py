"""Which runs may be divided by each other."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_ladder.fingerprint import MUST_MATCH, differences, must_match
from ddp_ladder.record import Record
from make_records import make_record, make_spec

MEASURED = {
    "script_sha256": "f" * 64,
    "parameter_dtype": "bfloat16",
    "autocast_dtype": "bfloat16",
    "optimizer": "Adadelta",
    "num_workers": 8,
    "torch": "2.14.0",
    "cuda": "13.0",
    "nccl": "2.27.3",
    "python": "3.12.1",
    "gpu": "NVIDIA H200",
    "cpu_model": "Another CPU",
    "threads": 2,
}


def at(scale: str, mode: str = "weak", **fingerprint: Any) -> Record:
    return make_record(make_spec(scale, mode=mode), fingerprint=fingerprint)


def test_equal_runs_do_not_differ() -> None:
    assert differences(at("1x1"), at("2x4")) == ()
    assert differences(at("1x1", "strong"), at("1x4", "strong")) == ()


@pytest.mark.parametrize(("name", "value"), MEASURED.items())
def test_each_measured_field_counts(name: str, value: Any) -> None:
    (found,) = differences(at("1x1"), at("2x4", **{name: value}))
    assert found.startswith(f"{name}: ")
    assert " at 1x1, " in found
    assert found.endswith(" at 2x4")


def test_every_field_has_a_reason_and_is_tested() -> None:
    planned = {"script", "args_template", "threads_per_rank", "device"}
    assert {item.name for item in MUST_MATCH} == set(MEASURED) | planned
    assert all(len(item.reason) > 20 for item in must_match("weak"))


def test_words() -> None:
    assert differences(at("1x1"), at("2x4", num_workers=8)) == ("num_workers: 0 at 1x1, 8 at 2x4",)


def test_repeats_of_one_scale_are_told_apart() -> None:
    first, second = make_spec("1x2"), make_spec("1x2", repeat=2)
    found = differences(make_record(first), make_record(second, fingerprint={"torch": "2.14.0"}))
    assert found == ("torch: 2.13.0 in r1, 2.14.0 in r2",)


@pytest.mark.parametrize(
    "changes",
    [{"script": "other.py"}, {"args_template": ("--amp",)}, {"threads_per_rank": 4}],
)
def test_each_planned_field_counts(changes: dict[str, Any]) -> None:
    (found,) = differences(at("1x1"), make_record(make_spec("1x2", **changes)))
    assert found.startswith(next(iter(changes)))


def test_filled_in_arguments_and_learning_rate_may_differ() -> None:
    a = make_record(make_spec("1x1", lr=0.1, args=("--lr", "0.1")))
    b = make_record(make_spec("1x2", lr=0.2, args=("--lr", "0.2")))
    assert differences(a, b) == ()


def test_a_cpu_process_is_no_baseline_for_a_gpu() -> None:
    found = differences(make_record(make_spec("1x1")), make_record(make_spec("1x2", device="cuda")))
    assert "device: cpu at 1x1, cuda at 1x2" in found


def test_one_other_gpu_in_the_group_is_noticed() -> None:
    a, b = (make_record(make_spec(scale, device="cuda")) for scale in ("1x1", "1x2"))
    slow = replace(b.ranks[1], device={**b.ranks[1].device, "name": "NVIDIA A100-SXM4-40GB"})
    (found,) = differences(a, replace(b, ranks=(b.ranks[0], slow)))
    assert found == ("gpu: NVIDIA A100-SXM4-64GB at 1x1, NVIDIA A100-SXM4-40GB + NVIDIA A100-SXM4-64GB at 1x2")


def test_weak_keeps_the_batch_per_gpu_that_was_really_used() -> None:
    found = differences(at("1x1"), at("1x2", batch_per_gpu=32))
    assert found == ("batch_per_gpu: 64 at 1x1, 32 at 1x2",)


def test_strong_keeps_the_global_batch_that_was_really_used() -> None:
    assert differences(at("1x1", "strong"), at("1x2", "strong", batch_per_gpu=32)) == ()
    found = differences(at("1x1", "strong"), at("1x2", "strong", batch_per_gpu=64))
    assert found == ("global_batch: 64 at 1x1, 128 at 1x2",)


def test_modes_are_never_compared() -> None:
    with pytest.raises(ValueError, match="different modes"):
        differences(at("1x1"), at("1x1", "strong"))


def test_long_values_are_cut_but_stay_distinct() -> None:
    common = "--same " * 20
    a = make_record(make_spec("1x1", args_template=(common, "--a")))
    b = make_record(make_spec("1x2", args_template=(common, "--b")))
    (found,) = differences(a, b)
    assert "--a at 1x1" in found
    assert "--b at 1x2" in found
