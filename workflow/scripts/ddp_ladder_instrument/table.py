"""The rows, as columns of the rank's file and as CSV, and the phases of a rank. Pure."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ddp_ladder_instrument.contract import DDP_COLUMNS, HEADER, MOST_ROWS, SINGLE_ROWS
from ddp_ladder_instrument.log import ASYNC_CHECKPOINT, CHECKPOINT
from ddp_ladder_instrument.trained import Pass

RECENT = 101
"""Steps whose times are kept one by one: a median of all would take long after a million."""
MOST = 10_000
"""Validations, times in eval mode, saves and epochs that are kept: one every minute makes 10,000 in a week."""


class DdpTimes(NamedTuple):
    """DDP's times of a step, in seconds. overlap_s: the part of comm_s that the backward pass hides."""

    forward_s: float
    backward_s: float
    comm_s: float
    overlap_s: float


class StepTable:
    """The rows, which are steps or blocks of them (contract.HEADER); times in seconds.

    ended_at_s: unix time at the end of each row: on a GPU that of the device, once it is known.
    host_ended_s: the same by the log's clock, on the host. backwards: backward passes of each. made, sent: forward
    passes of the module that DDP times, and those whose backward passes send gradients. collectives_s: in
    collectives that DDP does not time. ddp: DDP's times of the steps that it timed, by row.
    count: number of steps. all_samples: of all of them, without padding. all_step_s, all_wait_s, all_collectives_s: of
    all that were added one by one.
    recent_s: times of the last steps. block: steps of a row after the single ones.
    """

    _ARE_ENDS = (False, False, False, False, True, False, False, False, False, True)

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = self.all_samples = 0
        self.all_step_s = self.all_wait_s = self.all_collectives_s = 0.0
        self.block = 1
        self.recent_s: deque[float] = deque(maxlen=RECENT)
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
        """Add a step: a value of each column, in their order."""
        if self.count == SINGLE_ROWS + (MOST_ROWS - SINGLE_ROWS) * self.block:
            self._join_pairs()
        if (self.count - SINGLE_ROWS) % self.block:
            self._add_to_last(*values)
        else:
            for append, value in zip(self._appends, values):
                append(value)
        self.count += 1
        samples, _, step_s, wait_s, _, collectives_s = values[:6]
        self.all_samples += int(samples)
        self.all_step_s += step_s
        self.all_wait_s += wait_s
        self.all_collectives_s += collectives_s
        self.recent_s.append(step_s)

    def extend(self, *values: float) -> None:
        """Let the last step last longer: what to add to each column; its ends are these."""
        self._add_to_last(*values)
        self.all_step_s += values[2]
        self.all_wait_s += values[3]
        self.all_collectives_s += values[5]
        self.recent_s[-1] += values[2]

    def _add_to_last(self, *values: float) -> None:
        for column, value, is_end in zip(self._columns, values, self._ARE_ENDS):
            column[-1] = value if is_end else column[-1] + value

    def _join_pairs(self) -> None:
        """Make blocks of twice as many steps."""
        self.block *= 2
        for column, is_end in zip(self._columns, self._ARE_ENDS):
            first, second = column[SINGLE_ROWS::2], column[SINGLE_ROWS + 1 :: 2]
            column[SINGLE_ROWS:] = second if is_end else array(column.typecode, map(operator.add, first, second))

    @property
    def single(self) -> int:
        """Return how many rows, the first ones, are single steps."""
        return self.count if self.block == 1 else SINGLE_ROWS

    def sizes(self) -> list[int]:
        """Return the number of steps of each row."""
        blocks = [self.block] * (len(self.samples) - self.single)
        left_out = -(self.count - self.single) % self.block
        return [1] * self.single + blocks[:-1] + [self.block - left_out for _ in blocks[-1:]]

    def row_after(self, steps: int) -> int:
        """Return the first row that has none of the first ``steps`` steps."""
        return min(steps, SINGLE_ROWS) + max(0, -((SINGLE_ROWS - steps) // self.block))

    def continue_with(self, other: StepTable, first: int = 0) -> None:
        """Keep the first rows, which are single steps, and add what another table has beyond them."""
        for column, more in zip(self._columns, other._columns):
            column[first:] = more[first:]
        self.ddp = {row: times for row, times in self.ddp.items() if row < first}
        self.ddp.update({row: times for row, times in other.ddp.items() if row >= first})
        self.count, self.block = other.count, other.block
        self.all_samples = sum(self.samples)
        self.recent_s = other.recent_s.copy()

    def copy(self) -> StepTable:
        """Return these rows, which remain if steps are added here."""
        found = StepTable()
        found.continue_with(self)
        return found

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]], steps: int) -> StepTable:
        """Return the table of so many steps with these rows: a value of each column, in their order."""
        found = cls()
        for column, values in zip(found._columns, zip(*rows)):
            column.extend(values)
        found.count, found.all_samples = steps, sum(found.samples)
        while steps > SINGLE_ROWS + (MOST_ROWS - SINGLE_ROWS) * found.block:
            found.block *= 2
        return found

    @property
    def usual_backwards(self) -> int:
        """Return the backward passes of most steps; the last step of an epoch may accumulate less. 0: none was seen."""
        return Counter(self.backwards[: self.single]).most_common(1)[0][0] if self.backwards else 0

    def batch_per_gpu(self) -> int | None:
        """Return the median of the single steps' samples, the sampler's padding included.

        The upper one: in epochs of two steps, the second of which has what is left, it is that of a whole step.
        """
        batches = [*map(operator.add, self.samples[: self.single], self.padding_samples)]
        return (int(statistics.median_high(batches)) or None) if batches else None

    def columns(self) -> list[array[float]]:
        """Return the columns of contract.HEADER; steps count from 1."""
        of_ddp = [array("d", [math.nan]) * len(self.samples) for _ in DDP_COLUMNS]
        for row, times in self.ddp.items():
            for column, seconds in zip(of_ddp, times):
                column[row] = seconds
        ends = itertools.accumulate(self.sizes())
        counts = (array("d", each) for each in (ends, self.samples, self.padding_samples))
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


