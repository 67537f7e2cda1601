"""Facts about a DataLoader: the record's ``loader``, and the epochs that were set."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset

from ddp_ladder_instrument import samplers
from ddp_ladder_instrument.batch_sizes import BatchSizes, Findings
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.loops import NEVER, Loop

EPOCHS: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""The arguments with which set_epoch of a sampler or a dataset was called; an empty set: it was watched only."""

WATCHED: set[type] = set()
"""Classes whose set_epoch is patched."""


class Source:
    """What a pass draws from, read when its iterator is made: at its first step the loader itself may be gone.

    facts: those of the record that cannot change. Nothing of the script's is kept alive.
    """

    def __init__(self, loader: Any) -> None:
        watch_epochs(loader)
        sampling = samplers.sampling(loader)
        self.dataset = _weakly(loader.dataset)
        self.own_order = sampling.own_order
        self.shards = sampling.shards
        self.real_samples = NEVER if sampling.real_samples is None else sampling.real_samples
        self.repeats = sampling.repeats
        things = _with_epochs(loader)
        self.has_set_epoch = bool(things)
        self.from_the_start = all(_owner_of_set_epoch(thing) is DistributedSampler for thing in things)
        self._things = [weakref.ref(thing) for thing in things]
        self._epochs = [EPOCHS.setdefault(thing, set()) for thing in things]
        self._counts = any(map(_counts_epochs, things))
        self.facts: dict[str, Any] = {
            "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
            "num_workers": loader.num_workers,
            "sampler": sampling.name,
            "shuffle": sampling.shuffle,
            "padding_known": sampling.real_samples is not None,
            "iterable": isinstance(loader.dataset, IterableDataset),
            "dataset_size": samplers.length_of(loader.dataset),
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
    return batches * (samplers.batch_size(list(samplers.chain(loader))) or 0) if batches else 0


def resumed_after(loader: Any) -> int:
    """Return the batches before the next pass of accelerate's loader, if a torchdata loader inside has a state."""
    state = getattr(getattr(loader, "base_dataloader", None), "next_iter_state", None)
    if not isinstance(state, dict) or state.get("_iterator_finished"):
        return 0
    snapshot = state.get("_snapshot") or {}
    steps = state.get("_num_yielded", snapshot.get("_snapshot_step", 0))
    return int(steps) + int(state.get("_steps_since_snapshot", 0))


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
    """The DataLoader that trains. first_samples: digests of its first samples; epoch_steps: batches of one pass."""

    def __init__(self) -> None:
        self.first_samples: list[str] = []
        self.epoch_steps: int | None = None
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
        self.epoch_steps = _epoch_batches(loop.loader())

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


def _epoch_batches(loader: Any) -> int | None:
    """Return the batches of one pass; None for an IterableDataset, because its len() changes later warnings."""
    if loader is None or isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    return samplers.length_of(loader)
