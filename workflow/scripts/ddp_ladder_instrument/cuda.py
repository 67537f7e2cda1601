"""Step times from CUDA events, read without ever waiting for the device."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence

import torch

Mark = torch.cuda.Event
Segment = tuple[Mark, Mark]

HARVEST_PER_STEP = 2
"""More than one, so that the queue shrinks again after the host has run ahead of the device."""


class CudaTimeline:
    """Events on the device's current stream, and the rows that they time: the first part of each up to the row's end.

    The event that ends a step also begins the next one. Events are reused once read. The newest row may
    still grow, so it is read only when there is a newer one, or at the end.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spare: list[Mark] = []
        self._open: deque[tuple[int, Sequence[list[Segment]]]] = deque()

    def mark(self) -> Mark | None:
        """Record an event now; None while a CUDA graph is being captured."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def add(self, row: int, parts: Sequence[list[Segment]]) -> None:
        """Queue a row; its time is read once the device has passed its end."""
        if parts[0]:
            self._open.append((row, parts))

    def extend(self, row: int, parts: Sequence[list[Segment]]) -> None:
        """Add segments to this row, if it is the newest and not read yet."""
        if self._open and self._open[-1][0] == row:
            for part, segments in enumerate(parts):
                self._open[-1][1][part].extend(segments)

    def harvest(self, times_s: Sequence[array[float]], at_most: int = HARVEST_PER_STEP, keep: int = 1) -> None:
        """Write the seconds of the oldest rows that the device has finished; the ``keep`` newest stay queued."""
        while at_most and len(self._open) > keep and self._open[0][1][0][-1][1].query():
            row, parts = self._open.popleft()
            for part, segments in enumerate(parts):
                if segments:
                    times_s[part][row] = sum(first.elapsed_time(last) for first, last in segments) / 1000.0
            # Only the last segment's begin: an earlier one's may be the end of a segment that is not read yet.
            self._spare.append(parts[0][-1][0])
            at_most -= 1

    def finish(self, times_s: Sequence[array[float]], wait: bool) -> int:
        """Read the remaining rows, after a synchronisation if ``wait``; return how many are left unread."""
        if wait:
            torch.cuda.synchronize(self.device)
        self.harvest(times_s, at_most=len(self._open), keep=0)
        return len(self._open)


def is_idle(device: torch.device) -> bool:
    """Return True if the device's current stream has done all its work, a second from now at the latest."""
    until_s = time.perf_counter() + 1.0
    stream = torch.cuda.current_stream(device)
    while not (idle := stream.query()) and time.perf_counter() < until_s:
        time.sleep(0.01)
    return idle
