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
        "padding_known": told.real_samples is not None,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "dataset_size": samplers.length_of(loader.dataset),
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


def epochs_set(loader: Any) -> frozenset[str] | None:
    """The epochs that set_epoch was called with; None where they are not known, or not needed."""
    if samplers.sampling(loader).own_order:
        return None
    told = [EPOCHS[thing] for thing in _with_epochs(loader) if thing in EPOCHS]
    return frozenset().union(*told) if told else None


class Passes:
    """Counts passes over the training data: over one loader, or by one loader after the other over one dataset."""

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last: Callable[[], Any] = lambda: None
        self._last_dataset: Callable[[], Any] = lambda: None
        self._last_count = 0

    def begin(self, loader: Any) -> int:
        """The number of the pass over ``loader`` that begins now, from 1."""
        count = self._counts.get(loader, self._of_the_loader_before(loader)) + 1
        self._counts[loader] = self._last_count = count
        self._last, self._last_dataset = weakref.ref(loader), _weakly(loader.dataset)
        return count

    def _of_the_loader_before(self, loader: Any) -> int:
        """Passes over a loader that is gone and had the same dataset: some scripts make a loader for each epoch."""
        is_next = self._last() is None and self._last_dataset() is loader.dataset
        return self._last_count if is_next else 0


def _weakly(thing: Any) -> Callable[[], Any]:
    return weakref.ref(thing) if type(thing).__weakrefoffset__ else lambda: None


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
    return None if isinstance(loader.dataset, IterableDataset) else samplers.length_of(loader)
