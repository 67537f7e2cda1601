"""Batches that one thread draws and another trains on: when they change hands, and how long they were waited for.

A batch is the training's when the thread that trains gets it: from a queue.Queue, as the result of a
concurrent.futures.Future, or by joining the thread that drew it. Threads in between may hand it on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Optional

from ddp_ladder_instrument.compiler import unseen
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.steps import Steps

ATTRIBUTE = "_ddp_ladder_batches"
Batches = list[tuple[Loop, int]]


class Beside(deque[Optional[Batches]]):
    """What comes with each item of a queue; ``loop``: the pass that its batches are from."""

    loop: Loop | None = None


def drawn(steps: Steps, loop: Loop, size: int) -> None:
    """A thread that does not train drew a batch of ``size`` samples."""
    if not loop.given:
        steps.background = [other for other in steps.background if other.living] + [loop]
    loop.given += 1
    steps.held.setdefault(threading.get_ident(), []).append((loop, size))


def patch_handovers(steps: Steps) -> str | None:
    """Follow the batches from thread to thread."""
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


def _arrived(steps: Steps, entered_s: float) -> Loop | None:
    """Give the step clock what this thread holds, if it trains; returns the pass that it is from."""
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
        beside: Beside | None = self.__dict__.get(ATTRIBUTE)
        batches = steps.held.pop(threading.get_ident(), None)
        if beside is None and batches is not None:
            beside = self.__dict__[ATTRIBUTE] = Beside([None] * (len(self.queue) - 1))
        if beside is not None:
            beside.append(batches)

    return put


def _take(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def take(self: Any) -> Any:
        item = original(self)
        beside: Beside | None = self.__dict__.get(ATTRIBUTE)
        if beside:
            while len(beside) > len(self.queue) + 1:  # the script cleared it
                beside.popleft()
            _hold(steps, beside.popleft())
        return item

    return take


def _get(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    @unseen
    def got(beside: Beside, entered_s: float) -> None:
        loop = _arrived(steps, entered_s)
        if loop is not None:
            beside.loop = loop
        elif beside.loop is not None and threading.get_ident() in steps.trainers:
            steps.waited(beside.loop, entered_s)

    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        entered_s = time.perf_counter()
        try:
            return original(self, *args, **kwargs)
        finally:
            beside = self.__dict__.get(ATTRIBUTE)
            if beside is not None:
                got(beside, entered_s)

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
            _arrived(steps, entered_s)
        return value

    return result


def _join(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def join(self: Any, timeout: float | None = None) -> None:
        entered_s = time.perf_counter()
        original(self, timeout)
        if steps.background and not self.is_alive():
            _hold(steps, steps.held.pop(self.ident, None))
            _arrived(steps, entered_s)

    return join
