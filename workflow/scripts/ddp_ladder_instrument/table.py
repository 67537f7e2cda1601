"""The rows, as columns of the rank's file and as CSV, and the phases of a rank. Pure."""

from __future__ import annotations

import math
import statistics
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ddp_ladder_instrument.contract import DDP_COLUMNS, HEADER
from ddp_ladder_instrument.trained import Pass

MOST = 10_000
"""Validations, times in eval mode, saves and epochs that are kept: one every minute makes 10,000 in a week."""


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
    """The rows; times in seconds.

    ended_at_s: unix time at the end of each step: on a GPU that of the device, once it is known.
    host_ended_s: the same by the log's clock, on the host. backwards: backward passes of each. made, sent: forward
    passes of the module that DDP times, and those whose backward passes send gradients. collectives_s: in
    collectives that DDP does not time. ddp: DDP's times of the steps that it timed, by row.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.count = 0
        self.samples = array("q")
        self.padding_samples = array("q")
        self.step_time_s = array("d")
        self.data_wait_s = array("d")
        self.ended_at_s = array("d")
        self.collectives_s = array("d")
        self.backwards = array("I")
        self.made = array("I")
        self.sent = array("I")
        self.host_ended_s = array("d")
        self.ddp: dict[int, DdpTimes] = {}
        self._columns: tuple[array[Any], ...] = (
            self.samples, self.padding_samples, self.step_time_s, self.data_wait_s, self.ended_at_s,
            self.collectives_s, self.backwards, self.made, self.sent, self.host_ended_s,
        )  # fmt: skip
        self._appends: list[Callable[[Any], None]] = [column.append for column in self._columns]

    def add(self, *values: float) -> None:
        """Add a row: a value of each column, in their order."""
        for append, value in zip(self._appends, values):
            append(value)
        self.count += 1

    def cut(self, count: int) -> None:
        """Keep the first ``count`` rows."""
        self.count = count
        for column in self._columns:
            del column[count:]
        self.ddp = {row: times for row, times in self.ddp.items() if row < count}

    def append(self, other: StepTable, first: int) -> None:
        """Add the rows of another table from this one on."""
        for column, more in zip(self._columns, other._columns):
            column.extend(more[first:])
        self.ddp.update({row: times for row, times in other.ddp.items() if row >= first})
        self.count = len(self.samples)

    def adopt(self, rows: Sequence[Row]) -> None:
        """Replace the rows with steps that the program reported itself."""
        self.clear()
        for row in rows:
            self.add(row.samples, 0, row.step_time_s, row.data_wait_s, math.nan, 0.0, 0, 0, 0, math.nan)

    @property
    def usual_backwards(self) -> int:
        """Return the backward passes of most steps; the last step of an epoch may accumulate less. 0: none was seen."""
        return Counter(self.backwards).most_common(1)[0][0] if self.backwards else 0

    def batch_per_gpu(self) -> int | None:
        """Return the median of the steps' samples, the sampler's padding included.

        The upper one: in epochs of two steps, the second of which has what is left, it is that of a whole step.
        """
        batches = [real + padding for real, padding in zip(self.samples, self.padding_samples)]
        return (int(statistics.median_high(batches)) or None) if batches else None

    def columns(self) -> list[array[float]]:
        """Return the columns of contract.HEADER; steps count from 1."""
        of_ddp = [array("d", [math.nan]) * self.count for _ in DDP_COLUMNS]
        for row, times in self.ddp.items():
            for column, seconds in zip(of_ddp, times):
                column[row] = seconds
        counts = (array("d", each) for each in (range(1, self.count + 1), self.samples, self.padding_samples))
        return [*counts, self.step_time_s, self.data_wait_s, self.ended_at_s, *of_ddp, self.collectives_s]


def little_endian(column: array[float]) -> bytes:
    """Return the bytes of a column in a file."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def csv_lines(columns: Iterable[Iterable[float]]) -> Iterator[str]:
    """Yield the columns of contract.HEADER as lines of a CSV; unknown times of DDP are empty."""
    yield ",".join(HEADER) + "\n"
    for step, samples, padding, step_s, wait_s, ended_s, *ddp_s, collectives_s in zip(*columns):
        times = ",".join("" if math.isnan(seconds) else f"{seconds:.9f}" for seconds in ddp_s)
        yield (
            f"{step:.0f},{samples:.0f},{padding:.0f},{step_s:.9f},{wait_s:.9f},{ended_s:.6f},{times},"
            f"{collectives_s:.9f}\n"
        )


class Phases:
    """A validation is the time from the model's ``eval()`` to its ``train()``, or a pass on which no step trained.

    Only what ended after the first step is recorded: before it, all is start-up. Seconds of the log's clock.
    """

    def __init__(self) -> None:
        self._validations_s: deque[tuple[float, float, Pass]] = deque(maxlen=MOST)
        self._evals_s: deque[tuple[float, float]] = deque(maxlen=MOST)  # in which no pass began
        self._saves_s: deque[tuple[float, float]] = deque(maxlen=MOST)
        self._epoch_steps: deque[int] = deque(maxlen=MOST)
        self._evaluating_since_s: float | None = None

    @property
    def evaluations(self) -> int:
        """Number of validations and times in eval mode so far, with a running one."""
        return len(self._validations_s) + len(self._evals_s) + (self._evaluating_since_s is not None)

    def begin_evaluation(self, now_s: float) -> None:
        """Note that the model was put in eval mode."""
        self._evaluating_since_s = now_s

    def drop_evaluation(self) -> None:
        """Note that what was done in eval mode is training: this was no validation."""
        self._evaluating_since_s = None

    def end_evaluation(self, each: Pass | None, now_s: float) -> None:
        """Note that it was put in training mode. each: the pass that began in between, if any."""
        began_s, self._evaluating_since_s = self._evaluating_since_s, None
        if began_s is None:
            return
        if each is not None:
            self._validations_s.append((began_s, now_s, each))
        else:
            self._evals_s.append((began_s, now_s))

    def end_pass(self, each: Pass, now_s: float) -> None:
        """Note a pass that ends now without a step. One may follow, if its batches were drawn ahead of it."""
        self._validations_s.append((each.began_s, now_s, each))

    def add_save(self, begin_s: float, end_s: float) -> None:
        """Note a torch.save."""
        self._saves_s.append((begin_s, end_s))

    def add_epoch(self, step: int) -> None:
        """Add the first step, counted from 1, of a pass over training data."""
        if not self._epoch_steps or self._epoch_steps[-1] != step:
            self._epoch_steps.append(step)

    def summary(self, unix_s: Callable[[float], float]) -> dict[str, Any]:
        """Return the record's ``phases``, in unix time."""

        def spans(found: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
            return sorted((unix_s(begin_s), unix_s(end_s)) for begin_s, end_s in found)

        passes = [(begin_s, end_s) for begin_s, end_s, each in self._validations_s if not each.stepped]
        return {
            "epoch_steps": [*self._epoch_steps],
            "validations_s": spans([*passes, *self._evals_s]),
            "without_a_pass_s": spans(self._evals_s),
            "saves_s": spans(self._saves_s),
        }
