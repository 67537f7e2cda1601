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
from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.steps import Steps

ATTRIBUTE = "_ddp_ladder_batches"
Batches = list[tuple[Loop, int]]


class QueuedBatches(deque[Optional[Batches]]):
    """The batches that came with each item of a queue; ``loop``: the pass that they are from."""

    loop: Loop | None = None


def note_drawn(steps: Steps, loop: Loop, size: int) -> None:
    """Note that a thread that does not train drew a batch of ``size`` samples."""
    if not loop.given:
        steps.background = [other for other in steps.background if other.living] + [loop]
    loop.given += 1
    steps.held.setdefault(threading.get_ident(), []).append((loop, size))


def patch_handovers(steps: Steps) -> str | None:
    """Patch the queues, futures and threads by which batches are handed over."""
    return (
        patch(queue.Queue, "_put", lambda original: _put(original, steps))
        or patch(queue.Queue, "_get", lambda original: _take(original, steps))
        or patch(queue.Queue, "get", lambda original: _get(original, steps))
        or patch(Future, "set_result", lambda original: _set_result(original, steps))
        or patch(Future, "result", lambda original: _result(original, steps))
        or patch(threading.Thread, "join", lambda original: _join(original, steps))
    )


def _hold(steps: Steps, batches: Batches | None) -> None:
    if batches:
        steps.held.setdefault(threading.get_ident(), []).extend(batches)


def _deliver(steps: Steps, entered_s: float) -> Loop | None:
    """Give the step clock the batches that this thread holds, if it trains; return the pass that they are from."""
    thread = threading.get_ident()
    if thread not in steps.trainers:
        return None
    batches = steps.held.pop(thread, None)
    if not batches:
        return None
    steps.received(batches, entered_s)
    return batches[-1][0]


def _put(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def put(self: Any, item: Any) -> None:
        original(self, item)
        if not steps.background:
            return
        queued: QueuedBatches | None = self.__dict__.get(ATTRIBUTE)
        batches = steps.held.pop(threading.get_ident(), None)
        if queued is None and batches is not None:
            queued = self.__dict__[ATTRIBUTE] = QueuedBatches([None] * (len(self.queue) - 1))
        if queued is not None:
            queued.append(batches)

    return put


def _take(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def take(self: Any) -> Any:
        item = original(self)
        queued: QueuedBatches | None = self.__dict__.get(ATTRIBUTE)
        if queued:
            while len(queued) > len(self.queue) + 1:  # the script cleared it
                queued.popleft()
            _hold(steps, queued.popleft())
        return item

    return take


def _get(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    @eager
    def got(queued: QueuedBatches, entered_s: float) -> None:
        loop = _deliver(steps, entered_s)
        if loop is not None:
            queued.loop = loop
        elif queued.loop is not None and threading.get_ident() in steps.trainers:
            steps.waited(queued.loop, entered_s)

    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        entered_s = time.perf_counter()
        try:
            return original(self, *args, **kwargs)
        finally:
            queued = self.__dict__.get(ATTRIBUTE)
            if queued is not None:
                got(queued, entered_s)

    return get


def _set_result(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def set_result(self: Any, result: Any) -> None:
        if steps.background:
            batches = steps.held.pop(threading.get_ident(), None)
            if batches is not None:
                self.__dict__[ATTRIBUTE] = batches
        original(self, result)

    return set_result


def _result(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def result(self: Any, timeout: float | None = None) -> Any:
        entered_s = time.perf_counter()
        value = original(self, timeout)
        if steps.background:
            _hold(steps, self.__dict__.pop(ATTRIBUTE, None))
            _deliver(steps, entered_s)
        return value

    return result


def _join(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def join(self: Any, timeout: float | None = None) -> None:
        entered_s = time.perf_counter()
        original(self, timeout)
        if steps.background and not self.is_alive():
            _hold(steps, steps.held.pop(self.ident, None))
            _deliver(steps, entered_s)

    return join
