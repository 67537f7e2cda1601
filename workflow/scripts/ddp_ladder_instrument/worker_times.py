"""How long the workers of a DataLoader take for a batch, also where the training does not wait for them.

The training's wait does not show it: with DDP, ranks wait for the slowest one, and the batches that their workers
prepare in that time hide how slow these are.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import _utils, dataloader, get_worker_info

from ddp_ladder_instrument.hooks import patch

ATTRIBUTE = "_ddp_ladder_worker_times"

_newest: list[memoryview[float]] = []
"""Of the iterator that was made last: its workers are forked from this process while it is made."""


def patch_workers() -> str | None:
    """Time the batches of workers that are forked; other workers do not have the patches."""
    kinds = (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher)
    missing = [why for kind in kinds if (why := patch(kind, "fetch", _timed))]
    return missing[0] if missing else patch(dataloader._MultiProcessingDataLoaderIter, "__init__", _with_times)


def _with_times(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(self: Any, loader: Any) -> None:
        # Shared memory: seconds and batches of each worker.
        times = memoryview(mmap.mmap(-1, 16 * loader.num_workers)).cast("d")
        setattr(self, ATTRIBUTE, times)
        _newest[:] = [times]
        try:
            original(self, loader)
        finally:
            _newest.clear()

    return make


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    known: list[bool] = []

    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        worker = get_worker_info()
        if worker is None or not _newest:
            return original(self, possibly_batched_index)
        begin_s = time.perf_counter()
        batch = original(self, possibly_batched_index)
        if known:  # the first one may open files
            _newest[0][2 * worker.id] += time.perf_counter() - begin_s
            _newest[0][2 * worker.id + 1] += 1
        known[:] = [True]
        return batch

    return fetch


class WorkerTimes:
    """The times of the workers that load the training data."""

    def __init__(self) -> None:
        self._before = 0.0, 0.0
        self._times: Any = ()

    def add(self, iterator: Any) -> None:
        """Add the workers of an iterator that trains."""
        times = getattr(iterator, ATTRIBUTE, ())
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
