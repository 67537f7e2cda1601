"""Like for like: the fields that must be equal before one run's throughput is divided by another's.

One of them is the amount of training, in steps or samples.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ddp_ladder_instrument.redaction import redacted
from numpy.typing import NDArray

from ddp_ladder.common.formats import grouped, in_short, shortened
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_files import RankFiles, RawRun
from ddp_ladder.records.raw_models import RankEnd, RankFingerprint
from ddp_ladder.records.record import Record

UNREAD = "could not be read"  # in place of a value: it equals nothing, not even itself
LONGEST_VALUE = 60  # characters of a value in a message
DIGEST_LENGTH = 12
NAMED = 3  # entries of a mapping in a message
OTHER_PLACE = "the arguments or the environment, by the place of the results ({run_dir})"
OWN_DIRECTORY_ADVICE = (
    "if the script resumes from a checkpoint that an earlier run left in its working directory, give each run its own: "
    'workload.directory: "{run_dir}" in config.yaml, and {start_dir}/ before relative paths in workload.args'
)
ONE_EXCHANGE_ADVICE = (
    "let the script send its gradients equally often at every scale, also with one process: all backward passes of a "
    "step but the last inside `with model.no_sync():`, their forward passes too (accelerate's no_sync and accumulate "
    "do nothing for one process)"
)


@dataclass(frozen=True)
class MustMatch:
    """A compared field."""

    name: str
    value: Callable[[Record], Any]
    where_known: bool = False  # compared only if both sides have it: some runs cannot measure it
    measured: bool = False  # recorded by each rank, under this name
    same: Callable[[Any, Any], bool] | None = None  # in place of equality
    next: str = ""  # what to do about a difference

    def differ(self, a: Record, b: Record) -> tuple[Any, Any] | None:
        """Return both values if they differ, else None; of mappings (files, libraries) the common keys that differ."""
        first, second = self.value(a), self.value(b)
        if UNREAD in (first, second):
            return first, second
        if self.where_known and not (first and second):
            return None
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            keys = [key for key in first if key in second and first[key] != second[key]]
            first, second = ({key: side[key] for key in keys} for side in (first, second))
        is_same = self.same(first, second) if self.same else first == second
        return None if is_same else (first, second)


def _measured(name: str, where_known: bool = False) -> MustMatch:
    of_rank = name in RankFingerprint.model_fields
    return MustMatch(name, lambda record: _fact(record, name), where_known, measured=of_rank)


def _fact(record: Record, name: str) -> Any:
    """Return a field of the fingerprint; UNREAD if reading it raised on a rank."""
    return UNREAD if name in record.fingerprint.unread else getattr(record.fingerprint, name)


def _planned(name: str) -> MustMatch:
    return MustMatch(name, lambda record: getattr(record.spec, name))


def batch_per_gpu_seen(record: Record) -> int:
    """Return the samples of a step of all ranks, divided among their GPUs; if they are unknown, the planned batch.

    With workload.global_batch it is that of each of the accumulated batches.
    """
    return int(_batch_per_gpu(record).samples)


def global_batch_seen(record: Record) -> int:
    """Return the samples of a step of all ranks together; if they are unknown, the planned ones."""
    seen, spec = record.fingerprint.global_batch, record.spec
    return spec.batch_per_gpu * spec.gpus * (spec.accumulation or 1) if seen is None else seen


@dataclass(frozen=True)
class Batch:
    """A batch that is compared: of what all ranks do in a step, not of what one of them does."""

    samples: float
    varies: bool = False  # from step to step

    def __str__(self) -> str:
        return f"{self.samples:.10g}"


def _batch_per_gpu(record: Record) -> Batch:
    batch = _global_batch(record)
    return replace(batch, samples=batch.samples / (record.spec.gpus * (record.spec.accumulation or 1)))


def _global_batch(record: Record) -> Batch:
    return Batch(global_batch_seen(record), record.fingerprint.batch_varies is not None)


def _same_batch(first: Batch, second: Batch) -> bool:
    is_near = (first.varies or second.varies) and _near(first.samples, second.samples)
    return is_near or first.samples == second.samples


def gpu_models(record: Record) -> str | None:
    """Return every GPU model in the group, not only rank 0's: one slower GPU slows down all ranks."""
    names = {rank.device.name for rank in record.ranks if is_gpu(rank.device.kind)}
    known = sorted(str(name) for name in names if name)
    return " + ".join(known) or record.fingerprint.gpu