class Saves:
    """Sums over the saves of a rank.

    What async_save() saves, a save() in another thread writes: one save, whose bytes are known once it is written.
    """

    def __init__(self) -> None:
        self._count = self._begun = self._written = 0  # all; async_save(), and save() in another thread
        self._seconds = self._aside_s = 0.0
        self._bytes = 0.0  # NaN: not known

    def add(self, seconds: float, kind: int, size: float, is_aside: bool) -> None:
        if is_aside:
            self._aside_s += seconds
        else:
            self._seconds += seconds
        if kind == ASYNC_CHECKPOINT:
            self._begun += 1
            return
        self._bytes += size if kind else math.nan
        if kind == CHECKPOINT and is_aside:
            self._written += 1
        else:
            self._count += 1

    @property
    def over(self) -> int:
        """Return how many are written."""
        return self._count + self._written

    def summary(self) -> dict[str, Any]:
        """Return the record's ``phases.saves``. seconds: in the main thread; aside_s: in others."""
        is_known = self._written >= self._begun and not math.isnan(self._bytes)
        return {
            "count": self._count + max(self._begun, self._written),
            "seconds": self._seconds,
            "aside_s": self._aside_s,
            "bytes": int(self._bytes) if is_known else None,
        }


class Phases:
    """A validation is the time from the model's ``eval()`` to its ``train()``, or a pass on which no step trained.

    Only what ended after the first step is recorded: before it, all is start-up. Seconds of the log's clock.
    """

    def __init__(self) -> None:
        self._validations_s: deque[tuple[float, float, Pass]] = deque(maxlen=MOST)
        self._evals_s: deque[tuple[float, float]] = deque(maxlen=MOST)  # in which no pass began
        self._saves_s: deque[tuple[float, float]] = deque(maxlen=MOST)
        self.rests_s: deque[tuple[float, float]] = deque(maxlen=MOST)  # beside the training, from a step to a draw
        self.compiles_s: deque[tuple[float, float]] = deque(maxlen=MOST)
        self.saves = Saves()
        self._epoch_steps: deque[int] = deque(maxlen=MOST)
        self._evaluating_since_s: float | None = None

    def begin_evaluation(self, now_s: float) -> None:
        self._evaluating_since_s = now_s

    def drop_evaluation(self) -> None:
        """Note that what was done in eval mode is training: this was no validation."""
        self._evaluating_since_s = None

    def end_evaluation(self, pass_: Pass | None, now_s: float) -> None:
        """Note that it was put in training mode. pass_: the pass that began in between, if any."""
        began_s, self._evaluating_since_s = self._evaluating_since_s, None
        if began_s is None:
            return
        if pass_ is not None:
            self._validations_s.append((began_s, now_s, pass_))
        else:
            self._evals_s.append((began_s, now_s))

    def end_pass(self, pass_: Pass, now_s: float) -> None:
        """Note a pass that ends now without a step. One may follow, if its batches were drawn ahead of it."""
        self._validations_s.append((pass_.began_s, now_s, pass_))

    def add_save(self, begin_s: float, end_s: float, kind: int, size: float, is_aside: bool) -> None:
        """Note a save. kind, size, is_aside: as in the log."""
        self._saves_s.append((begin_s, end_s))
        self.saves.add(end_s - begin_s, kind, size, is_aside)

    def forget_saves(self) -> None:
        """Note the end of the first step: what was saved before is no state of the training."""
        self._saves_s.clear()
        self.saves = Saves()

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
            "rests_s": spans(self.rests_s),
            "compiles_s": spans(self.compiles_s),
            "saves": self.saves.summary(),
        }
