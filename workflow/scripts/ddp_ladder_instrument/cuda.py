"""Step times from CUDA events, read without ever waiting for the device."""

from __future__ import annotations

from array import array
from collections import deque

import torch

Mark = torch.cuda.Event
Segment = tuple[Mark, Mark]

HARVEST_PER_STEP = 2
"""More than one, so that the queue shrinks again after the host ran ahead of the device."""


class CudaTimeline:
    """Marks on the device's current stream, and the rows whose time lies between them.

    The mark that ends a step also begins the next one. Marks are used again once read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spare: list[Mark] = []
        self._open: deque[tuple[int, Mark, Mark, list[Segment]]] = deque()

    def mark(self) -> Mark | None:
        """Record an event now; None while a CUDA graph is being captured."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def add(self, row: int, begin: Mark, end: Mark, carried: list[Segment]) -> None:
        """Take note of a row whose time is read once the device has passed its end."""
        self._open.append((row, begin, end, carried))

    def harvest(self, step_time_s: array[float], at_most: int = HARVEST_PER_STEP) -> None:
        """Write the seconds of the oldest rows that the device has finished."""
        while at_most and self._open and self._open[0][2].query():
            row, begin, end, carried = self._open.popleft()
            milliseconds = begin.elapsed_time(end)
            milliseconds += sum(first.elapsed_time(last) for first, last in carried)
            step_time_s[row] = milliseconds / 1000.0
            self._spare.append(begin)
            at_most -= 1

    def finish(self, step_time_s: array[float], wait: bool) -> int:
        """Read the rows left, after a synchronisation when ``wait``; returns how many remain."""
        if wait:
            torch.cuda.synchronize(self.device)
        self.harvest(step_time_s, at_most=len(self._open))
        return len(self._open)
