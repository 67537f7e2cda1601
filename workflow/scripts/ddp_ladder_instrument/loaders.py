"""What a DataLoader tells: the size of a batch, the record's facts, the epochs that were set."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from ddp_ladder_instrument import samplers
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.steps import NEVER

EPOCHS: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""Samplers and datasets whose set_epoch was called, and with what."""

WATCHED: set[type] = set()
"""Classes whose set_epoch is patched."""

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
    watch_epochs(loader)
    return Loop(weakref.ref(loader), real_samples(loader))


def real_samples(loader: DataLoader[Any]) -> int:
    """How many samples of one pass are not padding; NEVER when nothing is filled up, or it is not known."""
    real = samplers.sampling(loader).real_samples
    return NEVER if real is None else real


def begun_at(loader: Any, batches: int) -> int:
    """The samples before a pass that goes on where another left off, after so many batches."""
    return batches * (samplers.batch_size(list(samplers.chain(loader))) or 0) if batches else 0


def taken_up_at(loader: Any) -> int:
    """The batches before the next pass of accelerate's loader around torchdata's, which keeps a state for it."""
    state = getattr(getattr(loader, "base_dataloader", None), "next_iter_state", None)
    if not isinstance(state, dict) or state.get("_iterator_finished"):
        return 0
    snapshot = state.get("_snapshot") or {}
    steps = state.get("_num_yielded", snapshot.get("_snapshot_step", 0))
    return int(steps) + int(state.get("_steps_since_snapshot", 0))


def facts(loader: DataLoader[Any], world_size: int, passes: int) -> dict[str, Any]:
    """The record's ``loader`` at the first step of the ``passes``-th pass over it; None is unknown, or not needed."""
    told = samplers.sampling(loader)
    return {
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        "num_workers": loader.num_workers,
        "sampler": told.name,
        "shards": world_size == 1 or told.shards,
        "shuffle": told.shuffle,
        "set_epoch_called": _set_epoch_called(loader, told.own_order, passes),
        "epochs_set": None if told.own_order else _epochs_set(loader),
        "padding_known": told.real_samples is not None,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "dataset_size": _length(loader.dataset),
    }


def _set_epoch_called(loader: Any, own_order: bool, passes: int) -> bool | None:
    """None where there is none to call, or it was not yet watched when it may have been called."""
    things = _with_epochs(loader)
    # Some count epochs themselves.
    if any(thing in EPOCHS or _counts_epochs(thing) for thing in things):
        return True
    if own_order or not things:
        return None
    from_the_start = any(_owner_of_set_epoch(thing) is DistributedSampler for thing in things)
    return False if from_the_start or passes > 1 else None


def _epochs_set(loader: Any) -> int | None:
    """With how many epochs set_epoch was called; None where that is not known, or not needed."""
    return max((len(EPOCHS[thing]) for thing in _with_epochs(loader) if thing in EPOCHS), default=None)


def _counts_epochs(thing: Any) -> bool:
    try:
        epoch = getattr(thing, "epoch", None)
    except Exception:  # a property of somebody's own
        return False
    return isinstance(epoch, int) and epoch > 0


def _with_epochs(loader: Any) -> list[Any]:
    try:
        return samplers.with_epochs(loader)
    except Exception:  # a property of somebody's own
        return []


def _owner_of_set_epoch(thing: Any) -> type:
    return next(kind for kind in type(thing).__mro__ if "set_epoch" in kind.__dict__)


def watch_epochs(loader: Any) -> None:
    """Take note from now on when set_epoch of this loader's samplers or dataset is called."""
    for thing in _with_epochs(loader):
        kind = _owner_of_set_epoch(thing)
        if kind not in WATCHED:
            watch_class(kind)


def watch_class(kind: type) -> str | None:
    """Take note of the calls of this class's set_epoch; returns what to say when there is none."""
    WATCHED.add(kind)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):  # not every class can be remembered weakly
                EPOCHS.setdefault(self, set()).add(repr((args, kwargs)))
            return original(self, *args, **kwargs)

        return set_epoch

    return patch(kind, "set_epoch", wrap)


def epoch_batches(loader: DataLoader[Any]) -> int | None:
    """Batches in one pass; None for an IterableDataset, whose warnings change when it is asked."""
    return None if isinstance(loader.dataset, IterableDataset) else _length(loader)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # many do not know, and say so in their own way
        return None
