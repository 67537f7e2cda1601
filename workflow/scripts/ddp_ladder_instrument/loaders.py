"""What a DataLoader tells: the size of a batch, the sampler's padding, the record's facts."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.steps import NEVER

EPOCH_SET: weakref.WeakSet[Any] = weakref.WeakSet()
"""Samplers whose set_epoch was called."""


DEEPEST = 6
"""Levels of a batch that are looked into; objects may refer to each other in circles."""


def batch_size(batch: object, depth: int = 0) -> int:
    """Samples in a batch, from its looks: 0 where nothing tells.

    What a batch of its own kind says (graphs: ``num_graphs``; tensordicts, DGL: ``batch_size``; a
    packed sequence), else the first dimension of the first tensor or array in nested sequences,
    mappings and the attributes of plain objects.
    """
    if isinstance(batch, Tensor):
        return batch.size(0) if batch.dim() else 0
    if isinstance(batch, (str, bytes, int, float)) or batch is None:
        return 0
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    own = _own_size(batch)
    return own if own or depth > DEEPEST else _first_size(batch, depth)


def _own_size(batch: object) -> int:
    for name in ("num_graphs", "batch_size"):
        try:
            size: Any = getattr(batch, name, None)
            size = size[0] if isinstance(size, (list, tuple)) and size else size
            if isinstance(size, int) and size > 0:
                return size
        except (AttributeError, RuntimeError, NotImplementedError):
            continue  # a property of the batch's own that cannot tell
    return 0


def _first_size(batch: Any, depth: int) -> int:
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if shape else 0
    for item in parts(batch):
        size = batch_size(item, depth + 1)
        if size:
            return size
    return 0


def parts(batch: Any) -> Collection[Any]:
    """What a batch is made of: a sequence's items, a mapping's values, a plain object's attributes."""
    if isinstance(batch, (list, tuple)):
        return batch
    if isinstance(batch, Mapping):
        return batch.values()
    return list(getattr(batch, "__dict__", {}).values())


def new_loop(loader: DataLoader[Any]) -> Loop:
    """Begin a pass over this loader; it is not kept alive."""
    return Loop(weakref.ref(loader), real_samples(loader))


def real_samples(loader: DataLoader[Any]) -> int:
    """How many samples of one pass are not padding; NEVER when this loader's sampler does not pad."""
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        return _real_samples_of_shard(loader.batch_sampler)
    sampler = loader.sampler
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return NEVER
    # DistributedSampler deals out index j*replicas + rank and fills up from the beginning.
    remaining = len(sampler.dataset) - sampler.rank  # type: ignore[arg-type]
    return max(0, -(-remaining // sampler.num_replicas))


def _real_samples_of_shard(shard: Any) -> int:
    """The same of accelerate's BatchSamplerShard, which fills up whole batches."""
    inner = getattr(shard, "batch_sampler", None)
    if type(shard).__name__ != "BatchSamplerShard" or inner is None:
        return NEVER
    batch, length = getattr(inner, "batch_size", None), _length(getattr(inner, "sampler", None))
    if batch is None or length is None or inner.drop_last or not shard.even_batches:
        return NEVER
    count, index = shard.num_processes, shard.process_index
    share = batch // count if shard.split_batches else batch
    # Shares go round by process: process i has the samples share*i to share*(i+1) of each round.
    rounds, rest = divmod(length, share * count)
    return int(rounds * share + min(share, max(0, rest - share * index)))


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
        "shuffle": getattr(sampler, "shuffle", None),
        # Some count epochs themselves, or have a set_epoch of their own.
        "set_epoch_called": sampler in EPOCH_SET or bool(getattr(sampler, "epoch", 0)),
        "iterable": isinstance(loader.dataset, IterableDataset),
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
