"""The step table: one row per training step, written as the rank's CSV."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_ladder_instrument.metrics import Row

CSV_HEADER = "step,samples,padding_samples,step_time_s,data_wait_s\n"


class StepTable:
    """The table's columns; times in seconds. first_step_ended_at_s: Unix time."""

    def __init__(self) -> None:
        self.count = 0
        self.samples = array("q")
        self.padding_samples = array("q")
        self.step_time_s = array("d")
        self.data_wait_s = array("d")
        self.first_step_ended_at_s: float | None = None

    def add(self, samples: int, padding_samples: int, step_time_s: float, data_wait_s: float) -> None:
        """Add the row of a step that has just ended."""
        self.samples.append(samples)
        self.padding_samples.append(padding_samples)
        self.step_time_s.append(step_time_s)
        self.data_wait_s.append(data_wait_s)
        if self.count == 0:
            self.first_step_ended_at_s = time.time()
        self.count += 1

    def adopt(self, rows: Sequence[Row]) -> None:
        """Replace the rows with steps that the program reported itself."""
        self.count = len(rows)
        self.samples = array("q", [row.samples for row in rows])
        self.padding_samples = array("q", [0] * len(rows))
        self.step_time_s = array("d", [row.step_time_s for row in rows])
        self.data_wait_s = array("d", [row.data_wait_s for row in rows])

    def csv(self, wait_known: bool = True) -> Iterator[str]:
        """Yield the rows as CSV lines; steps count from 1, an unknown wait is nan."""
        yield CSV_HEADER
        for row in range(self.count):
            wait_s = self.data_wait_s[row] if wait_known else math.nan
            yield (
                f"{row + 1},{self.samples[row]},{self.padding_samples[row]},{self.step_time_s[row]:.9f},{wait_s:.9f}\n"
            )
