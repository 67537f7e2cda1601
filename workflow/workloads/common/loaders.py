"""Data for the ranks: resident images, the samplers, and the DataLoaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from common.distributed import World

Batch = Any
"""(inputs, labels), both tensors with one row per sample."""


class WholeBatches(Dataset[Any]):
    """A dataset that returns a whole batch at a time, through ``__getitems__``.

    device: where the batches are; a batch on the GPU needs no copy.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device


class Resident(WholeBatches):
    """Inputs and labels as two tensors, on the training device or in host memory.

    A batch is one indexing of each, instead of one Python call per sample and a copy to join them.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, device: torch.device) -> None:
        super().__init__(device)
        self.inputs = inputs.to(device)
        self.labels = labels.to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        where = torch.tensor(indices).to(self.device, non_blocking=True)
        return self.inputs[where], self.labels[where]


def as_it_is(batch: Batch) -> Batch:
    """Return the batch; as ``collate_fn``, because whole batches need no joining."""
    return batch


class Shards(DistributedSampler[Any]):
    """DistributedSampler that can begin its next pass in the middle, where a checkpoint was written.

    Every rank gets the same number of samples: up to world size - 1 of them occur twice in an epoch.
    """

    def __init__(self, dataset: Dataset[Any], world: World, seed: int) -> None:
        super().__init__(dataset, num_replicas=world.size, rank=world.rank, seed=seed)
        self.done = 0

    def __iter__(self) -> Iterator[Any]:
        indices = list(super().__iter__())
        done, self.done = self.done, 0
        return iter(indices[done:])


def begin_epoch(loader: DataLoader[Any], epoch: int, done: int) -> None:
    """Shuffle for this epoch, and skip the ``done`` samples that this rank has already used.

    The loader has its own generator, for its workers: an epoch draws the same numbers whatever came before it.
    """
    shards: Any = loader.sampler
    shards.set_epoch(epoch)
    shards.done = done
    generator: Any = loader.generator
    generator.manual_seed(rank_seed(shards.seed, shards.rank) + epoch)


def rank_seed(seed: int, rank: int) -> int:
    """Return a seed that differs between ranks, for dropout and augmentation."""
    return 1_000_003 * seed + 10_007 * (rank + 1)


def train_loader(dataset: Dataset[Any], batch_size: int, world: World, seed: int, workers: int) -> DataLoader[Any]:
    """Return a loader of this rank's share, shuffled in each epoch. ``batch_size`` is that of one rank."""
    return _loader(dataset, batch_size, Shards(dataset, world, seed), world, workers)


def test_loader(dataset: Dataset[Any], batch_size: int, world: World, workers: int) -> DataLoader[Any]:
    """Return a loader of every ``size``-th sample: exactly one rank sees each. DistributedSampler would add padding."""
    size: int = len(dataset)  # type: ignore[arg-type]
    return _loader(dataset, batch_size, range(world.rank, size, world.size), world, workers)


def _loader(dataset: Dataset[Any], batch_size: int, sampler: Any, world: World, workers: int) -> DataLoader[Any]:
    on_device = isinstance(dataset, WholeBatches) and dataset.device.type == "cuda"
    return DataLoader(
        dataset,
        batch_size,
        sampler=sampler,
        # Workers are new in each epoch: old ones would continue with random states that no checkpoint has.
        num_workers=workers,
        generator=torch.Generator(),
        collate_fn=as_it_is if isinstance(dataset, WholeBatches) else None,
        # Pinned memory lets the copy to the GPU overlap with computing.
        pin_memory=world.device.type == "cuda" and not on_device,
    )
