"""A rank's steps (ranks/rank<k>.steps) as columns. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ddp_ladder_instrument.contract import COLUMNS, DDP_COLUMNS, HEADER
from ddp_ladder_instrument.table import csv_lines
from numpy.typing import NDArray

BACKWARDS_S = 60.0  # that a clock may be set back during a run
LARGEST_FIGURE = 1e12  # samples or seconds: sums of larger figures are not exact
SHORTEST_STEP_S = 1e-9
BYTES = 8  # of a figure in the file


@dataclass(frozen=True)
class DdpTimes:
    """DDP's times of the rows that it timed, often few of them."""

    rows: NDArray[np.int64]
    times_s: NDArray[np.float64]  # these rows x DDP_COLUMNS

    @classmethod
    def of(cls, times_s: NDArray[np.float64]) -> DdpTimes | None:
        """Return those of rows x DDP_COLUMNS, nan for the others; None if none was timed."""
        rows = np.flatnonzero(~np.isnan(times_s).any(axis=1))
        return cls(rows, times_s[rows]) if len(rows) else None

    def at(self, rows: NDArray[np.int64]) -> DdpTimes | None:
        """Return those of these rows; None if there are none."""
        is_wanted = np.isin(self.rows, rows, kind="table")
        return DdpTimes(self.rows[is_wanted], self.times_s[is_wanted]) if is_wanted.any() else None

    def between(self, first: int, after: int) -> DdpTimes | None:
        """Return those from one row to another, counted from the first; None if there are none."""
        begin, end = np.searchsorted(self.rows, [first, after])
        return DdpTimes(self.rows[begin:end] - first, self.times_s[begin:end]) if end > begin else None


