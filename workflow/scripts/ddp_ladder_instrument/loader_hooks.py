"""The patches on torch's DataLoader: batches yielded, time waited for them, the end of a pass.

The size of a batch is the number of indices that its sampler gave, which is exact. If there are none
(an IterableDataset, batches made by the dataset), the size is read from the batch itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Optional

from torch.utils.data import dataloader
from torch.utils.data.distributed import DistributedSampler

from ddp_ladder_instrument import loaders
from ddp_ladder_instrument.compiler import eager, not_compiled
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.step_clock import EARLY_STEPS, StepClock

LOOP_ATTRIBUTE = "_ddp_ladder_loop"
SIZES_ATTRIBUTE = "_ddp_ladder_sizes"

TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"
ACCELERATE = "accelerate.data_loader"

Sizes = tuple[Any, deque[Optional[int]]]
"""The sampler's iterator of this pass, and the sizes of the batches whose indices it has given."""


def patch_loaders(clock: StepClock) -> str | None:
    """Patch torch's DataLoader."""
    single = getattr(dataloader, "_SingleProcessDataLoaderIter", None)
    several = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if single is None or several is None:
        return "torch.utils.data.dataloader._SingleProcessDataLoaderIter is missing"
    return _patch_kinds(dataloader.DataLoader, single, several, clock)


def _patch_kinds(loader: type, single: type, several: type, clock: StepClock) -> str | None:
    return (
        patch(loader, "__iter__", lambda original: _iter(original, clock, LOADER_THREADS))
        or patch(single, "_next_data", lambda original: _next(original, clock, LOADER_THREADS))
        or patch(several, "_next_data", lambda original: _next(original, clock, LOADER_THREADS))
    )


def patch_indices() -> str | None:
    """Record the number of indices of each batch."""
    base = getattr(dataloader, "_BaseDataLoaderIter", None)
    kinds = getattr(dataloader, "_DatasetKind", None)
    if base is None or kinds is None:
        return "torch.utils.data.dataloader._BaseDataLoaderIter is missing"
    return patch(base, "_next_index", lambda original: _next_index(original, kinds.Map))


def patch_set_epoch() -> str | None:
    """Record which samplers' set_epoch is called, also before their first pass."""
    return loaders.watch_class(DistributedSampler)


def patch_torchdata(clock: StepClock) -> str | None:
    """Patch torchdata's loader, which has its own iterators."""
    module = sys.modules[TORCHDATA]
    loader = getattr(module, "StatefulDataLoader", None)
    kinds = ("_StatefulSingleProcessDataLoaderIter", "_StatefulMultiProcessingDataLoaderIter")
    single, several = (getattr(module, name, None) for name in kinds)
    if loader is None or single is None or several is None:
        return f"{TORCHDATA}.{kinds[0]} is missing"
    return _patch_kinds(loader, single, several, clock)


def patch_accelerate(clock: StepClock) -> str | None:
    """Patch accelerate's loaders. They draw one batch ahead from the loaders inside, which are then ignored."""
    module = sys.modules[ACCELERATE]
    for name in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        kind = getattr(module, name, None)
        if kind is None:
            return f"{ACCELERATE}.{name} is missing"
        patch(kind, "__iter__", lambda original: _outer_iter(original, clock))
    return None


LOADER_THREADS: set[int] = set()
"""Threads in which a loader is fetching a batch."""

OUTER_THREADS: set[int] = set()
"""Threads that fetch for an outer loader: batches of the loaders inside belong to it."""


def _iter(original: Callable[..., Any], clock: StepClock, in_loader: set[int]) -> Callable[..., Any]:
    process = os.getpid()

    @eager
    def _enter(loader: Any, entered_s: float) -> Loop:
        loop = loaders.new_loop(loader)
        if threading.get_ident() in clock.threads.trainers:
            clock.timer.enter(loop, entered_s)
        return loop

    def iterate(self: Any) -> Any:
        thread = threading.get_ident()
        if thread in in_loader or thread in OUTER_THREADS:
            return original(self)
        entered_s = time.perf_counter()
        loop = _enter(self, entered_s)
        iterator = original(self)
        loop.wait_s += time.perf_counter() - entered_s
        if isinstance(iterator, dataloader._BaseDataLoaderIter):
            _begin_pass(iterator, loop)
        return iterator

    @eager
    def _begin_pass(iterator: Any, loop: Loop) -> None:
        before = iterator.__dict__.get(LOOP_ATTRIBUTE)
        if before is not None and before.living:  # persistent workers: the same iterator again
            clock.left(before)
        setattr(iterator, LOOP_ATTRIBUTE, loop)
        loop.position = loaders.samples_before(loop.loader(), getattr(iterator, "_num_yielded", 0))
        loop.iterator = weakref.ref(iterator, lambda _: _gone(loop))

    def _gone(loop: Loop) -> None:
        if loop.living and os.getpid() == process:
            clock.exhausted(loop) if loop.given else clock.left(loop)

    return iterate