def parameters_seen(record: Record) -> int | None:
    """Return the number of parameters; None if they are sharded or not seen."""
    seen = record.ranks[0].parameters if record.ranks else None
    return None if seen is None or seen.sharded else seen.count


def _compiled(record: Record) -> str | None:
    """Return "yes", "no", UNREAD or None (unknown); the number of graphs depends on the scale and is not compared."""
    graphs = _fact(record, "compiled_graphs")
    return graphs if graphs in (None, UNREAD) else "yes" if graphs else "no"


def _slow_settings(record: Record) -> str | None:
    """Return the settings; "none" is known, too."""
    known = record.fingerprint.slow_settings
    return None if known is None else " ".join(known) or "none"


def _backend_class(record: Record) -> str | None:
    """Return the class of the process group's backend; None if unknown, or for one rank, which has nothing to send."""
    return _fact(record, "backend_class") if record.spec.world_size > 1 else None


@dataclass(frozen=True)
class Exchanges:
    """Exchanges of the gradients in a step, by DistributedDataParallel."""

    number: int
    backward_passes: int

    def __str__(self) -> str:
        return f"{self.number} in {self.backward_passes} backward pass{'es' * (self.backward_passes != 1)}"


def _exchanges(record: Record) -> Exchanges | None:
    number = record.fingerprint.exchanges
    return None if number is None else Exchanges(number, record.fingerprint.backward_passes or number)


def _same_exchanges(first: Exchanges, second: Exchanges) -> bool:
    """Return True if both exchange as often in a step, or in each backward pass: strong scaling accumulates fewer."""
    in_each_pass = all(each.number == each.backward_passes for each in (first, second))
    return in_each_pass or first.number == second.number


def _device_kinds(record: Record) -> str:
    return " + ".join(sorted({rank.device.kind for rank in record.ranks})) or record.spec.device


TOLERANCE = 0.05
"""Fraction by which steps or samples may differ. Batches by length, shards of data and steps that a gradient scaler
skips differ by some percent; a run that resumed and still made 95 % of its steps was measured in the same state."""
LOOSE = 0.25
"""Tolerance if passes were not seen, instead of a batch per pass: of at least eight steps, the last may be missing."""


@dataclass(frozen=True)
class AmountOfTraining:
    """What a run trained."""

    ranks: int
    steps: int
    samples: int  # of all ranks, without padding
    passes: int | None  # over the training data; None: not seen
    cut: bool  # ended by max_steps or max_seconds, not by itself

    def __str__(self) -> str:
        return f"{self.steps:,} ({self.samples:,} samples)"


def _training(record: Record) -> AmountOfTraining | None:
    """Return the training of a run; None if unknown, or if an earlier attempt did a part (exit code 75)."""
    steps = {rank.steps for rank in record.ranks}
    source = record.throughput.source if record.throughput else None
    if len(steps) != 1 or 0 in steps or source in (None, "log") or record.fingerprint.goes_on:
        return None
    return AmountOfTraining(
        ranks=len(record.ranks),
        steps=steps.pop(),
        samples=sum(rank.samples for rank in record.ranks),
        passes=record.fingerprint.passes,
        cut=record.ranks[0].ended_by in ("max_steps", "max_seconds"),
    )


def _same_training(first: AmountOfTraining | None, second: AmountOfTraining | None) -> bool:
    """Return True if both runs did the same amount of training, or if nothing can be expected of them.

    A script counts in steps or in passes over its data. With the same settings it makes the same number of steps at
    every scale, or it consumes the same samples, in fewer steps if more ranks share them. A run that did neither did
    not do what the settings ask for; for example, it resumed from a snapshot of another run.
    """
    if first is None or second is None or (first.cut and second.cut):
        return True
    slack = 0.0 if first.ranks == second.ranks else _slack(first, second)
    if first.cut or second.cut:
        part, whole = (first, second) if first.cut else (second, first)
        return whole.steps >= (1 - TOLERANCE) * part.steps or whole.samples + slack >= (1 - TOLERANCE) * part.samples
    if _near(first.steps, second.steps) or _near(first.samples, second.samples):
        return True
    return _near(first.samples, second.samples, slack) and _as_many_passes(first, second)