@dataclass(frozen=True)
class Steps:
    """Columns of ranks/rank<k>.steps, an entry for each row: an optimizer step, or of a long run a block of them.

    After single steps come blocks of one size, of which the last one may have fewer steps (contract.HEADER). Of many
    ranks, blocks are larger, and single steps lie between them (``FewerRows``).
    """

    size: NDArray[np.int64]  # steps of each row; the other columns have their sums
    samples: NDArray[np.int64]
    padding_samples: NDArray[np.int64]
    step_time_s: NDArray[np.float64]
    data_wait_s: NDArray[np.float64]
    ended_at_s: NDArray[np.float64] | None = None  # of the row, unix time of the rank's host; None: not known
    ddp: DdpTimes | None = None  # None if DDP timed no row
    collectives_s: NDArray[np.float64] | None = None  # in collectives that DDP does not time; None: not recorded

    @classmethod
    def of(cls, matrix: NDArray[np.float64]) -> Steps:
        """Return the steps of a matrix, contract.HEADER x rows. Raises ValueError."""
        ends, samples, padding_samples, step_time_s, data_wait_s, ended_at_s, *_, collectives_s = matrix
        ddp_s = matrix[HEADER.index(DDP_COLUMNS[0]) : -1].T
        # A program that reports its steps itself may write anything. nan is no figure.
        figures = matrix[: len(COLUMNS)]
        if not ((figures >= 0) & (figures <= LARGEST_FIGURE)).all() or (step_time_s < SHORTEST_STEP_S).any():
            raise ValueError("it contains an impossible figure")
        size = np.diff(ends.astype(np.int64), prepend=0)
        if (size < 1).any():
            raise ValueError("its steps are not in their order")
        if (np.diff(ended_at_s) < -BACKWARDS_S).any():
            raise ValueError("its times go back")
        return cls(
            size=_held(size),
            samples=_held(samples.astype(np.int64)),
            padding_samples=_held(padding_samples.astype(np.int64)),
            step_time_s=_held(step_time_s),
            data_wait_s=_held(data_wait_s),
            ended_at_s=None if np.isnan(ended_at_s).any() else _held(ended_at_s),
            ddp=DdpTimes.of(ddp_s),
            collectives_s=_held(collectives_s),
        )

    @property
    def count(self) -> int:
        """Return the number of steps."""
        return int(self.size.sum())

    @property
    def block(self) -> int:
        """Return the steps of a block; 1 if all rows are single steps."""
        return int(self.size.max(initial=1))

    @property
    def mean_step_s(self) -> NDArray[np.float64]:
        """Return the time of a step in the mean of each row."""
        mean_s: NDArray[np.float64] = self.step_time_s / self.size
        return mean_s

    def rows_of(self, steps: int) -> int:
        """Return how many rows, the first ones, have a part of the first ``steps`` steps."""
        return int(np.searchsorted(np.cumsum(self.size), steps)) + 1 if steps else 0

    @property
    def ddp_s(self) -> NDArray[np.float64] | None:
        """Return DDP's times, rows x DDP_COLUMNS, nan for those that it did not time; None if none was timed."""
        if self.ddp is None:
            return None
        times_s = np.full((len(self.size), len(DDP_COLUMNS)), np.nan)
        times_s[self.ddp.rows] = self.ddp.times_s
        return times_s

    def first(self, rows: int) -> Steps:
        """Return the first rows."""
        return self._with(lambda column: column[:rows], self.ddp and self.ddp.between(0, rows))

    def single_after(self, steps: int) -> Steps:
        """Return the rows of single steps after the rows of these steps; none at the end, which may be a block's."""
        is_wanted = (self.size == 1) & (np.arange(len(self.size)) >= self.rows_of(steps))
        is_wanted[-1:] &= self.block == 1
        ddp = self.ddp
        if ddp:
            is_timed = is_wanted[ddp.rows]
            rows = np.cumsum(is_wanted)[ddp.rows[is_timed]] - 1
            ddp = DdpTimes(rows, ddp.times_s[is_timed]) if len(rows) else None
        return self._with(lambda column: column[is_wanted], ddp)

    def after(self, steps: int) -> Steps:
        """Return what follows the rows of these steps, in rows of about equally many steps."""
        rows = self.rows_of(steps)
        ddp = self.ddp and self.ddp.between(rows, len(self.size))
        return self._with(lambda column: column[rows:], ddp).in_blocks(self.block)

    def in_blocks(self, size: int, single: NDArray[np.int64] | None = None) -> Steps:
        """Return the steps in blocks of this size, as far as rows are not larger.

        single: steps, counted from 0 and in their order, whose rows are joined with no other one. DDP's times are those
        of single steps, and unknown for blocks.
        """
        if size == 1 or not len(self.size):
            return self
        begins = np.cumsum(self.size) - self.size
        is_first = np.diff(begins // size, prepend=-1) > 0
        if single is not None:
            is_single = np.isin(begins, single, kind="table")
            is_first |= is_single
            is_first[1:] |= is_single[:-1]
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(begins)) - 1
        ddp = self.ddp
        if ddp:
            rows = np.cumsum(is_first)[ddp.rows] - 1
            is_alone = firsts[rows] == lasts[rows]
            ddp = DdpTimes(rows[is_alone], ddp.times_s[is_alone]) if is_alone.any() else None
        joined = self._with(lambda column: np.add.reduceat(column, firsts), ddp)
        return replace(joined, ended_at_s=None if self.ended_at_s is None else self.ended_at_s[lasts])

    def sharing(self, other: Steps) -> Steps:
        """Return these steps, which hold the columns of another rank's that equal their own: ranks may be thousands."""
        columns = {
            name: known
            for name, column in vars(self).items()
            if isinstance(known := vars(other)[name], np.ndarray) and np.array_equal(column, known)
        }
        ddp = self.ddp
        if ddp and other.ddp and np.array_equal(ddp.rows, other.ddp.rows):
            ddp = replace(ddp, rows=other.ddp.rows)
        return replace(self, **columns, ddp=ddp)

    def _with(self, change: Callable[[NDArray[Any]], NDArray[Any]], ddp: DdpTimes | None) -> Steps:
        columns = {name: change(column) for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        return replace(self, **columns, ddp=ddp)


def _held(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column without the matrix that it is of, and a constant one as one figure: ranks may be thousands."""
    is_constant = column.size and (column == column[0]).all()
    return np.broadcast_to(column[:1].copy(), column.shape) if is_constant else column.copy()


def matrix_of(content: bytes) -> NDArray[np.float64]:
    """Return the matrix of a rank's file, contract.HEADER x rows. Raises ValueError."""
    if len(content) % (len(HEADER) * BYTES):
        raise ValueError(f"it has {len(content)} bytes, which is no number of rows")
    values = np.frombuffer(content, dtype="<f8") if content else np.empty(0)
    return values.astype(np.float64, copy=False).reshape(len(HEADER), -1)


def csv_of(steps: Steps) -> str:
    """Return the steps as the CSV that people open."""
    unknown = np.full(len(steps.size), np.nan)
    ended_at_s = unknown if steps.ended_at_s is None else steps.ended_at_s
    collectives_s = unknown if steps.collectives_s is None else steps.collectives_s
    ddp_s = [unknown] * len(DDP_COLUMNS) if steps.ddp_s is None else steps.ddp_s.T
    counts = (np.cumsum(steps.size), steps.samples, steps.padding_samples)
    return "".join(csv_lines([*counts, steps.step_time_s, steps.data_wait_s, ended_at_s, *ddp_s, collectives_s]))
