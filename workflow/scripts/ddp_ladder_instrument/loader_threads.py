"""Threads that draw batches for the thread that trains, and the batches that they hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from ddp_ladder_instrument.loops import Loop

Batches = list[tuple[Loop, int]]
"""The pass and the size of each batch."""


class LoaderThreads:
    """Which threads train, and which batches the others drew or got and have not passed on.

    trainers: the main thread, and those that called backward().
    background: passes that other threads draw from.
    wait_unknown: another thread draws, and the instrument did not see how the training gets its batches;
        on_wait_unknown is called when this is detected.
    """

    def __init__(self) -> None:
        self.trainers = {threading.main_thread().ident or 0}
        self.background: list[Loop] = []
        self.wait_unknown = False
        self.on_wait_unknown: Callable[[], None] = lambda: None
        self._held: dict[int, Batches] = {}

    def note_drawn(self, loop: Loop, size: int) -> None:
        """Note that this thread, which does not train, drew a batch of ``size`` samples."""
        if not loop.given:
            self.background = [other for other in self.background if other.living] + [loop]
        loop.given += 1
        self.hold([(loop, size)])

    def hold(self, batches: Sequence[tuple[Loop, int]] | None) -> None:
        """Note that this thread got these batches."""
        if batches:
            self._held.setdefault(threading.get_ident(), []).extend(batches)

    def take(self, thread: int | None = None) -> Batches | None:
        """Take and return the batches that a thread holds, by default this one."""
        return self._held.pop(threading.get_ident() if thread is None else thread, None)

    def holds(self) -> bool:
        """Return True if this thread drew or got batches and has not passed them on."""
        return threading.get_ident() in self._held

    def take_to_train(self) -> Batches:
        """Take and return the batches that this thread holds; it trains from now on."""
        self.trainers.add(threading.get_ident())
        return self.take() or []

    def take_unseen(self) -> Iterator[Batches]:
        """Take and yield the batches that other threads hold, if it is not seen how the training gets them."""
        for loop in self.background:
            if loop.given and not loop.received and not self.wait_unknown:
                self.wait_unknown = True
                self.on_wait_unknown()
        if self.wait_unknown:
            for held in list(self._held.values()):
                yield [held.pop(0) for _ in range(len(held))]
