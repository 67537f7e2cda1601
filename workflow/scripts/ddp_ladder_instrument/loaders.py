"""What a DataLoader tells: the size of a batch, the sampler's padding, the record's facts."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from ddp_ladder_instrument.steps import NEVER, Loop

EPOCH_SET: weakref.WeakSet[Any] = weakref.WeakSet()
"""Samplers whose set_epoch was called."""


def batch_size(batch: object) -> int:
    """First dimension of the first tensor in nested sequences and mappings, else 0."""
    if isinstance(batch, Tensor):
        return batch.size(0) if batch.dim() else 0
    if isinstance(batch, (list, tuple)):
        items: Any = batch
    elif isinstance(batch, Mapping):
        items = batch.values()
    else:
        return 0
    for item in items:
        size = batch_size(item)
        if size:
            return size
    return 0


def new_loop(loader: DataLoader[Any]) -> Loop:
    """Begin a pass over this loader; it is not kept alive."""
    return Loop(weakref.ref(loader), real_samples(loader))


def real_samples(loader: DataLoader[Any]) -> int:
    """How many samples of one pass are not padding; NEVER when this loader's sampler does not pad.

    DistributedSampler deals out index j*replicas + rank and fills up from the beginning.
    """
    sampler = loader.sampler
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return NEVER
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        return NEVER
    remaining = len(sampler.dataset) - sampler.rank  # type: ignore[arg-type]
    return max(0, -(-remaining // sampler.num_replicas))


def facts(loader: DataLoader[Any], world_size: int) -> dict[str, Any]:
    """The record's ``loader``."""
    batch_sampler = loader.batch_sampler
    own_batches = batch_sampler is not None and type(batch_sampler) is not BatchSampler
    sampler: Any = batch_sampler if own_batches else loader.sampler
    inner = getattr(sampler, "sampler", None)
    replicas: int = getattr(sampler, "num_replicas", 0) or getattr(inner, "num_replicas", 1)
    return {
        "batch_size": loader.batch_size or getattr(batch_sampler, "batch_size", None),
        "num_workers": loader.num_workers,
        "sampler": type(sampler).__name__,
        "shards": world_size == 1 or replicas > 1,
        "set_epoch_called": sampler in EPOCH_SET,
        "dataset_size": _length(loader.dataset),
    }


def epoch_batches(loader: DataLoader[Any]) -> int | None:
    """Batches in one pass; None for an IterableDataset, whose warnings change when it is asked."""
    return None if isinstance(loader.dataset, IterableDataset) else _length(loader)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