def _near(a: float, b: float, slack: float = 0.0) -> bool:
    return abs(a - b) <= TOLERANCE * max(a, b) + slack


def _slack(first: AmountOfTraining, second: AmountOfTraining) -> float:
    """Return the samples that passes may leave out at their ends: up to one batch of all ranks for each pass."""
    if first.passes is None or second.passes is None:
        return LOOSE * max(first.samples, second.samples)
    return max(first.passes, second.passes) * (first.samples / first.steps + second.samples / second.steps)


def _as_many_passes(first: AmountOfTraining, second: AmountOfTraining) -> bool:
    """Compare passes. One more or less is equal: a budget of samples may end just before or after a pass."""
    if first.passes is None or second.passes is None:
        return True
    return abs(first.passes - second.passes) <= max(1.0, TOLERANCE * max(first.passes, second.passes))


MUST_MATCH = (
    _planned("script"),
    _measured("script_sha256"),
    _measured("sources", where_known=True),
    _measured("configuration", where_known=True),
    _planned("args_template"),
    _measured("parameter_dtype"),
    _measured("autocast_dtype"),
    _measured("float32_products", where_known=True),
    MustMatch("compiled", _compiled, where_known=True),
    MustMatch("parameters", parameters_seen, where_known=True),
    _measured("optimizer"),
    MustMatch("slow_settings", _slow_settings, where_known=True, measured=True),
    _measured("tokens_per_sample", where_known=True),
    _measured("num_workers"),
    _measured("torch"),
    _measured("cuda"),
    _measured("nccl"),
    MustMatch("backend_class", _backend_class, where_known=True, measured=True),
    _measured("cudnn", where_known=True),
    _measured("libraries", where_known=True),
    _measured("driver", where_known=True),
    _measured("python"),
    MustMatch("device", _device_kinds),
    MustMatch("gpu", gpu_models),
    _measured("power_limit_w", where_known=True),
    _measured("cpu_model"),
    _measured("threads"),
    _planned("threads_per_rank"),
    MustMatch("exchanges", _exchanges, where_known=True, same=_same_exchanges, next=ONE_EXCHANGE_ADVICE),
    MustMatch("steps", _training, same=_same_training, next=OWN_DIRECTORY_ADVICE),
)

BATCH = {
    "weak": MustMatch("batch_per_gpu", _batch_per_gpu, same=_same_batch),
    "strong": MustMatch("global_batch", _global_batch, same=_same_batch),
}


def must_match(mode: str) -> tuple[MustMatch, ...]:
    """Return the fields that two runs of ``mode`` must have in common before a ratio is given."""
    return (*MUST_MATCH, BATCH[mode])


@dataclass(frozen=True)
class Difference:
    """One field that differs between two runs."""

    field: str
    in_words: str  # ``num_workers: 0 at 1x1, 8 at 2x4``


def all_differences(a: Record, b: Record) -> tuple[Difference, ...]:
    """Return every field that differs.

    Two runs of one scale are named by their repeat: ``num_workers: 0 in r1, 8 in r2``.
    Raises ValueError if the runs are of different modes: those are never compared.
    """
    if a.spec.mode != b.spec.mode:
        raise ValueError(f"{a.spec.name} and {b.spec.name} are of different modes")
    fields = unlike(a, b, must_match(a.spec.mode))
    return tuple(Difference(name, _in_words(name, a, first, b, second)) for name, first, second in fields)


