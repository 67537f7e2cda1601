"""A rank's steps (ranks/rank<k>.steps) as columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from ddp_ladder_instrument.contract import COLUMNS, DDP_COLUMNS, HEADER
from ddp_ladder_instrument.table import csv_lines
from numpy.typing import NDArray

BACKWARDS_S = 60.0  # that a clock may be set back during a run
LARGEST_FIGURE = 1e12  # samples or seconds: sums of larger figures are not exact
SHORTEST_STEP_S = 1e-9
BYTES = 8  # of a figure in the file


@dataclass(frozen=True)
class Steps:
    """Columns of ranks/rank<k>.steps, one entry per optimizer step."""

    samples: NDArray[np.int64]
    padding_samples: NDArray[np.int64]
    step_time_s: NDArray[np.float64]
    data_wait_s: NDArray[np.float64]
    ended_at_s: NDArray[np.float64] | None = None  # unix time by the clock of the rank's host; None: not known
    ddp_s: NDArray[np.float64] | None = None  # steps x DDP_COLUMNS, nan for steps that DDP did not time; None: none
    collectives_s: NDArray[np.float64] | None = None  # in collectives that DDP does not time; None: not recorded

    @classmethod
    def of(cls, matrix: NDArray[np.float64]) -> Steps:
        """Return the steps of a matrix, contract.HEADER x steps. Raises ValueError."""
        _, samples, padding_samples, step_time_s, data_wait_s, ended_at_s, *_, collectives_s = matrix
        ddp_s = matrix[HEADER.index(DDP_COLUMNS[0]) : -1].T
        # A program that reports its steps itself may write anything. nan is no figure.
        figures = matrix[: len(COLUMNS)]
        if not ((figures >= 0) & (figures <= LARGEST_FIGURE)).all() or (step_time_s < SHORTEST_STEP_S).any():
            raise ValueError("it contains an impossible figure")
        if (np.diff(ended_at_s) < -BACKWARDS_S).any():
            raise ValueError("its times go back")
        return cls(
            samples=samples.astype(np.int64),
            padding_samples=padding_samples.astype(np.int64),
            step_time_s=step_time_s,
            data_wait_s=data_wait_s,
            ended_at_s=None if np.isnan(ended_at_s).any() else ended_at_s,
            ddp_s=None if np.isnan(ddp_s).all() else ddp_s,
            collectives_s=collectives_s,
        )

    def __len__(self) -> int:
        return len(self.step_time_s)

    def first(self, count: int) -> Steps:
        """Return the first ``count`` steps."""
        known = {name: column[:count] for name, column in vars(self).items() if column is not None}
        return replace(self, **known)


def matrix_of(content: bytes) -> NDArray[np.float64]:
    """Return the matrix of a rank's file, contract.HEADER x steps. Raises ValueError."""
    if len(content) % (len(HEADER) * BYTES):
        raise ValueError(f"it has {len(content)} bytes, which is no number of steps")
    values = np.frombuffer(content, dtype="<f8") if content else np.empty(0)
    return values.astype(np.float64).reshape(len(HEADER), -1)


def csv_of(steps: Steps) -> str:
    """Return the steps as the CSV that people open."""
    unknown = np.full(len(steps), np.nan)
    ended_at_s = unknown if steps.ended_at_s is None else steps.ended_at_s
    collectives_s = unknown if steps.collectives_s is None else steps.collectives_s
    ddp_s = [unknown] * len(DDP_COLUMNS) if steps.ddp_s is None else steps.ddp_s.T
    counts = (np.arange(1, len(steps) + 1), steps.samples, steps.padding_samples)
    return "".join(csv_lines([*counts, steps.step_time_s, steps.data_wait_s, ended_at_s, *ddp_s, collectives_s]))
