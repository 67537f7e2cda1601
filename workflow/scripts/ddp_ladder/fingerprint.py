"""Like for like: which fields must be equal before one run's throughput is divided by another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddp_ladder.record import Record

LONGEST_VALUE = 60  # characters of a value in a message
DIGEST_LENGTH = 12


@dataclass(frozen=True)
class MustMatch:
    """One field: where its value is found and why a ratio across two values of it means nothing."""

    name: str
    reason: str
    value: Callable[[Record], Any]


def _measured(name: str, reason: str) -> MustMatch:
    return MustMatch(name, reason, lambda record: record.fingerprint.get(name))


def _planned(name: str, reason: str) -> MustMatch:
    return MustMatch(name, reason, lambda record: getattr(record.spec, name))


def batch_per_gpu_seen(record: Record) -> int:
    """The batch that the loader really drew; the planned one where no DataLoader was seen."""
    seen = record.fingerprint.get("batch_per_gpu")
    return int(seen) if seen is not None else record.spec.batch_per_gpu


def global_batch_seen(record: Record) -> int:
    """The batch of all ranks together."""
    return batch_per_gpu_seen(record) * record.spec.world_size


def _gpu_models(record: Record) -> str | None:
    """Every model in the group, not only rank 0's: one slower GPU sets the pace of all."""
    names = {rank.device["name"] for rank in record.ranks if rank.device["kind"] == "cuda"}
    known = sorted(str(name) for name in names if name)
    return " + ".join(known) or record.fingerprint.get("gpu")


def _device_kinds(record: Record) -> str:
    return " + ".join(sorted({rank.device["kind"] for rank in record.ranks})) or record.spec.device


MUST_MATCH = (
    _planned("script", "another program does other work per sample"),
    _measured("script_sha256", "an edited script may do other work per sample"),
    _planned("args_template", "other arguments change the work per sample"),
    _measured("parameter_dtype", "lower precision is faster and moves fewer bytes"),
    _measured("autocast_dtype", "mixed precision alone can double the throughput"),
    _measured("optimizer", "optimizers differ in work and memory traffic per step"),
    _measured("num_workers", "a baseline that waits for data makes every larger scale look good"),
    _measured("torch", "kernels and DDP differ between releases"),
    _measured("cuda", "kernels differ between releases"),
    _measured("nccl", "collectives differ between releases"),
    _measured("python", "data loading and launch overhead run in Python"),
    MustMatch("device", "a CPU process is no baseline for a GPU", _device_kinds),
    MustMatch("gpu", "other models have another speed", _gpu_models),
    _measured("cpu_model", "other models load data, and on CPU compute, at another speed"),
    _measured("threads", "a baseline with more threads per rank has more hardware per rank"),
    _planned("threads_per_rank", "a baseline with more threads per rank has more hardware per rank"),
)

BATCH = {
    "weak": MustMatch("batch_per_gpu", "weak scaling keeps the work per GPU constant", batch_per_gpu_seen),
    "strong": MustMatch("global_batch", "strong scaling keeps the work per step constant", global_batch_seen),
}


def must_match(mode: str) -> tuple[MustMatch, ...]:
    """The fields that decide whether two runs of ``mode`` may be divided."""
    return (*MUST_MATCH, BATCH[mode])


def differences(a: Record, b: Record) -> tuple[str, ...]:
    """Name every field that differs, in words: ``num_workers: 0 at 1x1, 8 at 2x4``.

    Two runs of one scale are told apart by their repeat: ``num_workers: 0 in r1, 8 in r2``.
    Raises ValueError when the runs are of different modes: those are never compared.
    """
    if a.spec.mode != b.spec.mode:
        raise ValueError(f"{a.spec.name} and {b.spec.name} are of different modes")
    found = []
    for item in must_match(a.spec.mode):
        here, there = item.value(a), item.value(b)
        if here != there:
            found.append(_in_words(item.name, a, here, b, there))
    return tuple(found)


def _in_words(name: str, a: Record, here: Any, b: Record, there: Any) -> str:
    if a.spec.scale == b.spec.scale:
        places = (f"in r{a.spec.repeat}", f"in r{b.spec.repeat}")
    else:
        places = (f"at {a.spec.scale}", f"at {b.spec.scale}")
    first, second = distinct_words(name, here, there)
    return f"{name}: {first} {places[0]}, {second} {places[1]}"


def distinct_words(name: str, here: Any, there: Any) -> tuple[str, str]:
    """Both values, shortened unless that would make them look alike."""
    short = shown(name, here), shown(name, there)
    return short if short[0] != short[1] else (in_full(here), in_full(there))


def shown(name: str, value: Any) -> str:
    """A value as it fits into a message; digests and long texts are cut."""
    text = in_full(value)
    if name.endswith("sha256"):
        return text[:DIGEST_LENGTH]
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def in_full(value: Any) -> str:
    """A value as a person reads it: lists with spaces, ``none`` for what is absent."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return " ".join(str(part) for part in value) or "none"
    return str(value)
