"""What samplers of torch and of other libraries are taken for, one within another; no processes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, IterableDatasetShard, SkipBatchSampler
from ddp_ladder_instrument import samplers
from ddp_ladder_instrument.judgement import training_loader
from ddp_ladder_instrument.recorder import NEVER, Recorder
from ddp_ladder_instrument.samplers import Sampling
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def made(module: str, name: str, *arguments: Any, **options: Any) -> Any:
    """Make an object of a library, which is imported only then: it takes seconds, for each process that finds tests."""
    return getattr(importlib.import_module(module), name)(*arguments, **options)


DistributedSamplerWrapper = partial(made, "lightning_fabric.utilities.distributed", "DistributedSamplerWrapper")
DistributedLengthGroupedSampler = partial(made, "transformers.trainer_pt_utils", "DistributedLengthGroupedSampler")
OrderedDistributedSampler = partial(made, "timm.data.distributed_sampler", "OrderedDistributedSampler")
RepeatAugSampler = partial(made, "timm.data.distributed_sampler", "RepeatAugSampler")
Data = TensorDataset
LENGTHS = [3, 1, 2] * 4


def distributed(data: Data, kind: Callable[..., Any] = DistributedSampler, **options: Any) -> Any:
    return kind(data, 2, 1, **options)


class OfOnesOwn(Sampler[int]):
    """Says nothing of itself."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data)))


class Divided(OfOnesOwn):
    """A sampler whose attributes show that it shards the data."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.world_size, self.rank, self.shuffle, self.epoch = 2, 0, True, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Touchy(OfOnesOwn):
    @property
    def num_replicas(self) -> int:
        raise RuntimeError("not yet")


# name, shards, shuffles, orders itself, real samples of 12 on rank 1 of 2
SAMPLERS: dict[str, tuple[Callable[[Data], Any], Sampling]] = {
    "sequential": (SequentialSampler, Sampling("SequentialSampler", False, False, True)),
    "random": (RandomSampler, Sampling("RandomSampler", False, True, True)),
    "distributed": (distributed, Sampling("DistributedSampler", True, True, False)),
    "torchdata": (
        lambda data: distributed(data, StatefulDistributedSampler),
        Sampling("StatefulDistributedSampler", True, True, False),
    ),
    "Lightning": (
        lambda data: DistributedSamplerWrapper(RandomSampler(data), 2, 1, shuffle=False),
        Sampling("RandomSampler in DistributedSamplerWrapper", True, True, True),
    ),
    "transformers, distributed": (
        lambda data: DistributedLengthGroupedSampler(2, num_replicas=2, rank=1, lengths=LENGTHS),
        Sampling("DistributedLengthGroupedSampler", True, True, False),
    ),
    "timm": (
        lambda data: distributed(data, OrderedDistributedSampler),
        Sampling("OrderedDistributedSampler", True, False, False),
    ),
    "timm, repeating": (
        lambda data: distributed(data, RepeatAugSampler),
        Sampling("RepeatAugSampler", True, True, False),
    ),
    "of one's own": (OfOnesOwn, Sampling("OfOnesOwn", None, None, False)),
    "of one's own, divided": (Divided, Sampling("Divided", True, True, False)),
    "that raises": (Touchy, samplers.UNKNOWN),
}


@pytest.fixture
def data() -> Data:
    return TensorDataset(torch.arange(12))


@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers(data: Data, sampler: str, loader: Callable[..., Any]) -> None:
    make, expected = SAMPLERS[sampler]
    assert samplers.sampling(loader(data, batch_size=2, sampler=make(data))) == expected
    in_batches = loader(data, batch_sampler=BatchSampler(make(data), 2, drop_last=False))
    assert samplers.sampling(in_batches) == expected
    assert samplers.sampling(loader(data, batch_size=None, sampler=make(data))) == expected


class Buckets(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()


class GroupedBatchSampler(Buckets):
    """The name under which torchvision's references are copied."""


