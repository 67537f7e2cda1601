"""The patches on torch's DataLoader: what is yielded, how long it was waited for, when a pass ends.

The size of a batch is the number of indices that its sampler gave: exact, whatever the batch looks
like. Only where there are none (an IterableDataset, batches made by the dataset) its looks tell.
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

from ddp_ladder_instrument import handovers, loaders
from ddp_ladder_instrument.compiler import passed_over, unseen
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.steps import EARLY_STEPS, Steps

LOOP_ATTRIBUTE = "_ddp_ladder_loop"
SIZES_ATTRIBUTE = "_ddp_ladder_sizes"

TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"
ACCELERATE = "accelerate.data_loader"

Sizes = tuple[Any, deque[Optional[int]]]
"""The sampler's iterator of this pass, and the sizes of the batches that it announced."""


def patch_loaders(steps: Steps) -> str | None:
    """Follow every DataLoader of this process."""
    single = getattr(dataloader, "_SingleProcessDataLoaderIter", None)
    several = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if single is None or several is None:
        return "torch.utils.data.dataloader._SingleProcessDataLoaderIter is missing"
    return _patch_kinds(dataloader.DataLoader, single, several, steps)


def _patch_kinds(loader: type, single: type, several: type, steps: Steps) -> str | None:
    return (
        patch(loader, "__iter__", lambda original: _iter(original, steps, IN_LOADER))
        or patch(single, "_next_data", lambda original: _next(original, steps, IN_LOADER))
        or patch(several, "_next_data", lambda original: _next(original, steps, IN_LOADER))
    )


def patch_indices() -> str | None:
    """Take note of how many indices make each batch."""
    base = getattr(dataloader, "_BaseDataLoaderIter", None)
    kinds = getattr(dataloader, "_DatasetKind", None)
    if base is None or kinds is None:
        return "torch.utils.data.dataloader._BaseDataLoaderIter is missing"
    return patch(base, "_next_index", lambda original: _next_index(original, kinds.Map))


def patch_set_epoch() -> str | None:
    """Take note of the samplers whose set_epoch is called, from before their first pass."""
    return loaders.watch_class(DistributedSampler)


def patch_torchdata(steps: Steps) -> str | None:
    """Follow torchdata's loader, which has iterators of its own."""
    module = sys.modules[TORCHDATA]
    loader = getattr(module, "StatefulDataLoader", None)
    kinds = ("_StatefulSingleProcessDataLoaderIter", "_StatefulMultiProcessingDataLoaderIter")
    single, several = (getattr(module, name, None) for name in kinds)
    if loader is None or single is None or several is None:
        return f"{TORCHDATA}.{kinds[0]} is missing"
    return _patch_kinds(loader, single, several, steps)


def patch_accelerate(steps: Steps) -> str | None:
    """Follow accelerate's loaders instead of those inside, which they draw from one batch ahead."""
    module = sys.modules[ACCELERATE]
    for name in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        kind = getattr(module, name, None)
        if kind is None:
            return f"{ACCELERATE}.{name} is missing"
        patch(kind, "__iter__", lambda original: _outer_iter(original, steps))
    return None


IN_LOADER: set[int] = set()
"""Threads that a loader draws in."""

OUTER: set[int] = set()
"""Threads that draw for an outer loader: what is drawn inside belongs to it."""


