"""The step table: one row per training step, written as the rank's CSV.

Time in the model's eval mode may be a validation, or training: adversarial examples, a rollout. It is training if it
recurs in at least half of the steps around, or if the step's batch had been drawn; another pass is a validation.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Parts = tuple[T, T, T]
"""Of a step: training; in eval mode before its batch was drawn; in eval mode after that."""
AROUND = 8
"""Steps before and after one, in half of which time in eval mode must recur to be training."""
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
    eval_s: the time in eval mode of each step, before its batch was drawn and after; no part of step_time_s. Both end
    with the last row that has such time.
    """

    def __init__(self) -> None:
        self.count = 0
        self.samples = array("q")
        self.padding_samples = array("q")
        self.step_time_s = array("d")
        self.data_wait_s = array("d")
        self.ended_at_s = array("d")
        self.ddp: dict[int, DdpTimes] = {}
        self.eval_s = (array("d"), array("d"))
        self.first_step_ended_at_s: float | None = None
        self._measured: int | None = None

    @property
    def times_s(self) -> Parts[array[float]]:
        """The columns of the parts of each step's time."""
        return (self.step_time_s, *self.eval_s)

    def add(self, samples: int, padding_samples: int, seconds: Parts[float], data_wait_s: float) -> None:
        """Add the row of a step that has just ended."""
        self.samples.append(samples)
        self.padding_samples.append(padding_samples)
        self.step_time_s.append(seconds[0])
        self.data_wait_s.append(data_wait_s)
        self.ended_at_s.append(time.time())
        if self.count == 0:
            self.first_step_ended_at_s = self.ended_at_s[0]
        self.count += 1
        self._add_eval_time(seconds)

    def _add_eval_time(self, seconds: Parts[float]) -> None:
        for part, column in enumerate(self.eval_s, 1):
            if seconds[part]:
                column.extend([0.0] * (self.count - len(column)))
                column[-1] += seconds[part]

    def extend(self, seconds: Parts[float]) -> None:
        """Add seconds up to now to the last row."""
        self.step_time_s[-1] += seconds[0]
        self._add_eval_time(seconds)
        self.ended_at_s[-1] = time.time()

    def end_measured(self) -> None:
        """Note that the rows that follow are not measured."""
        self._measured = self.count

    def drop_unmeasured(self) -> None:
        """Remove the rows that are not measured."""
        if self._measured is not None and self.count > self._measured:
            self.count = self._measured
            for column in (self.samples, self.padding_samples, *self.times_s, self.data_wait_s, self.ended_at_s):
                del column[self.count :]
            self.ddp = {row: times for row, times in self.ddp.items() if row < self.count}

    def count_eval_time(self) -> tuple[set[int], set[int]]:
        """Add the time in eval mode that is training to the steps; return the rows in which it was, for each part."""
        between_s, within_s = self.eval_s
        found = recurring(between_s, self.count), {row for row, own_s in enumerate(within_s) if own_s}
        for part, column in enumerate(self.eval_s):
            for row in found[part]:
                self.step_time_s[row] += column[row]
                column[row] = 0.0
        return found

    def adopt(self, rows: Sequence[Row]) -> None:
        """Replace the rows with steps that the program reported itself."""
        self.count = len(rows)
        self.samples = array("q", [row.samples for row in rows])
        self.padding_samples = array("q", [0] * len(rows))
        self.step_time_s = array("d", [row.step_time_s for row in rows])
        self.data_wait_s = array("d", [row.data_wait_s for row in rows])
        self.ended_at_s = array("d", [math.nan] * len(rows))
        self.ddp.clear()
        self.eval_s = (array("d"), array("d"))

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


def recurring(seconds: Sequence[float], rows: int) -> set[int]:
    """Return those with seconds of whose neighbours, AROUND on each side, at least half have some too."""
    found, count = set(), sum(1 for each in seconds[:AROUND] if each)
    for row, own in enumerate(seconds):
        first, last = row - AROUND, row + AROUND
        if last < len(seconds) and seconds[last]:
            count += 1
        if own and 2 * count >= min(last + 1, rows) - max(first, 0):
            found.add(row)
        if first >= 0 and seconds[first]:
            count -= 1
    return found