RANDOM_IN_SHARD = Sampling("RandomSampler in BatchSamplerShard", True, True, True, 6)
BATCH_SAMPLERS: dict[str, tuple[Callable[[BatchSampler], Any], Callable[[Data], Any], Sampling]] = {
    "accelerate": (lambda batches: BatchSamplerShard(batches, 2, 1), RandomSampler, RANDOM_IN_SHARD),
    "accelerate, taken up again": (
        lambda batches: SkipBatchSampler(BatchSamplerShard(batches, 2, 1), 2),
        RandomSampler,
        Sampling("RandomSampler in BatchSamplerShard", True, True, True),
    ),
    "torchvision": (
        lambda batches: GroupedBatchSampler(batches.sampler, 2, False),
        distributed,
        Sampling("DistributedSampler in GroupedBatchSampler", True, True, False),
    ),
}


@pytest.mark.parametrize("wrapper", BATCH_SAMPLERS)
def test_batch_samplers(data: Data, wrapper: str) -> None:
    wrap, make, expected = BATCH_SAMPLERS[wrapper]
    batch_sampler = wrap(BatchSampler(make(data), 2, drop_last=False))
    assert samplers.sampling(DataLoader(data, batch_sampler=batch_sampler)) == expected


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def test_streams() -> None:
    own, expected = DataLoader(Stream()), DataLoader(IterableDatasetShard(Stream(), num_processes=2))
    assert samplers.sampling(own) == Sampling("Stream", None, None, False)
    assert samplers.sampling(expected) == Sampling("Stream in IterableDatasetShard", True, None, False)


class GoesOn(DistributedSampler):
    """As the reference workloads' own, which can begin in the middle of a pass."""

    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__()))


def real_samples(loader: DataLoader[Any]) -> int:
    return samplers.sampling(loader).real_samples


DIVIDING: dict[str, Callable[[Data, int, int], Any]] = {
    "torch": lambda data, replicas, rank: DistributedSampler(data, replicas, rank, shuffle=False),
    "inherited": lambda data, replicas, rank: GoesOn(data, replicas, rank, shuffle=False),
    "Lightning": lambda data, replicas, rank: DistributedSamplerWrapper(
        SequentialSampler(data), replicas, rank, shuffle=False
    ),
    "transformers": lambda data, replicas, rank: DistributedLengthGroupedSampler(
        2, num_replicas=replicas, rank=rank, lengths=list(range(len(data)))
    ),
}


@pytest.mark.parametrize("kind", DIVIDING)
@pytest.mark.parametrize("length", [7, 8, 9])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_real_samples_add_up_to_the_dataset(kind: str, length: int, replicas: int) -> None:
    data = TensorDataset(torch.arange(length))
    of_ranks = [DIVIDING[kind](data, replicas, rank) for rank in range(replicas)]
    real = [real_samples(DataLoader(data, batch_size=2, sampler=sampler)) for sampler in of_ranks]
    seen = [list(sampler)[:count] for sampler, count in zip(of_ranks, real, strict=True)]
    assert sorted(index for indices in seen for index in indices) == list(range(length))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("length", [12, 13, 17, 19])
def test_real_samples_of_accelerate_add_up_to_the_dataset(length: int, split: bool) -> None:
    data = TensorDataset(torch.arange(length))
    seen: list[int] = []
    for rank in (0, 1):
        shard = BatchSamplerShard(BatchSampler(SequentialSampler(data), 4, False), 2, rank, split_batches=split)
        real = real_samples(DataLoader(data, batch_sampler=shard))
        seen += [index for batch in shard for index in batch][:real]
    assert sorted(seen) == list(range(length))


class DealsBatches(DistributedSampler):
    """As speechbrain's DistributedSamplerWrapper: what it wraps gives batches, or samples."""

    def __init__(self, sampler: Any, *args: Any, **options: Any) -> None:
        super().__init__(sampler, *args, **options)
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        items = list(self.sampler)
        return iter([items[index] for index in super().__iter__()])


class DealsItsDataset(DistributedSampler):
    """Knows what it deals out as its dataset alone."""

    def __iter__(self) -> Iterator[Any]:
        items = list(self.dataset)
        return iter([items[index] for index in super().__iter__()])