def _iter(original: Callable[..., Any], steps: Steps, in_loader: set[int]) -> Callable[..., Any]:
    process = os.getpid()

    @unseen
    def _enter(loader: Any, entered_s: float) -> Loop:
        loop = loaders.new_loop(loader)
        if threading.get_ident() in steps.trainers:
            steps.enter(loop, entered_s)
        return loop

    def iterate(self: Any) -> Any:
        thread = threading.get_ident()
        if thread in in_loader or thread in OUTER:
            return original(self)
        entered_s = time.perf_counter()
        loop = _enter(self, entered_s)
        iterator = original(self)
        loop.wait_s += time.perf_counter() - entered_s
        if isinstance(iterator, dataloader._BaseDataLoaderIter):
            _begin_pass(iterator, loop)
        return iterator

    @unseen
    def _begin_pass(iterator: Any, loop: Loop) -> None:
        before = iterator.__dict__.get(LOOP_ATTRIBUTE)
        if before is not None and before.living:  # persistent workers: the same iterator again
            steps.left(before)
        setattr(iterator, LOOP_ATTRIBUTE, loop)
        loop.position = loaders.begun_at(loop.loader(), getattr(iterator, "_num_yielded", 0))
        loop.iterator = weakref.ref(iterator, lambda _: _gone(loop))

    def _gone(loop: Loop) -> None:
        if loop.living and os.getpid() == process:
            steps.exhausted(loop) if loop.given else steps.left(loop)

    return iterate


def _next(original: Callable[..., Any], steps: Steps, in_loader: set[int]) -> Callable[..., Any]:
    get_thread = threading.get_ident
    clock = time.perf_counter
    enter, left, yielded = unseen(steps.enter), unseen(steps.left), unseen(steps.yielded)
    batch_size, on_batch = unseen(loaders.batch_size), unseen(_on_batch)
    announced = passed_over(_announced)
    trainers = steps.trainers

    def _next_data(self: Any) -> Any:
        thread = get_thread()
        state = self.__dict__
        loop: Loop | None = state.get(LOOP_ATTRIBUTE)
        # A loader that a dataset of this process reads from is part of the outer one; one that is over has no more.
        if loop is None or not loop.living or thread in in_loader:
            batch = original(self)
            announced(state)
            return batch
        entered_s = clock()
        trains = thread in trainers
        if trains and steps.loop is not loop:
            enter(loop, entered_s)
        in_loader.add(thread)
        try:
            batch = original(self)
        except StopIteration:
            left(loop) if trains else steps.exhausted(loop)
            raise
        except BaseException:
            announced(state)
            raise
        finally:
            in_loader.discard(thread)
        size = announced(state)
        if size is None:
            size = batch_size(batch)
        yielded(loop, entered_s, size) if trains else handovers.drawn(steps, loop, size)
        if steps.count < EARLY_STEPS:
            on_batch(steps, loop, batch)
        return batch

    return _next_data


def _on_batch(steps: Steps, loop: Loop, batch: object) -> None:
    steps.on_batch(loop, batch)


def _announced(state: dict[str, Any]) -> int | None:
    """Size of the batch that comes next, if its indices told."""
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
            sizes[1].append(None)  # indices in a form of their own
        return index

    return next_index


def _outer_iter(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    new_loop, batch_size, on_batch = unseen(loaders.new_loop), unseen(loaders.batch_size), unseen(_on_batch)
    enter, left, yielded = unseen(steps.enter), unseen(steps.left), unseen(steps.yielded)
    begun_at, taken_up_at = unseen(loaders.begun_at), unseen(loaders.taken_up_at)

    def iterate(self: Any) -> Iterator[Any]:
        thread = threading.get_ident()
        if thread in OUTER:
            yield from original(self)
            return
        entered_s = time.perf_counter()
        loop = new_loop(self)
        loop.position = begun_at(self, taken_up_at(self))
        trains = thread in steps.trainers
        if trains:
            enter(loop, entered_s)
        inner = original(self)
        try:
            while True:
                thread = threading.get_ident()
                trains = thread in steps.trainers
                if trains and steps.loop is not loop:
                    enter(loop, entered_s)
                OUTER.add(thread)
                try:
                    batch = next(inner)
                except StopIteration:
                    return
                finally:
                    OUTER.discard(thread)
                size = batch_size(batch)
                yielded(loop, entered_s, size) if trains else handovers.drawn(steps, loop, size)
                if steps.count < EARLY_STEPS:
                    on_batch(steps, loop, batch)
                yield batch
                entered_s = time.perf_counter()
        finally:
            left(loop) if trains else steps.exhausted(loop)
            inner.close()

    return iterate
