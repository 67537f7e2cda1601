"""Which runs may be divided by each other."""

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.fingerprint import MUST_MATCH, differences
from ddp_ladder.records.record import Record
from ddp_ladder.settings.terms import MAY_DIFFER
from make_records import make_record, make_spec
from make_runs import edit, write_run

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
    "sources": {"train.py": "1" * 64, "model.py": "a" * 64},
    "configuration": {"conf.yaml": "1" * 64},
    "float32_products": "high",
    "cudnn": 91000,
    "libraries": {"numpy": "2.0.0", "torchvision": "0.22.0"},
    "driver": "580.65.06",
    "power_limit_w": [400.0],
}
KNOWN = {
    "sources": {"train.py": "1" * 64, "model.py": "b" * 64},
    "configuration": {"conf.yaml": "2" * 64},
    "float32_products": "highest",
    "cudnn": 90800,
    "libraries": {"numpy": "2.1.0"},
    "driver": "570.124.06",
    "power_limit_w": [500.0],
}
"""Compared only where both sides know."""


def at(scale: str, mode: str = "weak", **fingerprint: Any) -> Record:
    return make_record(make_spec(scale, mode=mode), fingerprint=fingerprint)


def test_equal_runs_do_not_differ() -> None:
    assert differences(at("1x1"), at("2x4")) == ()
    assert differences(at("1x1", "strong"), at("1x4", "strong")) == ()


@pytest.mark.parametrize(("name", "value"), MEASURED.items())
def test_each_measured_field_counts(name: str, value: Any) -> None:
    (found,) = differences(at("1x1", **KNOWN), at("2x4", **{**KNOWN, name: value}))
    assert found.startswith(f"{name}: ")
    assert " at 1x1, " in found
    assert found.endswith(" at 2x4")


def test_every_field_may_differ_or_is_the_device_and_is_tested() -> None:
    planned = {"script", "args_template", "threads_per_rank", "device", "compiled", "parameters"}
    planned.add("steps")  # test_training_done.py
    assert {item.name for item in MUST_MATCH} == set(MEASURED) | planned
    assert {item.name for item in MUST_MATCH} == {*MAY_DIFFER, "device"}


def test_of_files_those_that_both_have_count_and_are_named() -> None:
    found = differences(at("1x1", sources=KNOWN["sources"]), at("1x2", sources=MEASURED["sources"]))
    assert found == ("sources: model.py bbbbbbbbbbbb at 1x1, model.py aaaaaaaaaaaa at 1x2",)
    assert differences(at("1x1", sources={"a.py": "1"}), at("1x2", sources={"a.py": "1", "only_in_ddp.py": "2"})) == ()


def test_compiled_or_not_counts_and_not_into_how_many_graphs() -> None:
    assert differences(at("1x1", compiled_graphs=1), at("1x2", compiled_graphs=4)) == ()
    assert differences(at("1x1", compiled_graphs=0), at("1x2", compiled_graphs=4)) == (
        "compiled: no at 1x1, yes at 1x2",
    )


def test_another_model_is_no_baseline_unless_each_rank_holds_a_part() -> None:
    def with_count(scale: str, count: int, sharded: bool) -> Record:
        record = at(scale)
        seen = {"count": count, "bytes": 4 * count, "checksum": "sha256:a", "sharded": sharded}
        return record.replace(ranks=tuple(rank.replace(parameters=seen) for rank in record.ranks))

    assert differences(with_count("1x1", 10, False), with_count("1x2", 20, False)) == (
        "parameters: 10 at 1x1, 20 at 1x2",
    )
    assert differences(with_count("1x1", 10, False), with_count("1x2", 5, True)) == ()


def test_what_the_user_allows_to_differ_is_left_out() -> None:
    here, there = at("1x1", threads=2), at("2x4", num_workers=8)
    assert len(differences(here, there)) == 2
    assert differences(here, there, ("num_workers",)) == ("threads: 2 at 1x1, 1 at 2x4",)
    assert differences(here, there, MAY_DIFFER) == ()


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
    slow = b.ranks[1].replace(device=b.ranks[1].device.replace(name="NVIDIA A100-SXM4-40GB"))
    (found,) = differences(a, b.replace(ranks=(b.ranks[0], slow)))
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


# What a record has of it


def write_pair(directory: Path) -> RunDirectory:
    return write_run(directory, make_spec("1x2"))


def test_of_ddp_the_job_and_all_ranks(tmp_path: Path) -> None:
    run = write_pair(tmp_path)
    seen: dict[str, Any] = {"bucket_bytes": [400_000, 205_224], "comm_hook": "fp16_compress_hook"}
    edit(run.ranks / "rank0.json", lambda end: end["ddp"].update(seen))
    edit(run.ranks / "rank0.json", lambda end: end["fingerprint"].update(cpu_set="0-3"))
    edit(run.ranks / "rank1.json", lambda end: end["fingerprint"].update(cpu_set="4-7", batch_per_gpu=32))
    edit(run.run, lambda data: data.update(repository={"commit": "c" * 40, "dirty": True}))
    fingerprint = assemble(run).fingerprint
    assert fingerprint["bucket_bytes"] == [400_000, 205_224]
    assert fingerprint["gradient_bytes"] == 605_224
    assert fingerprint["comm_hook"] == "fp16_compress_hook"
    assert fingerprint["cpu_sets"] == ["0-3", "4-7"]
    assert fingerprint["global_batch"] == 64 + 32
    assert (fingerprint["git_commit"], fingerprint["git_dirty"]) == ("c" * 40, True)


def test_long_values_are_cut_but_stay_distinct() -> None:
    common = "--same " * 20
    a = make_record(make_spec("1x1", args_template=(common, "--a")))
    b = make_record(make_spec("1x2", args_template=(common, "--b")))
    (found,) = differences(a, b)
    assert "--a at 1x1" in found
    assert "--b at 1x2" in found
