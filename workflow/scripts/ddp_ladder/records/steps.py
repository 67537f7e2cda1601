"""A rank's steps (ranks/rank<k>.csv) as columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from io import StringIO
from typing import Any

import numpy as np
from ddp_ladder_instrument.contract import HEADER
from numpy.typing import NDArray

BACKWARDS_S = 60.0  # that a clock may be set back during a run
LARGEST_FIGURE = 1e12  # samples or seconds: sums of larger figures are not exact
SHORTEST_STEP_S = 1e-9  # the resolution of the file


@dataclass(frozen=True)
class Steps:
    """Columns of ranks/rank<k>.csv, one entry per optimizer step.

    ended_at_s: unix time of the step's end by the clock of the rank's host; None if it is not known.
    ddp_s: DDP's times, steps x DDP_COLUMNS, nan for steps that it did not time; None if none was timed.
    collectives_s: time in collectives that DDP does not time; None in files made before it was recorded.
    """

    samples: NDArray[np.int64]
    padding_samples: NDArray[np.int64]
    step_time_s: NDArray[np.float64]
    data_wait_s: NDArray[np.float64]
    ended_at_s: NDArray[np.float64] | None = None
    ddp_s: NDArray[np.float64] | None = None
    collectives_s: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.step_time_s)

    def first(self, count: int) -> Steps:
        """Return the first ``count`` steps."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        known: dict[str, Any] = {name: each[:count] for name, each in columns.items() if each is not None}
        return replace(self, **known)


def parse_steps(text: str) -> Steps:
    """Parse a rank's CSV. Raises ValueError."""
    rows = text.partition("\n")[2]
    rows = rows.replace(",,,,,", ",nan,nan,nan,nan,").replace(",,,,\n", ",nan,nan,nan,nan\n")
    table = np.loadtxt(StringIO(rows), delimiter=",", comments=None, ndmin=2) if rows else np.empty((0, len(HEADER)))
    if table.shape[1] not in (len(HEADER), len(HEADER) - 1):  # older ones have no collectives_s
        raise ValueError(f"its columns are not {', '.join(HEADER)}")
    _, samples, padding_samples, step_time_s, data_wait_s, ended_at_s = table[:, :6].T
    ddp_s = table[:, 6:10]
    # A program that reports its steps itself may write anything. nan is no figure.
    figures = table[:, :5]
    if not ((figures >= 0) & (figures <= LARGEST_FIGURE)).all() or (step_time_s < SHORTEST_STEP_S).any():
        raise ValueError("it contains an impossible figure")
    if (np.diff(ended_at_s) < -BACKWARDS_S).any():
        raise ValueError("its times go back")
    return Steps(
        samples=samples.astype(np.int64),
        padding_samples=padding_samples.astype(np.int64),
        step_time_s=step_time_s,
        data_wait_s=data_wait_s,
        ended_at_s=None if np.isnan(ended_at_s).any() else ended_at_s,
        ddp_s=None if np.isnan(ddp_s).all() else ddp_s,
        collectives_s=table[:, 10] if table.shape[1] == len(HEADER) else None,
    )
