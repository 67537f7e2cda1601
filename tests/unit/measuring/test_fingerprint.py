"""Which runs may be divided by each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.measuring.fingerprint import MUST_MATCH, all_differences
from ddp_ladder.records.record import Record, Source
from ddp_ladder.settings.terms import MAY_DIFFER
from make_records import make_record, make_spec
from make_runs import edit_batches, reassemble, write_run

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
    "slow_settings": ["CUDA_LAUNCH_BLOCKING=1"],
    "tokens_per_sample": 4096,
}
KNOWN = {
    "sources": {"train.py": "1" * 64, "model.py": "b" * 64},
    "configuration": {"conf.yaml": "2" * 64},
    "float32_products": "highest",
    "cudnn": 90800,
    "libraries": {"numpy": "2.1.0"},
    "driver": "570.124.06",
    "power_limit_w": [500.0],
    "slow_settings": [],
    "tokens_per_sample": 2048,
}
"""Compared only where both sides know."""


def differences(a: Record, b: Record) -> tuple[str, ...]:
    return tuple(difference.in_words for difference in all_differences(a, b))


def at(scale: str, mode: str = "weak", **fingerprint: Any) -> Record:
    return make_record(make_spec(scale, mode=mode), fingerprint=fingerprint)


@pytest.mark.parametrize(("name", "value"), MEASURED.items())
def test_each_measured_field_counts(name: str, value: Any) -> None:
    (found,) = differences(at("1x1", **KNOWN), at("2x4", **{**KNOWN, name: value}))
    assert found.startswith(f"{name}: ")
    assert " at 1x1, " in found
    assert found.endswith(" at 2x4")


def test_every_field_may_differ_or_is_the_device_and_is_tested() -> None:
    other = "script args_template threads_per_rank device compiled parameters exchanges steps backend_class".split()
    assert {item.name for item in MUST_MATCH} == {*MEASURED, *other} == {*MAY_DIFFER, "device"}


def planned(scale: str, **changes: Any) -> Record:
    return make_record(make_spec(scale, **changes))


def with_parameters(scale: str, count: int, sharded: bool = False) -> Record:
    record = at(scale)
    seen = {"count": count, "checksum": "sha256:a", "sharded": sharded}
    return record.replace(ranks=tuple(rank.replace(parameters=seen) for rank in record.ranks))


NCCL, NCCL2 = ({"backend_class": name} for name in ("ProcessGroupNCCL", "ProcessGroupNCCL2"))


def with_gpu_of_rank_1(scale: str, name: str) -> Record:
    record = planned(scale, device="cuda")
    other = record.ranks[1].replace(device=record.ranks[1].device.replace(name=name))
    return record.replace(ranks=(record.ranks[0], other))


LONG = "--same " * 20
VARY = {"batch_varies": [8, 90]}
PAIRS: dict[str, tuple[Record, Record, str]] = {
    "weak": (at("1x1"), at("2x4"), ""),
    "strong": (at("1x1", "strong"), at("1x4", "strong"), ""),
    "strong, the same global batch": (at("1x1", "strong"), at("1x2", "strong", batch_per_gpu=32), ""),
    "batches that vary, by chance": (at("1x1", **VARY), at("1x2", **VARY, global_batch=125), ""),
    "batches that vary, of more samples": (
        at("1x1", **VARY),
        at("1x2", **VARY, global_batch=143),
        "batch_per_gpu: 64 at 1x1, 71.5 at 1x2",
    ),
    "gradients that accelerate sends in each pass of one process, and else once": (
        at("1x1", exchanges=4, backward_passes=4),
        at("1x2", exchanges=1, backward_passes=4),
        "exchanges: 4 in 4 backward passes at 1x1, 1 in 4 backward passes at 1x2",
    ),
    "gradients that are sent in each pass, of which strong scaling has fewer": (
        at("1x1", exchanges=4, backward_passes=4),
        at("1x4", exchanges=1, backward_passes=1),
        "",
    ),
    "of files those that both have": (
        at("1x1", sources=KNOWN["sources"]),
        at("1x2", sources=MEASURED["sources"]),
        "sources: model.py bbbbbbbbbbbb at 1x1, model.py aaaaaaaaaaaa at 1x2",
    ),
    "compiled into more graphs": (at("1x1", compiled_graphs=1), at("1x2", compiled_graphs=4), ""),
    "compiled": (at("1x1", compiled_graphs=0), at("1x2", compiled_graphs=4), "compiled: no at 1x1, yes at 1x2"),
    "another model": (with_parameters("1x1", 10), with_parameters("1x2", 20), "parameters: 10 at 1x1, 20 at 1x2"),
    "each rank holds a part of it": (with_parameters("1x1", 10), with_parameters("1x2", 5, sharded=True), ""),
    "another backend": (
        at("1x2", **NCCL),
        at("2x4", **NCCL2),
        "backend_class: ProcessGroupNCCL at 1x2, ProcessGroupNCCL2 at 2x4",
    ),
    "one rank sends nothing": (at("1x1", **NCCL), at("1x2", **NCCL2), ""),
    "repeats": (planned("1x2"), planned("1x2", repeat=2, threads_per_rank=4), "threads_per_rank: 1 in r1, 4 in r2"),
    "threads": (planned("1x1"), planned("1x2", threads_per_rank=4), "threads_per_rank: 1 at 1x1, 4 at 1x2"),
    "long values are cut but stay distinct": (
        planned("1x1", args_template=(LONG, "--a")),
        planned("1x2", args_template=(LONG, "--b")),
        f"args_template: {LONG} --a at 1x1, {LONG} --b at 1x2",
    ),
    "learning rate": (planned("1x1", lr=0.1, args=("--lr", "1")), planned("1x2", lr=0.2, args=("--lr", "2")), ""),
    "one other GPU in the group": (
        planned("1x1", device="cuda"),
        with_gpu_of_rank_1("1x2", "NVIDIA A100-SXM4-40GB"),
        "gpu: NVIDIA A100-SXM4-64GB at 1x1, NVIDIA A100-SXM4-40GB + NVIDIA A100-SXM4-64GB at 1x2",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_named_with_both_values(name: str) -> None:
    a, b, words = PAIRS[name]
    assert "".join(differences(a, b)) == words


@pytest.mark.parametrize("name", ["sources", "float32_products", "compiled_graphs", "nccl", "script_sha256"])
def test_what_could_not_be_read_equals_nothing(name: str) -> None:
    """Not even what could not be read either."""
    field, seen = name.removesuffix("_graphs"), at("2x4", unread=(name,))
    (found,) = differences(at("1x1", unread=(name,)), seen)
    assert found == f"{field}: could not be read at 1x1, could not be read at 2x4"
    (found,) = all_differences(at("1x1"), seen)
    assert (found.field, found.in_words.partition(", ")[2]) == (field, "could not be read at 2x4")


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([4, 9, 32, 17, 5, 11], (4, 32)),
        ([64] * 4 + [17], None),
        ([64, 17], None),  # passes of two steps
        ([64, 64, 32, 17], None),
    ],
)
def test_only_a_size_that_most_steps_lack_varies(tmp_path: Path, sizes: list[int], found: tuple[int, int]) -> None:
    run = write_run(tmp_path, make_spec("1x1"))
    edit_batches(run, 0, *sizes)
    assert reassemble(run).fingerprint.batch_varies == found


@pytest.mark.parametrize(
    ("sizes", "global_batch", "differs"),
    [
        ([(96, 32)], 128, ""),  # balanced by tokens: each rank takes half of these, and not of the samples
        ([(96, 32), (32, 96)], 128, ""),
        ([(32, 32)], 64, "batch_per_gpu: 64 at 1x1, 32 at 1x2"),
        ([(96, 33)], 129, "batch_per_gpu: 64 at 1x1, 64.5 at 1x2"),
        ([(9, 100), (90, 31), (60, 78), (80, 63)], 128, ""),  # 109, 121, 138 and 143 samples
    ],
)
def test_the_batch_of_a_step_is_that_of_all_ranks(
    tmp_path: Path, sizes: list[tuple[int, int]], global_batch: int, differs: str
) -> None:
    alone, run = write_run(tmp_path / "1", make_spec("1x1")), write_run(tmp_path / "2", make_spec("1x2"))
    for rank in (0, 1):
        edit_batches(run, rank, *(of_all[rank] for of_all in sizes), steps=100)
    record = reassemble(run)
    assert record.fingerprint.global_batch == global_batch
    found = [words for words in differences(reassemble(alone), record) if not words.startswith("steps")]
    assert found == ([differs] if differs else [])


def test_modes_are_never_compared() -> None:
    with pytest.raises(ValueError, match="different modes"):
        differences(at("1x1"), at("1x1", "strong"))


# Whether two runs did as much training as the same settings ask for


BATCH = 64


def did(
    scale: str, steps: int, samples: int = 0, passes: int | None = None, *,
    ended_by: str = "script", source: Source = "counted", **fingerprint: Any,
) -> Record:  # fmt: skip
    """A run of ``steps``. samples: of all ranks; a full batch of each in every step unless given."""
    spec = make_spec(scale)
    record = make_record(spec, fingerprint={"passes": passes, **fingerprint})
    total = samples or steps * BATCH * spec.world_size
    own = {"steps": steps, "samples": total // spec.world_size, "ended_by": ended_by}
    ranks = tuple(rank.replace(**own) for rank in record.ranks)
    return record.replace(ranks=ranks, throughput=record.throughput.replace(source=source))


ALIKE = {
    "counts in steps": (did("1x1", 500, passes=3), did("2x4", 500, passes=24)),
    "counts in passes": (did("1x1", 320, passes=10), did("1x4", 80, passes=10)),
    "drops the rest of each pass": (did("1x1", 150, 9_600, 10), did("2x4", 10, 5_120, 10)),
    "a budget of samples": (did("1x1", 1_000, passes=7), did("1x8", 126, passes=8)),
    "batches by length": (did("1x1", 512, 30_000, 5), did("1x1", 498, 30_000, 5)),
    "passes not seen": (did("1x1", 320), did("1x4", 64)),
    "cut by steps": (did("1x1", 200, passes=1, ended_by="max_steps"), did("1x4", 160, passes=2)),
    "both cut by time": (did("1x1", 900, ended_by="max_seconds"), did("1x4", 60, ended_by="max_seconds")),
    "cut by time": (did("1x1", 900, ended_by="max_seconds"), did("1x4", 250, passes=2)),
    "an earlier attempt did a part": (did("1x1", 320), did("1x1", 100, goes_on=True)),
    "only the log tells": (did("1x1", 320), did("1x4", 5, source="log")),
}
APART = {
    "resumed": (did("1x1", 320, passes=10), did("1x2", 32, passes=2)),
    "few steps in a pass": (did("1x1", 160, passes=20), did("2x4", 14, 7_168, 14)),
    "passes not seen": (did("1x1", 320), did("1x4", 40)),
    "shorter than what was cut": (did("1x1", 900, ended_by="max_seconds"), did("1x4", 60, passes=1)),
    "ended before its maximum": (did("1x1", 200, ended_by="max_steps"), did("1x1", 100, passes=1)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_as_much_training(name: str) -> None:
    one, other = ALIKE[name]
    assert differences(one, other) == differences(other, one) == ()


@pytest.mark.parametrize("name", APART)
def test_not_as_much_training(name: str) -> None:
    one, other = APART[name]
    for pair in ((one, other), (other, one)):
        assert [difference.field for difference in all_differences(*pair)] == ["steps"]