def unlike(a: Record, b: Record, fields: Sequence[MustMatch]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values of each of these fields in which two runs differ."""
    yield from ((field.name, *values) for field in fields if (values := field.differ(a, b)))


def _in_words(name: str, a: Record, of_a: Any, b: Record, of_b: Any) -> str:
    alike = a.spec.scale == b.spec.scale
    places = [f"in r{run.spec.repeat}" if alike else f"at {run.spec.scale}" for run in (a, b)]
    first, second = distinct_words(name, of_a, of_b)
    return f"{name}: {first} {places[0]}, {second} {places[1]}"


def distinct_words(name: str, *values: Any) -> list[str]:
    """Return the values as texts; digests and long texts are cut unless that would make them look alike."""
    texts = [in_full(value) for value in values]
    if name.endswith("sha256"):
        short = [text if text == UNREAD else text[:DIGEST_LENGTH] for text in texts]
    else:
        short = [shortened(text, LONGEST_VALUE, "…") for text in texts]
    return short if len({*short}) == len(short) else texts


def in_full(value: Any) -> str:
    """Return a value as text in full: lists with spaces, ``none`` for None or an empty value."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        items = [f"{key} {str(digest)[:DIGEST_LENGTH]}" for key, digest in sorted(value.items())]
        return in_short(items, NAMED) or "none"
    if isinstance(value, list | tuple):
        return " ".join(str(part) for part in value) or "none"
    return str(value)


def spec_changes(then: RunSpec, now: RunSpec) -> dict[str, str]:
    """Return by field ``args: was --lr 0.1, is --lr 0.2``. Empty if only the place of the results differs."""
    # Of arguments and environment the templates tell; a run of an earlier version has none of its directory.
    left_out = {"args", "env", "directory_template"}
    return changes(*(spec.model_dump(exclude=left_out) for spec in (then, now)))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Return by field ``args: was --lr 0.1, is --lr 0.2``; of mappings and arguments only the parts that differ."""
    parts = {}
    for name in {**before, **after}:
        was, has = before.get(name), after.get(name)
        if was == has:
            continue
        if isinstance(was, Mapping) and isinstance(has, Mapping):
            keys = sorted(key for key in was.keys() | has.keys() if was.get(key) != has.get(key))
            was, has = ([f"{key}={side[key]}" for key in keys if key in side] for side in (was, has))
        elif name == "args_template":
            own, other = _options(was or ()), _options(has or ())
            pairs = [each for each in own if each not in other], [each for each in other if each not in own]
            was, has = pairs if all(pairs) else (was, has)
        first, second = distinct_words(name, was, has)
        parts[name] = redacted(f"{name.removesuffix('_template')}: was {first}, is {second}")
    return parts


def _options(words: Sequence[str]) -> list[str]:
    """Return the arguments, each option with its values: ``--lr 0.1``."""
    options: list[str] = []
    for word in words:
        if word.startswith("--") or not options:
            options.append(word)
        else:
            options[-1] += f" {word}"
    return options


def varying_batches(files: RankFiles) -> tuple[int, int] | None:
    """Return the smallest and the largest batch of a rank's steps if these vary; else None."""
    steps = files.steps.single_after(0)
    sizes = steps.samples + steps.padding_samples
    return (int(sizes[sizes > 0].min()), int(sizes.max())) if _vary(sizes) else None


def _vary(sizes: NDArray[np.int64]) -> bool:
    """Return True if most steps do not have the usual size.

    The last step of each pass alone, or steps of as many more batches, make no varying size.
    """
    counts = Counter(sizes[sizes > 0].tolist())
    return len(counts) > 2 and 2 * max(counts.values()) < counts.total()


def samples_of_a_step(raw: RawRun) -> int | None:
    """Return the samples of a step of all ranks, padding included: of the median step, or the mean if they vary.

    A rank that has fewer may be one whose samples are longer. None: unknown on one of them.
    """
    if not raw.has_all_ranks or not all(end.fingerprint.batch_per_gpu for end in raw.ends):
        return None
    singles = [files.steps.single_after(0) for files in raw.ranks.values()]
    sizes = np.zeros(min(steps.count for steps in singles), np.int64)
    for steps in singles:
        sizes += steps.samples[: len(sizes)] + steps.padding_samples[: len(sizes)]
    if not len(sizes):
        return None
    return round(float(sizes.mean())) if _vary(sizes) else int(statistics.median_high(sizes.tolist())) or None


def unread(ends: Sequence[RankEnd]) -> dict[str, list[int]]:
    """Return the fields that could not be read, with the ranks that could not."""
    return grouped((name, end.rank) for end in ends for name in end.fingerprint.unread)
