"""Batches that one thread draws and another trains on: when they are handed over, and how long the training waits.

A batch counts as drawn when the thread that trains gets it: from a queue.Queue, as the result of a
concurrent.futures.Future, or by joining the thread that drew it. Threads in between may pass it on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Optional

from ddp_ladder_instrument.compiler import eager
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.loader_threads import Batches, LoaderThreads
from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.step_clock import StepClock

ATTRIBUTE = "_ddp_ladder_batches"


class QueuedBatches(deque[Optional[Batches]]):
    """The batches that came with each item of a queue; ``loop``: the pass that they are from."""

    loop: Loop | None = None


def patch_handovers(clock: StepClock) -> str | None:
    """Patch the queues, futures and threads by which batches are handed over."""
    threads = clock.threads
    return (
        patch(queue.Queue, "_put", lambda original: _put(original, threads))
        or patch(queue.Queue, "_get", lambda original: _take(original, threads))
        or patch(queue.Queue, "get", lambda original: _get(original, clock))
        or patch(Future, "set_result", lambda original: _set_result(original, threads))
        or patch(Future, "result", lambda original: _result(original, clock))
        or patch(threading.Thread, "join", lambda original: _join(original, clock))
    )


def _deliver(clock: StepClock, entered_s: float) -> Loop | None:
    """Give the step clock the batches that this thread holds, if it trains; return the pass that they are from."""
    batches = clock.threads.take() if threading.get_ident() in clock.threads.trainers else None
    if not batches:
        return None
    clock.received(batches, entered_s)
    return batches[-1][0]


def _put(original: Callable[..., Any], threads: LoaderThreads) -> Callable[..., Any]:
    def put(self: Any, item: Any) -> None:
        original(self, item)
        if not threads.background:
            return
        queued: QueuedBatches | None = self.__dict__.get(ATTRIBUTE)
        batches = threads.take()
        if queued is None and batches is not None:
            queued = self.__dict__[ATTRIBUTE] = QueuedBatches([None] * (len(self.queue) - 1))
        if queued is not None:
            queued.append(batches)

    return put


def _take(original: Callable[..., Any], threads: LoaderThreads) -> Callable[..., Any]:
    def take(self: Any) -> Any:
        item = original(self)
        queued: QueuedBatches | None = self.__dict__.get(ATTRIBUTE)
        if queued:
            while len(queued) > len(self.queue) + 1:  # the script cleared it
                queued.popleft()
            threads.hold(queued.popleft())
        return item

    return take


def _get(original: Callable[..., Any], clock: StepClock) -> Callable[..., Any]:
    @eager
    def got(queued: QueuedBatches, entered_s: float) -> None:
        loop = _deliver(clock, entered_s)
        if loop is not None:
            queued.loop = loop
        elif queued.loop is not None and threading.get_ident() in clock.threads.trainers:
            clock.waited(queued.loop, entered_s)

    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        entered_s = time.perf_counter()
        try:
            return original(self, *args, **kwargs)
        finally:
            queued = self.__dict__.get(ATTRIBUTE)
            if queued is not None:
                got(queued, entered_s)

    return get


def _set_result(original: Callable[..., Any], threads: LoaderThreads) -> Callable[..., Any]:
    def set_result(self: Any, result: Any) -> None:
        if threads.background:
            batches = threads.take()
            if batches is not None:
                self.__dict__[ATTRIBUTE] = batches
        original(self, result)

    return set_result


def _result(original: Callable[..., Any], clock: StepClock) -> Callable[..., Any]:
    threads = clock.threads

    def result(self: Any, timeout: float | None = None) -> Any:
        entered_s = time.perf_counter()
        value = original(self, timeout)
        if threads.background:
            threads.hold(self.__dict__.pop(ATTRIBUTE, None))
            _deliver(clock, entered_s)
        return value

    return result


def _join(original: Callable[..., Any], clock: StepClock) -> Callable[..., Any]:
    threads = clock.threads

    def join(self: Any, timeout: float | None = None) -> None:
        entered_s = time.perf_counter()
        original(self, timeout)
        if threads.background and not self.is_alive():
            threads.hold(threads.take(self.ident))
            _deliver(clock, entered_s)

    return join
