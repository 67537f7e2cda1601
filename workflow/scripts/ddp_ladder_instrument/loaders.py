"""Facts about a DataLoader: the size of a batch, the record's ``loader``, the epochs that were set."""

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
from ddp_ladder_instrument.loops import NEVER, Loop

EPOCHS: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""Samplers and datasets whose set_epoch was called, and its arguments."""

WATCHED: set[type] = set()
"""Classes whose set_epoch is patched."""

DEEPEST = 6
"""Levels of a batch that are searched; objects may refer to each other in a cycle."""


def batch_size(batch: object, depth: int = 0) -> int:
    """Return the number of samples in a batch; 0 if it cannot be found.

    It is the batch's own attribute (graphs: ``num_graphs``; tensordicts, DGL: ``batch_size``; a
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
            continue  # the batch's own property failed
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
    """Return the parts of a batch: a sequence's items, a mapping's values, a plain object's attributes."""
    if isinstance(batch, (list, tuple)):
        return batch
    if isinstance(batch, Mapping):
        return batch.values()
    return list(getattr(batch, "__dict__", {}).values())


def new_loop(loader: DataLoader[Any]) -> Loop:
    """Begin a pass over this loader; only a weak reference to it is kept."""
    watch_epochs(loader)
    return Loop(weakref.ref(loader), real_samples(loader))


def real_samples(loader: DataLoader[Any]) -> int:
    """Return how many samples of one pass are not padding; NEVER if nothing is padded, or it is not known."""
    real = samplers.sampling(loader).real_samples
    return NEVER if real is None else real


def samples_before(loader: Any, batches: int) -> int:
    """Return the samples before a pass that resumes an earlier one after ``batches`` batches."""
    return batches * (samplers.batch_size(list(samplers.chain(loader))) or 0) if batches else 0


def resumed_after(loader: Any) -> int:
    """Return the batches before the next pass of accelerate's loader, if a torchdata loader inside has a state."""
    state = getattr(getattr(loader, "base_dataloader", None), "next_iter_state", None)
    if not isinstance(state, dict) or state.get("_iterator_finished"):
        return 0
    snapshot = state.get("_snapshot") or {}
    steps = state.get("_num_yielded", snapshot.get("_snapshot_step", 0))
    return int(steps) + int(state.get("_steps_since_snapshot", 0))


def facts(loader: DataLoader[Any], world_size: int, passes: int) -> dict[str, Any]:
    """Return the record's ``loader`` at the first step of pass number ``passes``; None: unknown, or not needed."""
    sampling = samplers.sampling(loader)
    return {
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        "num_workers": loader.num_workers,
        "sampler": sampling.name,
        "shards": world_size == 1 or sampling.shards,
        "shuffle": sampling.shuffle,
        "set_epoch_called": _set_epoch_called(loader, sampling.own_order, passes),
        "padding_known": sampling.real_samples is not None,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "dataset_size": samplers.length_of(loader.dataset),
    }


def _set_epoch_called(loader: Any, own_order: bool, passes: int) -> bool | None:
    """Return None if there is no set_epoch, or it may have been called before it was watched."""
    things = _with_epochs(loader)
    # Some samplers count epochs themselves.
    if any(thing in EPOCHS or _counts_epochs(thing) for thing in things):
        return True
    if own_order or not things:
        return None
    from_the_start = any(_owner_of_set_epoch(thing) is DistributedSampler for thing in things)
    return False if from_the_start or passes > 1 else None


def _epochs_set(loader: Any) -> frozenset[str] | None:
    """Return the arguments of the calls of set_epoch; None if they are not known, or not needed."""
    if samplers.sampling(loader).own_order:
        return None
    epochs = [EPOCHS[thing] for thing in _with_epochs(loader) if thing in EPOCHS]
    return frozenset().union(*epochs) if epochs else None


class Passes:
    """Counter of passes over the training data, by one loader or by successive loaders over one dataset."""

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last: Callable[[], Any] = lambda: None
        self._last_dataset: Callable[[], Any] = lambda: None
        self._last_count = 0

    def begin(self, loader: Any) -> int:
        """Count a pass over ``loader`` that begins now; return its number, from 1."""
        count = self._counts.get(loader, self._of_the_loader_before(loader)) + 1
        self._counts[loader] = self._last_count = count
        self._last, self._last_dataset = weakref.ref(loader), _weakly(loader.dataset)
        return count

    def _of_the_loader_before(self, loader: Any) -> int:
        """Return the passes of a deleted loader over the same dataset: some scripts make a loader for each epoch."""
        is_next = self._last() is None and self._last_dataset() is loader.dataset
        return self._last_count if is_next else 0


class TrainingLoader:
    """The DataLoader that trains. first_samples: digests of its first samples; epoch_steps: batches of one pass."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = None
        self.first_samples: list[str] = []
        self.epoch_steps: int | None = None
        self._passes = Passes()
        self._epochs: frozenset[str] | None = None

    def begin_pass(self, loop: Loop, world_size: int) -> None:
        """Update the facts at the first step of this pass."""
        loader, before = loop.loader(), self.facts
        if loader is None:
            return
        if before is None:
            self.first_samples = loop.first_samples
        passes = self._passes.begin(loader)
        self.facts = facts(loader, world_size, passes)
        epochs = _epochs_set(loader)
        if before is not None and before["set_epoch_called"]:
            self.facts["set_epoch_called"] = True
            epochs = None if self._epochs is None or epochs is None else self._epochs | epochs
        self._epochs = epochs
        self.facts["epochs_set"] = len(epochs) if epochs else None
        self.facts["passes"] = max(passes, before["passes"] if before is not None else 0)
        self.epoch_steps = _epoch_batches(loader)


def _weakly(thing: Any) -> Callable[[], Any]:
    return weakref.ref(thing) if type(thing).__weakrefoffset__ else lambda: None


def _counts_epochs(thing: Any) -> bool:
    try:
        epoch = getattr(thing, "epoch", None)
    except Exception:  # a property defined by another library may raise anything
        return False
    return isinstance(epoch, int) and epoch > 0


def _with_epochs(loader: Any) -> list[Any]:
    try:
        return samplers.with_epochs(loader)
    except Exception:  # a property defined by another library may raise anything
        return []


def _owner_of_set_epoch(thing: Any) -> type:
    return next(kind for kind in type(thing).__mro__ if "set_epoch" in kind.__dict__)


def watch_epochs(loader: Any) -> None:
    """Record the calls of set_epoch of this loader's samplers or dataset."""
    for thing in _with_epochs(loader):
        kind = _owner_of_set_epoch(thing)
        if kind not in WATCHED:
            watch_class(kind)


def watch_class(kind: type) -> str | None:
    """Record the calls of this class's set_epoch; return a message if it has none."""
    WATCHED.add(kind)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):  # not every class supports weak references
                EPOCHS.setdefault(self, set()).add(repr((args, kwargs)))
            return original(self, *args, **kwargs)

        return set_epoch

    return patch(kind, "set_epoch", wrap)


def _epoch_batches(loader: DataLoader[Any]) -> int | None:
    """Return the batches of one pass; None for an IterableDataset, because its len() changes later warnings."""
    return None if isinstance(loader.dataset, IterableDataset) else samplers.length_of(loader)
