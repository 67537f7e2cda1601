"""Facts about a DataLoader: whether its samplers shard and shuffle the data, their padding, the epochs of its passes.

A sampler, of any library, is recognised by the class whose ``__iter__`` it uses and by its attributes. No library is
imported for this, and only ``len`` of what the sampler itself measures is called. None means unknown.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, Sampler

from ddp_ladder_instrument.batch_sizes import BatchSizes
from ddp_ladder_instrument.places import Place
from ddp_ladder_instrument.recorder import NEVER, Recorder

DEEPEST = 8
"""Levels of nested samplers that are searched; objects may refer to each other in a cycle."""

MOST_LOADERS = 200
"""A script that makes a loader for each step would fill the memory: further ones share the last number."""
KEPT = 16  # passes that are over: a step may follow

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
    "torch.DistributedSampler": None,
    "torchdata.StatefulDistributedSampler": None,
    "timm.OrderedDistributedSampler": False,
    "transformers.DistributedLengthGroupedSampler": True,
    "transformers.DistributedSamplerWithLoop": None,
}
"""Samplers that give rank r of n the positions r, r+n, r+2n, ..., and pad from the beginning; and whether they shuffle,
if no attribute tells it."""

BATCHING = {"torch.BatchSampler", "torchdata.BatchSampler"}
SHOWN = {"BatchSamplerShard", "GroupedBatchSampler"}
ENDLESS = "_RepeatSampler"
"""It makes all passes into one."""
WRAPPERS = {*BATCHING, *SHOWN, ENDLESS, "_IndexBatchSamplerWrapper", "SkipBatchSampler"}
"""Wrappers that keep the order of what they wrap; those SHOWN in the sampler's name change what a rank gets."""

WRAPPED = ("_batch_sampler", "batch_sampler", "sampler", "_sampler")
OF_SAMPLERS = ("_DatasetSamplerWrapper", "DatasetFromSampler")
"""Datasets that consist of a sampler's indices."""


@dataclass(frozen=True)
class Sampling:
    """The facts about a loader's samplers. None: unknown."""

    name: str  # for the reader, ``RandomSampler in BatchSamplerShard``
    shards: bool | None  # the data between ranks
    shuffle: bool | None  # the order is meant to differ between passes
    own_order: bool  # each pass has its own order without set_epoch
    real_samples: int = NEVER  # of one pass of this rank without padding; NEVER: nothing is padded, or not known


UNKNOWN = Sampling("unknown", None, None, False)


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
    shown = [link for link in links[:-1] if not _wraps(link) or type(link).__name__ in SHOWN]
    orders = [_shuffles(link) for link in links if not _wraps(link)]
    dispatched = type(loader).__name__ == "DataLoaderDispatcher"  # it pads the last round in a way of its own
    endless = any(type(link).__name__ == ENDLESS for link in links)
    return Sampling(
        name=" in ".join(type(link).__name__ for link in (links[-1], *reversed(shown))),
        shards=True if dispatched else _shards(links),
        shuffle=None if None in orders else any(orders),
        own_order=endless or _iterates_as(links[-1]) in UNAWARE_OF_RANKS,
        real_samples=NEVER if dispatched or endless or _deals_batches(loader.batch_sampler) else _real(links),
    )


def _of_stream(dataset: Any) -> Sampling:
    processes = _whole_number(dataset, "num_processes")
    inner = getattr(dataset, "dataset", None) if processes is not None else None
    name = type(dataset).__name__ if inner is None else f"{type(inner).__name__} in {type(dataset).__name__}"
    return Sampling(name, True if processes is not None and processes > 1 else None, None, False)


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
    if isinstance(dataset, Sampler):
        return dataset
    return _wrapped(dataset) if type(dataset).__name__ in OF_SAMPLERS else None


def with_epoch(loader: Any) -> Any:
    """Return the sampler with a set_epoch, or else the dataset if it has one; None if nothing has."""
    things = [*chain(loader), loader.dataset]
    return next((thing for thing in things if callable(getattr(type(thing), "set_epoch", None))), None)


def _iterates_as(sampler: Any) -> str:
    """Return ``library.Class`` of the class whose ``__iter__`` it uses."""
    for kind in type(sampler).__mro__:
        if "__iter__" in kind.__dict__:
            return _name_of(kind)
    return type(sampler).__name__


