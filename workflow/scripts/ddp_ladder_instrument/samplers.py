"""Facts about a DataLoader: whether its samplers shard and shuffle the data, their padding, the epochs that were set.

A sampler, of any library, is recognised by the class whose ``__iter__`` it uses and by its attributes. No library is
imported for this, and only ``len`` of what the sampler itself measures is called. None means unknown.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset

from ddp_ladder_instrument.batch_sizes import BatchSizes, Findings
from ddp_ladder_instrument.batches import NEVER, Loop
from ddp_ladder_instrument.hooks import patch

DEEPEST = 8
"""Levels of nested samplers that are searched; objects may refer to each other in a cycle."""

SUBSET = "torch.SubsetRandomSampler"
"""Its subset may be this rank's shard."""

UNAWARE_OF_RANKS = {
    "torch.SequentialSampler": False,
    "torch.RandomSampler": True,
    SUBSET: True,
    "torch.WeightedRandomSampler": True,
    "torchdata.RandomSampler": True,
    "accelerate.SeedableRandomSampler": True,
    "transformers.LengthGroupedSampler": True,
}
"""Samplers that do not know ranks, and whether they shuffle, each pass in a new order."""

DIVIDING = {
    "torch.DistributedSampler",
    "torchdata.StatefulDistributedSampler",
    "timm.OrderedDistributedSampler",
    "transformers.DistributedLengthGroupedSampler",
    "transformers.DistributedSamplerWithLoop",
}
"""Samplers that give rank r of n the positions r, r+n, r+2n, ..., and pad from the beginning."""

DIVIDING_BY_NAME = {"DistributedSamplerWrapper", "UnrepeatedDistributedSampler", "UnrepeatedDistributedSamplerWrapper"}
"""Classes that do the same, copied from project to project."""

PLAIN_WRAPPERS = {"torch.BatchSampler", "torchdata.BatchSampler"}
"""Wrappers that keep the order and the content of what they wrap."""

PLAIN_WRAPPERS_BY_NAME = {"_IndexBatchSamplerWrapper", "SkipBatchSampler", "_RepeatSampler"}

ORDERLY_WRAPPERS = {"BatchSamplerShard", "GroupedBatchSampler"}
"""Wrappers that keep the order of what they wrap, and are shown in the sampler's name."""

ENDLESS = "_RepeatSampler"
"""It makes all passes into one."""

FIXED_SHUFFLE = {"transformers.DistributedLengthGroupedSampler": True, "timm.OrderedDistributedSampler": False}
"""Whether samplers without an attribute ``shuffle`` shuffle."""

