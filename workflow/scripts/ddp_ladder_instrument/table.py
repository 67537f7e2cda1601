"""The step table: one row per training step, written as the rank's CSV."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CSV_HEADER = "step,samples,padding_samples,step_time_s,data_wait_s,ended_at_s,forward_s,backward_s,comm_s,overlap_s\n"


class DdpTimes(NamedTuple):
    """DDP's times of a step, in seconds. overlap_s: the part of comm_s that the backward pass hides."""

    forward_s: float
    backward_s: float
    comm_s: float
    overlap_s: float


class Row(NamedTuple):
    """A step that the program reported itself; times in seconds."""

    samples: int
    step_time_s: float
    data_wait_s: float


class StepTable:
    """The table's columns; times in seconds.

    ended_at_s: Unix time on the host at the end of each step. A GPU may still be busy with it, or with earlier ones.
    ddp: DDP's times of the steps that it timed, by row.
    """

    def __init__(self) -> None:
        self.count = 0
        self.samples = array("q")
        self.padding_samples = array("q")
        self.step_time_s = array("d")
        self.data_wait_s = array("d")
        self.ended_at_s = array("d")
        self.ddp: dict[int, DdpTimes] = {}
        self.first_step_ended_at_s: float | None = None
        self._measured: int | None = None

    def add(self, samples: int, padding_samples: int, step_time_s: float, data_wait_s: float) -> None:
        """Add the row of a step that has just ended."""
        self.samples.append(samples)
        self.padding_samples.append(padding_samples)
        self.step_time_s.append(step_time_s)
        self.data_wait_s.append(data_wait_s)
        self.ended_at_s.append(time.time())
        if self.count == 0:
            self.first_step_ended_at_s = self.ended_at_s[0]
        self.count += 1

    def extend(self, seconds: float) -> None:
        """Add seconds up to now to the last row."""
        self.step_time_s[-1] += seconds
        self.ended_at_s[-1] = time.time()

    def end_measured(self) -> None:
        """Note that the rows that follow are not measured."""
        self._measured = self.count

    def drop_unmeasured(self) -> None:
        """Remove the rows that are not measured."""
        if self._measured is not None and self.count > self._measured:
            self.count = self._measured
            for column in (self.samples, self.padding_samples, self.step_time_s, self.data_wait_s, self.ended_at_s):
                del column[self.count :]
            self.ddp = {row: times for row, times in self.ddp.items() if row < self.count}

    def adopt(self, rows: Sequence[Row]) -> None:
        """Replace the rows with steps that the program reported itself."""
        self.count = len(rows)
        self.samples = array("q", [row.samples for row in rows])
        self.padding_samples = array("q", [0] * len(rows))
        self.step_time_s = array("d", [row.step_time_s for row in rows])
        self.data_wait_s = array("d", [row.data_wait_s for row in rows])
        self.ended_at_s = array("d", [math.nan] * len(rows))
        self.ddp.clear()

    def csv(self) -> Iterator[str]:
        """Yield the rows as CSV lines; steps count from 1, an unknown end is nan, unknown times of DDP are empty."""
        yield CSV_HEADER
        for row in range(self.count):
            ddp = self.ddp.get(row)
            times = "{:.9f},{:.9f},{:.9f},{:.9f}".format(*ddp) if ddp else ",,,"
            yield (
                f"{row + 1},{self.samples[row]},{self.padding_samples[row]},{self.step_time_s[row]:.9f},"
                f"{self.data_wait_s[row]:.9f},{self.ended_at_s[row]:.3f},{times}\n"
            )