def _name_of(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _wraps(sampler: Any) -> bool:
    return not WRAPPERS.isdisjoint((_iterates_as(sampler), type(sampler).__name__))


def _divides(sampler: Any) -> bool:
    """Return True if its class or a base class divides: a changed order or start leaves the share the same."""
    return any(_name_of(kind) in DIVIDING for kind in type(sampler).__mro__)


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


def _is_known(sampler: Any) -> bool:
    kind = _iterates_as(sampler)
    return (kind in UNAWARE_OF_RANKS and kind != SUBSET) or _wraps(sampler) or _divides(sampler)


def _shuffles(sampler: Any) -> bool | None:
    kind = _iterates_as(sampler)
    shuffle = getattr(sampler, "shuffle", {**DIVIDING, **UNAWARE_OF_RANKS}.get(kind))
    return shuffle if isinstance(shuffle, bool) else None


# Padding


def _real(links: list[Any]) -> int:
    """Return the real samples of this rank's pass; padding comes last."""
    sampler, inner = links[0], links[1:]
    if type(sampler).__name__ == "BatchSamplerShard":
        return _real_of_shard(sampler, inner)
    if _divides(sampler):
        return _real_of_divided(sampler)
    keeps_all = _iterates_as(sampler) in BATCHING or type(sampler).__name__ == "_IndexBatchSamplerWrapper"
    return _real(inner) if inner and keeps_all else NEVER


def _real_of_divided(sampler: Any) -> int:
    replicas, rank = _whole_number(sampler, "num_replicas"), _whole_number(sampler, "rank")
    count = _whole_number(sampler, "num_samples")
    length = length_of(getattr(sampler, "dataset", None))
    length = length_of(getattr(sampler, "lengths", None)) if length is None else length
    if replicas is None or rank is None or count is None or length is None:
        return NEVER
    # Position j*replicas + rank for each j, padded from the beginning.
    return max(0, -(-(length - rank) // replicas)) if 0 < count * replicas - length < replicas else NEVER


def _deals_batches(batch_sampler: Any) -> bool:
    """Return True if it divides, between the ranks, the batches that another batch sampler makes (speechbrain's)."""
    return batch_sampler is not None and _divides(batch_sampler) and _wrapped(batch_sampler) is not None


def real_batches(batch_sampler: Any) -> int | None:
    """Return the batches of this rank's pass without those with which it is padded; None if none are, or unknown."""
    if not _deals_batches(batch_sampler):
        return None
    real = _real_of_divided(batch_sampler)
    return None if real == NEVER else real


def _real_of_shard(shard: Any, inner: list[Any]) -> int:
    """Return the real samples of accelerate's shard: it gets whole batches, or a part of each, padded to full size."""
    if any(_iterates_as(link) not in BATCHING for link in inner[:-1]):
        return NEVER
    real = _real(inner)
    if not shard.drop_last and shard.even_batches:
        real = min(real, length_of(inner[-1]) or NEVER)
    count, index, share = shard.num_processes, shard.process_index, _whole_number(shard, "batch_size")
    if real == NEVER or share is None:
        return NEVER
    if shard.split_batches:
        share //= count
    rounds, rest = divmod(real, share * count)  # process i has the samples share*i to share*(i+1) of each round
    return int(rounds * share + min(share, max(0, rest - share * index)))


def length_of(sized: Any) -> int | None:
    """Return ``len``, or None if it is not known."""
    try:
        return len(sized)
    except Exception:  # the script's own __len__, or torch's, may raise anything (TypeError, NotImplementedError)
        return None


def samples_of(index: Any, collates: bool) -> int | None:
    """Return the number of samples that a loader asks its dataset for; None if it is not known.

    collates: the loader puts samples together, so that ``index`` has many. Else one index, a key for example, is one
    sample, and a list of them is as many.
    """
    if collates:
        return length_of(index)
    try:
        operator.index(index)
    except TypeError:
        is_key = isinstance(index, (str, bytes))
        return 1 if is_key else None if isinstance(index, tuple) else length_of(index)
    return 1


class Source:
    """What a pass draws from, read when its iterator is made: at its first step the loader itself may be gone.

    Nothing of the script's is kept alive.
    """

    def __init__(self, loader: Any) -> None:
        self.sampling = sampling(loader)
        self.dataset = _weakly(loader.dataset)
        self._with_epoch = _weakly(with_epoch(loader))
        items = loader.batch_size is None and loader.batch_sampler is None
        is_stream = isinstance(loader.dataset, IterableDataset)
        self.sizes = BatchSizes(items, real_batches(loader.batch_sampler), is_stream)
        self.facts: dict[str, Any] = {  # those of the record that cannot change
            "num_workers": loader.num_workers,
            "sampler": self.sampling.name,
            "shuffle": self.sampling.shuffle,
            "dataset_size": length_of(loader.dataset),
        }

    def epoch(self) -> int | None:
        """Return the epoch that set_epoch has set, or that the sampler counts itself; None if that is not known."""
        try:
            return None if self.sampling.own_order else _whole_number(self._with_epoch(), "epoch")
        except Exception:  # a property defined by another library may raise anything
            return None


class LoaderPass:
    """A pass over a loader, or over an outer one which draws from it; only weak references to them are kept."""

    def __init__(self, number: int, source: Source | None, batch_sizes: BatchSizes) -> None:
        self.number = number  # in the log
        self.source = source  # None: the loader could not be read
        self.batch_sizes = batch_sizes
        self.place: Place = ()  # that draws from it; empty before the first batch
        self.living = True
        self.iterator: Any = None  # a weak reference whose callback ends the pass; None once it is over


class Numbers:
    """Numbers of objects from 0 on, by their identity: an object of a script may be equal to another, or to a list."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], int]] = {}
        self._count = 0

    def of(self, thing: Any) -> int:
        """Return the number of an object; a new one if it is new, or cannot be known again."""
        ref, number = self._known.get(id(thing), (lambda: None, 0))
        if ref() is not thing:
            number, self._count = self._count, self._count + 1
            self._known[id(thing)] = _weakly(thing), number
        return number


class Loaders:
    """The loaders of this rank, numbered as in the log, and their passes."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers, self._datasets = Numbers(), Numbers()
        # Of each loader, with unclear sizes and lengths of all its passes; None inside means unknown, or not needed.
        self.facts: list[dict[str, Any]] = []
        self.passes: dict[int, LoaderPass] = {}  # those that go on, and the last ones that are over
        self.digests: dict[int, list[str]] = {}

    def begin(self, loader: Any, outer: Any = None, is_main: bool = True) -> LoaderPass:
        """Begin a pass over this loader, or over ``outer``, which draws from it."""
        source: Source | None = None
        with contextlib.suppress(Exception):  # a property defined by another library may raise anything
            source = Source(loader)
        real = source.sampling.real_samples if source is not None else NEVER
        loader_number = self._number(loader if outer is None else outer, source)
        number = self._recorder.new_pass(loader_number, -1 if real >= NEVER else real, is_main)
        sizes = BatchSizes()
        if source is not None and (outer is None or (outer is loader and source.sizes.items)):
            sizes = source.sizes  # of others, an outer loader puts other batches together
        sizes.unclear = self.facts[loader_number]["unclear_sizes"]
        sizes.lengths = self.facts[loader_number]["token_lengths"]
        for old in [known.number for known in self.passes.values() if not known.living][:-KEPT]:
            del self.passes[old]
        self.passes[number] = LoaderPass(number, source, sizes)
        return self.passes[number]

    def _number(self, loader: Any, source: Source | None) -> int:
        number = min(self._numbers.of(loader), MOST_LOADERS)
        if number >= len(self.facts):
            self.facts.append({"unclear_sizes": [], "token_lengths": []})
        if source is not None:
            dataset = source.dataset()
            of_dataset = None if dataset is None else self._datasets.of(dataset)
            self.facts[number].update(source.facts, shards=source.sampling.shards, dataset=of_dataset)
        return number

    def epoch_of(self, number: int) -> int:
        """Return the epoch of a pass's sampler; -1 if it is not known."""
        pass_ = self.passes.get(number)
        epoch = pass_.source.epoch() if pass_ is not None and pass_.source is not None else None
        return -1 if epoch is None else epoch


def _weakly(thing: Any) -> Callable[[], Any]:
    return weakref.ref(thing) if type(thing).__weakrefoffset__ else lambda: None
