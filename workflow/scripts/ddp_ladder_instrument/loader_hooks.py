"""The patches on torch's DataLoader: batches yielded, time waited for them, the end of a pass.

The size of a batch is the number of indices that its sampler gave, or of the items that it takes from a stream, if the
batch agrees. If there are none (batches made by the dataset), the size is read from the batch itself.

What another thread than the main one draws is not counted: when the training gets it is not seen. Nor is what
itertools.cycle gives again, after the first pass.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch.utils.data import _utils, dataloader, get_worker_info

from ddp_ladder_instrument import samplers
from ddp_ladder_instrument.hooks import Around, eager, patch
from ddp_ladder_instrument.log import NO_MARK
from ddp_ladder_instrument.places import place_here
from ddp_ladder_instrument.recorder import EARLY_STEPS, Recorder
from ddp_ladder_instrument.samplers import LoaderPass, Loaders

MAIN_THREAD = threading.main_thread().ident
PASS_ATTRIBUTE = "_ddp_ladder_pass"
SIZES_ATTRIBUTE = "_ddp_ladder_sizes"
WORKER_TIMES = "_ddp_ladder_worker_times"


class Announced(deque[Optional[int]]):
    """The numbers of indices of batches; None: unknown."""


Sizes = tuple[Any, Announced]
"""The sampler's iterator of this pass, and the sizes of the batches whose indices it has given."""


class LoaderHooks:
    """What the patched loaders notify."""

    def __init__(self, recorder: Recorder, loaders: Loaders, on_batch: Callable[[LoaderPass, object], None]) -> None:
        self.recorder = recorder
        self._on_batch = on_batch  # called with each batch of the first EARLY_STEPS
        self.on_draw: Callable[[LoaderPass, object, int], None] | None = None  # called with each batch and its size
        self.begin, self.enter, self.count = eager(loaders.begin), eager(recorder.enter), eager(self._count)
        self.made = eager(self._made)
        self.end = _end(recorder)

    def _made(self, iterator: Any, pass_: LoaderPass, entered_s: float, is_main: bool) -> None:
        before = iterator.__dict__.get(PASS_ATTRIBUTE)
        if before is not None:  # persistent workers: the same iterator again
            self.end(before, False)
        setattr(iterator, PASS_ATTRIBUTE, pass_)
        pass_.iterator = weakref.ref(iterator, lambda _: self.end(pass_, False))
        if is_main:
            self.recorder.made(pass_.number, entered_s)

    def _count(self, pass_: LoaderPass, batch: object, announced: int | None, entered_s: float, mark: int) -> None:
        """Count a batch that the loader has just given; announced: the number of its indices, if they were counted."""
        size, dropped = pass_.batch_sizes.measure(batch, announced)
        recorder = self.recorder
        if not pass_.place:
            pass_.place = place_here()
            recorder.draws_at(pass_.number, pass_.place)
        recorder.drawn(pass_.number, entered_s, size + dropped, dropped, torch.is_grad_enabled(), mark)
        if recorder.steps < EARLY_STEPS:
            self._on_batch(pass_, batch)
        if self.on_draw is not None:
            self.on_draw(pass_, batch, size)

    def patch_torch(self) -> None:
        self._patch_kinds(dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)

    def patch_torchdata(self, module: Any) -> None:
        """Patch torchdata's loader, which has its own iterators."""
        self._patch_kinds(module._StatefulSingleProcessDataLoaderIter, module._StatefulMultiProcessingDataLoaderIter)

    def _patch_kinds(self, single: type, several: type) -> None:
        for kind, name in ((single, "__init__"), (several, "__init__"), (several, "_reset")):
            patch(kind, name, _make(self))
        for kind in (single, several):
            patch(kind, "_next_data", _next(self))

    def patch_accelerate(self, module: Any) -> None:
        """Patch accelerate's loaders. They draw one batch ahead from the loaders inside, which are then ignored."""
        for kind in (module.DataLoaderShard, module.SkipDataLoader):
            patch(kind, "__iter__", _outer_iter(self, same=True))
        patch(module.DataLoaderDispatcher, "__iter__", _outer_iter(self, same=False))

    def patch_webdataset(self, module: Any) -> None:
        """Patch webdataset's loader, whose stages shuffle and batch again what a DataLoader inside yields."""
        patch(module.WebLoader, "__iter__", _outer_iter(self, same=False))


