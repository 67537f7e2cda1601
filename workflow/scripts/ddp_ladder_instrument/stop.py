"""measure.max_steps and measure.max_seconds: every rank ends after the same optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from ddp_ladder_instrument.loops import NEVER

LOOK_AHEAD_S = 1.0
FIRST_CHECK = 2
STOP = "stop"


class EndOfMeasurement(SystemExit):
    """An exit with code 0: the script's clean-up runs as after sys.exit(0)."""

    def __init__(self, ended_by: str) -> None:
        super().__init__(0)
        self.ended_by = ended_by


class DecisionStore(Protocol):
    """A key-value store in which rank 0 writes its decisions for the other ranks."""

    rank: int

    def get(self, key: str) -> str:
        """Wait for the key and return its value."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def leave_together(self, key: str) -> None:
        """Return at once, but on rank 0 only when every other rank has called this."""


class RunLimits:
    """The decision at which step the measurement ends.

    max_seconds counts from the end of the first step. Ranks agree through a store: at one check
    rank 0 writes what all ranks do at the *next* check (end there, or the step of the check after
    it). The others read it about a second later, so no rank waits. The end may come a second or two
    late, and hardly ever early.
    find_store returns None in a world of one rank. go_on: called when the measurement has ended, and after each step
    from then on; the script goes on as long as it returns True.
    """

    def __init__(
        self,
        max_steps: int | None,
        max_seconds: float | None,
        find_store: Callable[[], DecisionStore | None],
        go_on: Callable[[], bool] = lambda: False,
    ) -> None:
        self._max_steps = max_steps if max_steps is not None else NEVER
        self._max_seconds = max_seconds
        self._find_store = find_store
        self._go_on = go_on
        self._began_s: float | None = None
        self._last_check: tuple[int, float] = (0, 0.0)
        self._fastest_step_s = math.inf
        self._seconds_check = NEVER if max_seconds is None else 1
        self._index = 0
        self._group = 0
        self._decided: dict[int, str] = {}
        self.ended_by: str | None = None

    @property
    def first_check(self) -> int:
        """Step of the first check."""
        return min(self._max_steps, self._seconds_check)

    def new_group(self, step: int) -> int:
        """Start over with the store of a new process group; return the step of the next check.

        All ranks call this after the same step, because making a group is collective.
        """
        self._group += 1
        self._index = 0
        self._decided.clear()
        if self._max_seconds is not None and self._began_s is not None:
            self._seconds_check = step + 1
        return min(self._max_steps, self._seconds_check)

    def check(self, step: int, now_s: float) -> int:
        """Return the step of the next check; raise EndOfMeasurement if the script ends here."""
        try:
            return self._next_check(step, now_s)
        except EndOfMeasurement:
            if self._go_on():
                return step + 1
            raise

    def _next_check(self, step: int, now_s: float) -> int:
        if self.ended_by is not None:
            raise EndOfMeasurement(self.ended_by)
        if step >= self._max_steps:
            self._end("max_steps")
        if step >= self._seconds_check and self._max_seconds is not None:
            self._seconds_check = self._check_seconds(step, now_s, self._max_seconds)
        return min(self._max_steps, self._seconds_check)

    def _end(self, ended_by: str) -> None:
        self.ended_by = ended_by
        raise EndOfMeasurement(ended_by)

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
        store = self._find_store()
        if store is None:
            if left_s <= 0:
                self._end("max_seconds")
            return step + _stride(left_s, step_s)
        return self._check_together(store, step, step_s, left_s)

    def _check_together(self, store: DecisionStore, step: int, step_s: float, left_s: float) -> int:
        decision = self._decision(store, step)
        if decision == STOP:
            # Rank 0's process may host the store: if it ended first, a slower rank could not read this.
            store.leave_together(self._key(self._index))
            self._end("max_seconds")
        next_check = int(decision)
        self._index += 1
        if store.rank == 0:
            # At the fastest pace seen, so that one slow second does not end the run early.
            left_there_s = left_s - (next_check - step) * self._fastest_step_s
            self._decide(
                store,
                self._index,
                STOP if left_there_s <= 0 else str(next_check + _stride(left_there_s, step_s)),
            )
        return next_check

    def _decision(self, store: DecisionStore, step: int) -> str:
        if self._index == 0:
            return str(step + 1)
        if store.rank == 0:
            return self._decided.pop(self._index)
        return store.get(self._key(self._index))

    def _decide(self, store: DecisionStore, index: int, decision: str) -> None:
        self._decided[index] = decision
        store.set(self._key(index), decision)

    def _key(self, index: int) -> str:
        return f"max_seconds/{self._group}/{index}"

    def release(self) -> None:
        """Write rank 0's last decision, so that a rank that makes more steps does not wait for another."""
        if self._max_seconds is None or self.ended_by is not None:
            return
        store = self._find_store()
        if store is not None and store.rank == 0:
            store.set(self._key(self._index + 1), str(NEVER))


def _stride(left_s: float, step_s: float) -> int:
    """Return the steps to the next check: about a second ahead, not beyond the end, at least one."""
    return max(1, int(min(LOOK_AHEAD_S, left_s) / step_s)) if step_s > 0 else 1
