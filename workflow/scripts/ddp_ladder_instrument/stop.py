"""measure.max_steps and max_seconds: all ranks end after the same step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ddp_ladder_instrument.batches import NEVER

LOOK_AHEAD_S = 1.0
FIRST_CHECK = 2
STOP = "stop"


class EndOfMeasurement(SystemExit):
    """An exit with code 0: the script's clean-up runs as after sys.exit(0)."""

    def __init__(self, ended_by: str) -> None:
        super().__init__(0)
        self.ended_by = ended_by


class RunLimits:
    """The decision at which step the measurement ends.

    max_seconds counts from the end of the first step. Ranks agree through a store: at one check
    rank 0 writes what all ranks do at the *next* check (end there, or the step of the check after
    it). The others read it about a second later, so no rank waits. The end may come a second or two
    late, and hardly ever early.
    find_store returns a ``torch_facts.GroupStore``, None in a world of one rank.
    """

    def __init__(self, max_steps: int | None, max_seconds: float | None, find_store: Callable[[], Any]) -> None:
        self._max_steps = max_steps if max_steps is not None else NEVER
        self._max_seconds = max_seconds
        self._find_store = find_store
        self._began_s: float | None = None
        self._last_check: tuple[int, float] = (0, 0.0)
        self._fastest_step_s = math.inf
        self._seconds_check = NEVER if max_seconds is None else 1
        self._store: Any = None
        self._index = 0
        self._decided = ""  # by rank 0, for the next check
        self.ended_by: str | None = None

    @property
    def first_check(self) -> int:
        """Step of the first check."""
        return min(self._max_steps, self._seconds_check)

    def check(self, step: int, now_s: float) -> int:
        """Return the step of the next check; raise EndOfMeasurement if the script ends here."""
        if self.ended_by is None and step >= self._max_steps:
            self.ended_by = "max_steps"
        elif self.ended_by is None and step >= self._seconds_check and self._max_seconds is not None:
            self._seconds_check = self._check_seconds(step, now_s, self._max_seconds)
        if self.ended_by is not None:
            raise EndOfMeasurement(self.ended_by)
        return min(self._max_steps, self._seconds_check)

    def _check_seconds(self, step: int, now_s: float, max_seconds: float) -> int:
        if self._began_s is None:
            self._began_s = now_s
            self._last_check = (step, now_s)
            return FIRST_CHECK
        before, before_s = self._last_check
        self._last_check = (step, now_s)
        step_s = (now_s - before_s) / (step - before)
        self._fastest_step_s = min(self._fastest_step_s, step_s)
        left_s = self._began_s + max_seconds - now_s
        self._store = self._store or self._find_store()  # kept: a script may replace its process group
        if self._store is None:
            if left_s <= 0:
                self.ended_by = "max_seconds"
            return step + _stride(left_s, step_s)
        return self._check_together(self._store, step, step_s, left_s)

    def _check_together(self, store: Any, step: int, step_s: float, left_s: float) -> int:
        decision = str(step + 1)
        if self._index:
            decision = self._decided if store.rank == 0 else store.get(self._key(self._index))
        if decision == STOP:
            # Rank 0's process may host the store: if it ended first, a slower rank could not read this.
            store.leave_together(self._key(self._index))
            self.ended_by = "max_seconds"
            return NEVER
        next_check = int(decision)
        self._index += 1
        if store.rank == 0:
            # At the fastest pace seen, so that one slow second does not end the run early.
            left_there_s = left_s - (next_check - step) * self._fastest_step_s
            self._decided = STOP if left_there_s <= 0 else str(next_check + _stride(left_there_s, step_s))
            store.set(self._key(self._index), self._decided)
        return next_check

    def _key(self, index: int) -> str:
        return f"max_seconds/{index}"

    def release(self) -> None:
        """Write rank 0's last decision, so that a rank that makes more steps does not wait for another."""
        if self._max_seconds is None or self.ended_by is not None:
            return
        store = self._store or self._find_store()
        if store is not None and store.rank == 0:
            store.set(self._key(self._index + 1), str(NEVER))


def _stride(left_s: float, step_s: float) -> int:
    """Return the steps to the next check: about a second ahead, not beyond the end, at least one."""
    return max(1, int(min(LOOK_AHEAD_S, left_s) / step_s)) if step_s > 0 else 1