def patch_indices() -> None:
    """Record the number of indices of each batch."""
    announce = eager(_announce)

    def next_index(original: Callable[..., Any], iterator: Any) -> Any:
        index = original(iterator)
        announce(iterator, index)
        return index

    patch(dataloader._BaseDataLoaderIter, "_next_index", next_index)


class _Inside:
    """Where the main thread is."""

    loader = False  # inside a loader: it fetches a batch, or makes an iterator
    outer: Announced | None = None  # the batches that loaders inside have given an outer one, which counts, if any


INSIDE = _Inside()  # an object: a change of a class, for each batch, would empty Python's caches


def _is_inside() -> bool:
    """Return True if what this thread draws is not counted: a part of another loader, or of another thread."""
    return INSIDE.loader or INSIDE.outer is not None or threading.get_ident() != MAIN_THREAD


def _make(notify: LoaderHooks) -> Around:
    """Begin a pass where an iterator is made, or begins anew."""

    def make(original: Callable[..., Any], iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        is_main = threading.get_ident() == MAIN_THREAD
        entered_s = time.perf_counter()
        pass_ = None if is_main and _is_inside() else notify.begin(loader, None, is_main)
        if pass_ is None:
            original(iterator, loader, *args, **kwargs)
            return
        INSIDE.loader = INSIDE.loader or is_main
        try:
            original(iterator, loader, *args, **kwargs)
        finally:
            INSIDE.loader = INSIDE.loader and not is_main
        notify.made(iterator, pass_, entered_s, is_main)

    return make


def _end(recorder: Recorder) -> Callable[[LoaderPass, bool], None]:
    """Return what ends a pass that is exhausted or abandoned, or whose iterator or generator is gone."""
    # When the interpreter ends, the names of modules may be None: what runs then holds its own.
    get_process, is_ending = os.getpid, sys.is_finalizing
    process = get_process()

    @eager
    def end(pass_: LoaderPass, exhausted: bool) -> None:
        if not pass_.living or is_ending() or get_process() != process:
            return
        pass_.living, pass_.iterator = False, None
        recorder.ended(pass_.number, exhausted)

    return end


def _next(notify: LoaderHooks) -> Around:
    get_thread = threading.get_ident
    now = time.perf_counter
    enter, end, count, recorder = notify.enter, notify.end, notify.count, notify.recorder
    next_size = eager(_announced_size)

    def next_data(original: Callable[..., Any], iterator: Any) -> Any:
        state, outer = iterator.__dict__, INSIDE.outer
        pass_: LoaderPass | None = state.get(PASS_ATTRIBUTE) if outer is None else None
        is_main = get_thread() == MAIN_THREAD
        # Not counted: a loader that a dataset reads from (part of the outer one), and a pass that is over.
        if not is_main or INSIDE.loader or (outer is None and (pass_ is None or not pass_.living)):
            batch = original(iterator)
            next_size(state)
            return batch
        entered_s, mark = now(), NO_MARK
        if pass_ is not None and (recorder.active != pass_.number or entered_s > recorder.rests_until_s):
            mark = enter(pass_.number)
        INSIDE.loader = True
        try:
            batch = original(iterator)
        except StopIteration:
            if pass_ is not None:
                end(pass_, True)
            raise
        except BaseException:
            next_size(state)
            raise
        finally:
            INSIDE.loader = False
        size = next_size(state)
        if pass_ is not None:
            count(pass_, batch, size, entered_s, mark)
        elif outer is not None:
            outer.append(size)
        return batch

    return next_data


def _announced_size(state: dict[str, Any]) -> int | None:
    """Return the size of the next batch, if its indices were counted."""
    sizes: Sizes | None = state.get(SIZES_ATTRIBUTE)
    return sizes[1].popleft() if sizes is not None and sizes[1] else None


def _announce(iterator: Any, index: Any) -> None:
    """Note the size of the batch with these indices."""
    if iterator._dataset_kind != dataloader._DatasetKind.Map and not iterator._auto_collation:
        return
    state = iterator.__dict__
    sizes: Sizes | None = state.get(SIZES_ATTRIBUTE)
    if sizes is None or sizes[0] is not iterator._sampler_iter:
        sizes = state[SIZES_ATTRIBUTE] = (iterator._sampler_iter, Announced())
    sizes[1].append(samplers.samples_of(index, iterator._auto_collation))


def _outer_iter(notify: LoaderHooks, same: bool) -> Around:
    """Count what an outer loader yields. same: these are the batches of the loader inside, in its order."""
    enter, count, end, recorder = notify.enter, notify.count, notify.end, notify.recorder

    def iterate(original: Callable[..., Any], loader: Any) -> Iterator[Any]:
        entered_s = time.perf_counter()
        pass_ = None if _is_inside() else notify.begin(getattr(loader, "pipeline", [loader])[0], loader)
        if pass_ is None:
            yield from original(loader)
            return
        inner, announced, mark = original(loader), Announced(), NO_MARK
        try:
            while True:
                INSIDE.outer = announced
                try:
                    batch = next(inner)
                except StopIteration:
                    end(pass_, True)
                    return
                finally:
                    INSIDE.outer = None
                if not same:
                    announced.clear()
                count(pass_, batch, announced.popleft() if announced else None, entered_s, mark)
                yield batch
                entered_s = time.perf_counter()
                is_new = recorder.active != pass_.number or entered_s > recorder.rests_until_s
                mark = enter(pass_.number) if is_new else NO_MARK
        finally:
            end(pass_, False)
            if hasattr(inner, "close"):  # an islice has none
                inner.close()

    return iterate


_newest: list[memoryview[float]] = []
"""Of the iterator that was made last: its workers are forked from this process while it is made."""


def patch_workers() -> None:
    """Time the batches of workers that are forked; other workers do not have the patches.

    The training's wait does not show their time: with DDP, ranks wait for the slowest one, and the batches that their
    workers prepare in that time hide how slow these are.
    """
    share = eager(_share_times)

    def make(original: Callable[..., Any], iterator: Any, loader: Any) -> None:
        share(iterator, loader.num_workers)
        try:
            original(iterator, loader)
        finally:
            _newest.clear()

    for kind in (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher):
        patch(kind, "fetch", _timed())
    patch(dataloader._MultiProcessingDataLoaderIter, "__init__", make)


def _share_times(iterator: Any, workers: int) -> None:
    """Make memory that this process and the workers share: seconds and batches of each worker."""
    times = memoryview(mmap.mmap(-1, 16 * workers)).cast("d")
    setattr(iterator, WORKER_TIMES, times)
    _newest[:] = [times]


def _timed() -> Around:
    known: list[bool] = []
    add = eager(_add_time)

    def fetch(original: Callable[..., Any], *args: Any) -> Any:
        worker = get_worker_info() if _newest else None
        if worker is None:
            return original(*args)
        begin_s = time.perf_counter()
        batch = original(*args)
        if known:  # the first one may open files
            add(worker.id, time.perf_counter() - begin_s)
        known[:] = [True]
        return batch

    return fetch


def _add_time(worker: int, seconds: float) -> None:
    _newest[0][2 * worker] += seconds
    _newest[0][2 * worker + 1] += 1


class WorkerTimes:
    """The times of the workers that load the training data."""

    def __init__(self) -> None:
        self._before = 0.0, 0.0
        self._times: Any = ()

    def add(self, iterator: Any) -> None:
        """Add the workers of an iterator that trains."""
        times = getattr(iterator, WORKER_TIMES, ())
        if times is not self._times:
            self._before = self._sums()
            self._times = times

    def _sums(self) -> tuple[float, float]:
        seconds, batches = self._before
        return seconds + sum(self._times[::2]), batches + sum(self._times[1::2])

    def batch_s(self) -> float | None:
        """Return the seconds that a worker takes for a batch, in the mean; None if it is not known."""
        seconds, batches = self._sums()
        return seconds / batches if batches else None