@pytest.mark.parametrize("kind", [DealsBatches, DealsItsDataset])
@pytest.mark.parametrize("batches", [4, 5])
def test_a_divided_batch_sampler_pads_with_batches(batches: int, kind: type[DistributedSampler]) -> None:
    data = TensorDataset(torch.arange(3 * batches))
    counted, seen = 0, []
    for rank in (0, 1):
        of_rank = kind(BatchSampler(SequentialSampler(data), 3, False), 2, rank, shuffle=False)
        loop = samplers.Source(DataLoader(data, batch_sampler=of_rank))
        assert loop.sampling.real_samples == NEVER
        for batch in of_rank:
            size, padding = loop.sizes.measure(torch.zeros(len(batch)), len(batch))
            assert size + padding == 3
            counted += size
            seen += batch[:size]
    assert counted == len(data)
    assert sorted(seen) == list(range(len(data)))
    of_samples = kind(SequentialSampler(data), 2, 1, shuffle=False)
    assert real_samples(DataLoader(data, batch_size=2, sampler=of_samples)) == (7 if len(data) == 15 else NEVER)


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader, DataLoaderShard])
def test_a_loader_that_collates_nothing_gives_items(data: Data, kind: Callable[..., Any]) -> None:
    for items, loader in ((True, kind(data, batch_size=None)), (False, kind(data, batch_size=4))):
        outer = loader if kind is DataLoaderShard else None
        assert samplers.Loaders(Recorder()).begin(loader, outer).batch_sizes.items is items


@pytest.mark.parametrize(
    ("index", "collates", "samples"),
    [([4, 7], True, 2), ((4, 7), True, 2), (4, False, 1), ([4, 7], False, 2), ("key", False, 1), ((4, 7), False, None),
     (torch.tensor(4), False, 1), (torch.tensor([4, 7]), False, 2), (slice(4), False, None)],
)  # fmt: skip
def test_an_index_is_one_sample_and_a_list_as_many(index: object, collates: bool, samples: int | None) -> None:
    assert samplers.samples_of(index, collates) == samples


def facts(passes: Iterable[DataLoader[Any]], world_size: int = 2, whole: Sequence[bool] = ()) -> Any:
    """Return the record's facts after a pass with a step over each of these loaders; whole: which go to their end."""
    recorder = Recorder()
    loaders = samplers.Loaders(recorder)
    recorder.epoch_of = loaders.epoch_of
    for loader, is_whole in zip_longest(passes, whole, fillvalue=False):
        assert isinstance(loader, DataLoader)
        pass_ = loaders.begin(loader)
        recorder.drawn(pass_.number, 0.0, 1, 0, True, -1)
        recorder.backward(0.0)
        recorder.after_step(recorder, (), {})
        pass_.living = False
        recorder.ended(pass_.number, is_whole)
    return training_loader(recorder.judged(), loaders.facts, world_size)


class EpochsOfData(Data):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def with_epochs(loader: DataLoader[Any], thing: Any, epochs: Iterable[int]) -> tuple[bool | None, int | None]:
    def passes() -> Iterator[DataLoader[Any]]:
        for epoch in epochs:
            thing.set_epoch(epoch)
            yield loader

    found = facts(passes())
    return found["set_epoch_called"], found["epochs_set"]


@pytest.mark.parametrize(
    ("epochs", "found"), [((0, 1), (True, 2)), ((0, 1, 2), (True, 3)), ((0, 0, 0), (False, 1)), ((7, 7), (True, 1))]
)
def test_the_epochs_of_the_passes(data: Data, epochs: tuple[int, ...], found: tuple[bool, int]) -> None:
    for sampler in (distributed(data), Divided(data), distributed(data, RepeatAugSampler)):
        assert with_epochs(DataLoader(data, sampler=sampler), sampler, epochs) == found
    having = EpochsOfData(torch.arange(12))
    assert with_epochs(DataLoader(having, sampler=OfOnesOwn(data)), having, epochs) == found