def _next(original: Callable[..., Any], clock: StepClock, in_loader: set[int]) -> Callable[..., Any]:
    get_thread = threading.get_ident
    now = time.perf_counter
    enter, left, yielded = eager(clock.timer.enter), eager(clock.left), eager(clock.yielded)
    batch_size, on_batch = eager(loaders.batch_size), eager(_on_batch)
    next_size = not_compiled(_announced_size)
    trainers, timer, table = clock.threads.trainers, clock.timer, clock.table

    def _next_data(self: Any) -> Any:
        thread = get_thread()
        state = self.__dict__
        loop: Loop | None = state.get(LOOP_ATTRIBUTE)
        # Not counted: a loader that a dataset reads from (part of the outer one), and a pass that is over.
        if loop is None or not loop.living or thread in in_loader:
            batch = original(self)
            next_size(state)
            return batch
        entered_s = now()
        trains = thread in trainers
        if trains and timer.loop is not loop:
            enter(loop, entered_s)
        in_loader.add(thread)
        try:
            batch = original(self)
        except StopIteration:
            left(loop) if trains else clock.exhausted(loop)
            raise
        except BaseException:
            next_size(state)
            raise
        finally:
            in_loader.discard(thread)
        size = next_size(state)
        if size is None:
            size = batch_size(batch)
        yielded(loop, entered_s, size) if trains else clock.threads.note_drawn(loop, size)
        if table.count < EARLY_STEPS:
            on_batch(clock, loop, batch)
        return batch

    return _next_data


def _on_batch(clock: StepClock, loop: Loop, batch: object) -> None:
    clock.on_batch(loop, batch)


def _announced_size(state: dict[str, Any]) -> int | None:
    """Return the size of the next batch, if its indices were counted."""
    sizes: Sizes | None = state.get(SIZES_ATTRIBUTE)
    return sizes[1].popleft() if sizes is not None and sizes[1] else None


def _next_index(original: Callable[..., Any], of_maps: Any) -> Callable[..., Any]:
    def next_index(self: Any) -> Any:
        index = original(self)
        if not self._auto_collation or self._dataset_kind != of_maps:
            return index
        state = self.__dict__
        sizes: Sizes | None = state.get(SIZES_ATTRIBUTE)
        if sizes is None or sizes[0] is not self._sampler_iter:
            sizes = state[SIZES_ATTRIBUTE] = (self._sampler_iter, deque())
        try:
            sizes[1].append(len(index))
        except TypeError:
            sizes[1].append(None)  # indices without a length
        return index

    return next_index


def _outer_iter(original: Callable[..., Any], clock: StepClock) -> Callable[..., Any]:
    new_loop, batch_size, on_batch = eager(loaders.new_loop), eager(loaders.batch_size), eager(_on_batch)
    enter, left, yielded = eager(clock.timer.enter), eager(clock.left), eager(clock.yielded)
    samples_before, resumed_after = eager(loaders.samples_before), eager(loaders.resumed_after)

    def iterate(self: Any) -> Iterator[Any]:
        thread = threading.get_ident()
        if thread in OUTER_THREADS:
            yield from original(self)
            return
        entered_s = time.perf_counter()
        loop = new_loop(self)
        loop.position = samples_before(self, resumed_after(self))
        trains = thread in clock.threads.trainers
        if trains:
            enter(loop, entered_s)
        inner = original(self)
        try:
            while True:
                thread = threading.get_ident()
                trains = thread in clock.threads.trainers
                if trains and clock.timer.loop is not loop:
                    enter(loop, entered_s)
                OUTER_THREADS.add(thread)
                try:
                    batch = next(inner)
                except StopIteration:
                    return
                finally:
                    OUTER_THREADS.discard(thread)
                size = batch_size(batch)
                yielded(loop, entered_s, size) if trains else clock.threads.note_drawn(loop, size)
                if clock.table.count < EARLY_STEPS:
                    on_batch(clock, loop, batch)
                yield batch
                entered_s = time.perf_counter()
        finally:
            left(loop) if trains else clock.exhausted(loop)
            inner.close()

    return iterate