WRAPPED = ("_batch_sampler", "batch_sampler", "sampler", "_sampler")
OF_SAMPLERS = ("_DatasetSamplerWrapper", "DatasetFromSampler")
"""Datasets that consist of a sampler's indices."""
EPOCHS: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""The arguments with which set_epoch of a sampler or a dataset was called; an empty set: it was watched only."""
WATCHED: set[type] = set()
"""Classes whose set_epoch is patched."""


@dataclass(frozen=True)
class Sampling:
    """The facts about a loader's  None: unknown.

    name: for the reader, ``RandomSampler in BatchSamplerShard``.
    shards: they shard the data between ranks.
    shuffle: the order is meant to differ between passes.
    own_order: each pass has its own order without set_epoch.
    real_samples: samples of one pass of this rank without padding; NEVER if nothing is padded.
    repeats: batches are drawn so many times, and a step may train on a part of each (TRL's RepeatSampler).
    """

    name: str
    shards: bool | None
    shuffle: bool | None
    own_order: bool
    real_samples: int | None
    repeats: int = 1


UNKNOWN = Sampling("unknown", None, None, False, None)


def sampling(loader: Any) -> Sampling:
    """Return the facts about the samplers of a DataLoader of any library; UNKNOWN if reading them raises."""
    try:
        return _sampling(loader)
    except Exception:  # a property defined by another library may raise anything
        return UNKNOWN


def _sampling(loader: Any) -> Sampling:
    if isinstance(loader.dataset, IterableDataset):
        return _of_stream(loader.dataset)
    links = list(chain(loader))
    if not links:
        return UNKNOWN
    own_order = _iterates_as(links[-1]) in UNAWARE_OF_RANKS or any(type(link).__name__ == ENDLESS for link in links)
    if type(loader).__name__ == "DataLoaderDispatcher":  # it pads the last round in a way of its own
        return Sampling(_name(links), True, _shuffle(links), own_order, None)
    return Sampling(_name(links), _shards(links), _shuffle(links), own_order, _real(links), _repeats(links))


def _of_stream(dataset: Any) -> Sampling:
    processes = _whole_number(dataset, "num_processes")
    inner = getattr(dataset, "dataset", None) if processes is not None else None
    name = type(dataset).__name__ if inner is None else f"{type(inner).__name__} in {type(dataset).__name__}"
    return Sampling(name, True if processes is not None and processes > 1 else None, None, False, None)


def chain(loader: Any) -> Iterator[Any]:
    """Yield a loader's batch sampler (if it has none, its sampler), the sampler inside that, to the innermost."""
    link = getattr(loader, "batch_sampler", None)
    link = getattr(loader, "sampler", None) if link is None else link
    for _ in range(DEEPEST):
        if link is None:
            return
        yield link
        link = _wrapped(link)


def _wrapped(sampler: Any) -> Any:
    for name in WRAPPED:
        inner = getattr(sampler, name, None)
        if inner is not sampler and hasattr(type(inner), "__iter__") and not isinstance(inner, str):
            return inner
    dataset = getattr(sampler, "dataset", None)
    return _wrapped(dataset) if type(dataset).__name__ in OF_SAMPLERS else None


def with_epochs(loader: Any) -> list[Any]:
    """Return the samplers with a set_epoch, or else the dataset if it has one; only what supports weak references."""
    for things in (chain(loader), [loader.dataset]):
        found = [thing for thing in things if callable(getattr(type(thing), "set_epoch", None))]
        if found:
            return [thing for thing in found if isinstance(thing, Hashable) and type(thing).__weakrefoffset__]
    return []


def _iterates_as(sampler: Any) -> str:
    """Return ``library.Class`` of the class whose ``__iter__`` it uses."""
    for kind in type(sampler).__mro__:
        if "__iter__" in kind.__dict__:
            return _name_of(kind)
    return type(sampler).__name__


def _name_of(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _is_plain(sampler: Any) -> bool:
    return _iterates_as(sampler) in PLAIN_WRAPPERS or type(sampler).__name__ in PLAIN_WRAPPERS_BY_NAME


def _divides(sampler: Any) -> bool:
    """Return True if its class or a base class divides: a changed order or start leaves the share the same."""
    kinds = {_name_of(kind) for kind in type(sampler).__mro__}
    return not kinds.isdisjoint(DIVIDING) or type(sampler).__name__ in DIVIDING_BY_NAME


def _name(links: list[Any]) -> str:
    named = [link for link in links[:-1] if not _is_plain(link)]
    return " in ".join(type(link).__name__ for link in (links[-1], *reversed(named)))


def _whole_number(thing: Any, *names: str) -> int | None:
    for name in names:
        number = getattr(thing, name, None)
        if isinstance(number, int) and not isinstance(number, bool):
            return number
    return None


def _shards(links: list[Any]) -> bool | None:
    replicas = [_whole_number(link, "num_replicas", "num_processes", "world_size") for link in links]
    if any(count is not None and count > 1 for count in replicas):
        return True
    return False if all(map(_is_known, links)) else None


def _repeats(links: list[Any]) -> int:
    counts = [_whole_number(link, "repeat_count") for link in links if hasattr(link, "mini_repeat_count")]
    return max((count for count in counts if count is not None), default=1)


def _is_known(sampler: Any) -> bool:
    kind = _iterates_as(sampler)
    alone = kind in UNAWARE_OF_RANKS and kind != SUBSET
    return alone or _is_plain(sampler) or _is_orderly(sampler) or _divides(sampler)


def _is_orderly(sampler: Any) -> bool:
    return type(sampler).__name__ in ORDERLY_WRAPPERS


def _shuffle(links: list[Any]) -> bool | None:
    """Return True if any of the samplers shuffles; None if that is unknown for one of them."""
    each = [_shuffles(link) for link in links if not _is_plain(link) and not _is_orderly(link)]
    return None if None in each else any(each)


def _shuffles(sampler: Any) -> bool | None:
    kind = _iterates_as(sampler)
    shuffle = getattr(sampler, "shuffle", UNAWARE_OF_RANKS.get(kind, FIXED_SHUFFLE.get(kind)))
    return shuffle if isinstance(shuffle, bool) else None


# Padding


def _real(links: list[Any]) -> int | None:
    """Return the real samples of this rank's pass; padding comes last."""
    sampler, inner = links[0], links[1:]
    name = type(sampler).__name__
    if _iterates_as(sampler) in UNAWARE_OF_RANKS:
        return NEVER
    if name == "BatchSamplerShard":
        return _real_of_shard(sampler, inner)
    if name == ENDLESS:
        real = _real(inner) if inner else None
        return real if real == NEVER else None
    if _is_plain(sampler):
        return _real(inner) if inner and name != "SkipBatchSampler" else None
    if _divides(sampler):
        return _real_of_divided(sampler)
    repeats = getattr(sampler, "num_repeats", getattr(sampler, "repetitions", None))
    return NEVER if isinstance(repeats, (int, float)) else None  # repeated on purpose, for augmentation


def batch_size(links: list[Any]) -> int | None:
    """Return the samples in each of this rank's batches, from a chain of"""
    if not links:
        return None
    size = _whole_number(links[0], "batch_size")
    if size is not None and getattr(links[0], "split_batches", False):
        size //= _whole_number(links[0], "num_processes") or 1
    return size


def _real_of_divided(sampler: Any) -> int | None:
    replicas, rank = _whole_number(sampler, "num_replicas"), _whole_number(sampler, "rank")
    count = _whole_number(sampler, "num_samples")
    length = length_of(getattr(sampler, "dataset", None))
    length = length_of(getattr(sampler, "lengths", None)) if length is None else length
    if replicas is None or rank is None or count is None or length is None or count * replicas >= length + replicas:
        return None
    if count * replicas <= length:
        return NEVER
    # Position j*replicas + rank for each j, padded from the beginning.
    return max(0, -(-(length - rank) // replicas) - (_whole_number(sampler, "next_yielded") or 0))


def _real_of_shard(shard: Any, inner: list[Any]) -> int | None:
    """Return the real samples of accelerate's shard: it gets whole batches, or a part of each, padded to full size."""
    if any(_iterates_as(link) not in PLAIN_WRAPPERS for link in inner[:-1]):
        return None
    real = _real(inner)
    real = NEVER if real is None else real
    if not shard.drop_last and shard.even_batches:
        real = min(real, length_of(inner[-1]) or NEVER)
    if real == NEVER:
        return NEVER
    share, count, index = batch_size([shard]), shard.num_processes, shard.process_index
    if share is None:
        return None
    rounds, rest = divmod(real, share * count)  # process i has the samples share*i to share*(i+1) of each round
    return int(rounds * share + min(share, max(0, rest - share * index)))


def length_of(sized: Any) -> int | None:
    """Return ``len``, or None if it is not known."""
    try:
        return len(sized)
    except Exception:  # the script's own __len__, or torch's, may raise anything (TypeError, NotImplementedError)
        return None


class Source:
    """What a pass draws from, read when its iterator is made: at its first step the loader itself may be gone.

    facts: those of the record that cannot change. Nothing of the script's is kept alive.
    """

    def __init__(self, loader: Any) -> None:
        watch_epochs(loader)
        found = sampling(loader)
        self.dataset = _weakly(loader.dataset)
        self.own_order = found.own_order
        self.shards = found.shards
        self.real_samples = NEVER if found.real_samples is None else found.real_samples
        self.repeats = found.repeats
        things = with_epochs(loader)
        self.has_set_epoch = bool(things)
        self.from_the_start = all(_owner_of_set_epoch(thing) is DistributedSampler for thing in things)
        self._things = [weakref.ref(thing) for thing in things]
        self._epochs = [EPOCHS.setdefault(thing, set()) for thing in things]
        self._counts = any(map(_counts_epochs, things))
        self.facts: dict[str, Any] = {
            "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
            "num_workers": loader.num_workers,
            "sampler": found.name,
            "shuffle": found.shuffle,
            "padding_known": found.real_samples is not None,
            "iterable": isinstance(loader.dataset, IterableDataset),
            "dataset_size": length_of(loader.dataset),
        }

    def epochs(self) -> frozenset[str]:
        """Return the arguments of the calls of set_epoch that were seen."""
        return frozenset().union(*self._epochs)

    def set_epoch_called(self, passes: int) -> bool | None:
        """Return None if there is no set_epoch, or it may have been called before it was watched.

        passes: number of this pass, from 1.
        """
        # Some samplers count epochs themselves.
        if self.epochs() or self._counts or any(_counts_epochs(thing()) for thing in self._things):
            return True
        if self.own_order or not self.has_set_epoch:
            return None
        return False if self.from_the_start or passes > 1 else None


def new_loop(loader: Any, outer: Any = None) -> Loop:
    """Begin a pass over this loader, or over ``outer``, which draws from it; only weak references to them are kept."""
    loop = Loop(weakref.ref(loader if outer is None else outer), NEVER)
    loop.batch_sizes = BatchSizes()
    with contextlib.suppress(Exception):  # a property defined by another library may raise anything
        loop.source = Source(loader)
        loop.real_samples = loop.source.real_samples
        loop.batch_sizes.usual = loop.source.facts["batch_size"] if outer is None else None
    return loop


def samples_before(loader: Any, batches: int) -> int:
    """Return the samples before a pass that resumes an earlier one after ``batches`` batches."""
    return batches * (batch_size(list(chain(loader))) or 0) if batches else 0


class Passes:
    """Counter of passes over the training data, by one loader or by successive loaders over one dataset."""

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last: Loop | None = None
        self._last_count = 0

    def begin(self, loop: Loop) -> int:
        """Count a pass that makes its first step now; return its number, from 1."""
        loader, last = loop.loader(), self._last
        count = self._counts.get(loader) if loader is not None else None
        if count is None:
            count = self._last_count if last is not None and _follows(loop, last) else 0
        count += 1
        if loader is not None:
            self._counts[loader] = count
        self._last, self._last_count = loop, count
        return count


def _follows(loop: Loop, last: Loop) -> bool:
    """Return True if the last pass is over, its loader is gone and this one has the same dataset.

    Some scripts make a loader for each epoch.
    """
    dataset: Any = loop.source.dataset()
    return not last.living and last.loader() is None and last.source.dataset() is dataset is not None


class TrainingLoader:
    """The DataLoader that trains. first_samples: digests of its first samples."""

    def __init__(self) -> None:
        self.first_samples: list[str] = []
        self._facts: dict[str, Any] | None = None
        self._findings = Findings()
        self._repeats = 1
        self._passes = Passes()
        self._epochs: frozenset[str] | None = None

    def begin_pass(self, loop: Loop, world_size: int) -> None:
        """Update the facts at the first step of this pass."""
        source, before = loop.source, self._facts
        if source is None:
            return
        if before is None:
            self.first_samples = loop.first_samples
        self._findings.add(loop.batch_sizes.findings)
        loop.batch_sizes.findings = self._findings
        self._repeats = max(self._repeats, source.repeats)
        passes = self._passes.begin(loop)
        called = source.set_epoch_called(passes)
        epochs = None if source.own_order else source.epochs() or None
        if before is not None and before["set_epoch_called"]:
            called = True
            epochs = None if self._epochs is None or epochs is None else self._epochs | epochs
        self._epochs = epochs
        passes = max(passes, before["passes"] if before is not None else 0)
        # The call before the first pass is missed where it is that pass that shows which class to watch.
        known = epochs is not None and (source.from_the_start or passes > 2 or len(epochs) > 1)
        self._facts = {
            **source.facts,
            "shards": world_size == 1 or source.shards,
            "set_epoch_called": called,
            "epochs_set": len(epochs) if epochs and known else None,
            "passes": passes,
        }

    @property
    def facts(self) -> dict[str, Any] | None:
        """The record's ``loader``; None inside means unknown, or not needed."""
        if self._facts is None:
            return None
        unclear, drawn = list(self._findings.unclear), self._facts["batch_size"]
        if self._repeats > 1 and drawn:
            unclear = sorted({*unclear, drawn, drawn // self._repeats})
        return {**self._facts, "dropped_samples": self._findings.dropped, "unclear_sizes": unclear}


def _weakly(thing: Any) -> Callable[[], Any]:
    return weakref.ref(thing) if type(thing).__weakrefoffset__ else lambda: None


def _counts_epochs(thing: Any) -> bool:
    try:
        epoch = getattr(thing, "epoch", None)
    except Exception:  # a property defined by another library may raise anything
        return False
    return isinstance(epoch, int) and epoch > 0


def _owner_of_set_epoch(thing: Any) -> type:
    return next(kind for kind in type(thing).__mro__ if "set_epoch" in kind.__dict__)


def watch_epochs(loader: Any) -> None:
    """Record the calls of set_epoch of this loader's samplers or dataset."""
    for thing in with_epochs(loader):
        kind = _owner_of_set_epoch(thing)
        if kind not in WATCHED:
            watch_class(kind)


def watch_class(kind: type) -> None:
    """Record the calls of this class's set_epoch."""
    WATCHED.add(kind)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):  # not every class supports weak references
                EPOCHS.setdefault(self, set()).add(repr((args, kwargs)))
            return original(self, *args, **kwargs)

        return set_epoch

    patch(kind, "set_epoch", wrap)
