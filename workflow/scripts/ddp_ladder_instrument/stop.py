"""measure.max_steps and max_seconds: all ranks end after the same step. measure.profile_steps: the steps after it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_ladder_instrument import host
from ddp_ladder_instrument.files import one_line, write_atomically
from ddp_ladder_instrument.recorder import NEVER

LOOK_AHEAD_S = 1.0
FIRST_CHECK = 2
STOP = "stop"
ENDED_FIRST = "the script ended first; set measure.max_steps to fewer steps than it makes"


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
    find_store returns a ``torch_facts.GroupStore``, None in a world of one rank. go_on: called when the measurement has
    ended, and after each step from then on; the script goes on as long as it returns True. is_enough: once it returns
    True on rank 0, the seconds are over.
    """

    def __init__(
        self,
        max_steps: int | None,
        max_seconds: float | None,
        find_store: Callable[[], Any],
        go_on: Callable[[], bool] = lambda: False,
        is_enough: Callable[[], bool] | None = None,
    ) -> None:
        self._max_steps = max_steps if max_steps is not None else NEVER
        self._max_seconds = math.inf if max_seconds is None else max_seconds
        self._is_enough = is_enough or (lambda: False)
        self._find_store = find_store
        self._go_on = go_on
        self._began_s: float | None = None
        self._last_check: tuple[int, float] = (0, 0.0)
        self._fastest_step_s = math.inf
        self._has_seconds = max_seconds is not None or is_enough is not None
        self._seconds_check = 1 if self._has_seconds else NEVER
        self._store: Any = None
        self._index = 0
        self._decided = ""  # by rank 0, for the next check
        self.ended_by: str | None = None

    @property
    def first_check(self) -> int:
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
        if self.ended_by is None and step >= self._max_steps:
            self.ended_by = "max_steps"
        elif self.ended_by is None and step >= self._seconds_check:
            self._seconds_check = self._check_seconds(step, now_s)
        if self.ended_by is not None:
            raise EndOfMeasurement(self.ended_by)
        return min(self._max_steps, self._seconds_check)

    def _check_seconds(self, step: int, now_s: float) -> int:
        if self._began_s is None:
            self._began_s = now_s
            self._last_check = (step, now_s)
            return FIRST_CHECK
        before, before_s = self._last_check
        self._last_check = (step, now_s)
        step_s = (now_s - before_s) / (step - before)
        self._fastest_step_s = min(self._fastest_step_s, step_s)
        left_s = 0.0 if self._is_enough() else self._began_s + self._max_seconds - now_s
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
        if not self._has_seconds or self.ended_by is not None:
            return
        store = self._store or self._find_store()
        if store is not None and store.rank == 0:
            store.set(self._key(self._index + 1), str(NEVER))


def _stride(left_s: float, step_s: float) -> int:
    """Return the steps to the next check: about a second ahead, not beyond the end, at least one."""
    return max(1, int(min(LOOK_AHEAD_S, left_s) / step_s)) if step_s > 0 else 1


def wait_for(gpu: Any) -> None:
    """Wait until this GPU, if any, has done its work; after a failure it may wait for a rank that is gone."""
    if gpu is not None:
        from ddp_ladder_instrument import accelerator

        accelerator.synchronize(gpu)


class ProfiledSteps:
    """The steps that follow the measured ones, traced by torch.profiler; ranks/rank<k>.trace.json.gz has the trace.

    on_begin: called when the last measured step has ended. began_at_s: the unix time of that, on a GPU of the
    end of its work; None before.
    peak_memory_bytes: of the host, then. device: the GPU of this rank, if it has one; set before that.
    """

    def __init__(self, steps: int, on_begin: Callable[[], None]) -> None:
        self._steps = steps
        self._on_begin = on_begin
        self._calls = 0
        self._profiler: Any = None
        self._problem: str | None = None
        self._took_s = 0.0
        self.device: Any = None
        self.began_at_s: float | None = None
        self.peak_memory_bytes: int | None = None

    def go_on(self) -> bool:
        """Return True if another step follows; called after each step from the last measured one on.

        One step more than those that are traced comes first, in which the profiler starts: that takes a while, and not
        the same on every rank. A failure of the profiler changes nothing: all ranks make the same steps.
        """
        if not self._steps:
            return False
        if self.began_at_s is None:
            self._on_begin()
            self._attempt(lambda: wait_for(self.device))  # the host is ahead of it: the measured steps end there
            self.began_at_s = time.time()
            self.peak_memory_bytes = host.peak_memory_bytes()
        self._calls += 1
        if self._problem is None:
            self._attempt(self._step)
        self._took_s = time.time() - self.began_at_s
        return not self._is_complete

    @property
    def _is_complete(self) -> bool:
        return self._calls == self._steps + 2

    def _attempt(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # never the training's problem
            self._problem = one_line(error)

    def _step(self) -> None:
        """Start the profiler, tell it that a step has ended, or stop it after the last one. Raises torch's errors."""
        from torch.profiler import ProfilerActivity, profile, schedule

        if self._calls == 1:
            os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # else it reports in the log that there is no GPU
            activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device is not None else [])
            plan = schedule(wait=0, warmup=1, active=self._steps, repeat=1)
            self._profiler = profile(activities=activities, schedule=plan)
            self._profiler.start()
            return
        if self._calls == 2 or self._is_complete:
            wait_for(self.device)  # so that the steps begin and end on the GPU as on the host
        self._profiler.stop() if self._is_complete else self._profiler.step()

    def write(self, ranks: Path, facts: dict[str, Any], device_answers: bool) -> None:
        """Write the trace of rank ``facts["rank"]``, and rank<k>.profile.json: what it took, or why there is none.

        They are written last, so that they can spoil no figure. device_answers: False after a failure, when the device
        may wait for a rank that is gone. Raises OSError.
        """
        if not self._steps or not device_answers:
            return
        begin_s = time.perf_counter()
        if self._problem is None and not self._is_complete:
            self._problem = ENDED_FIRST
            if self._profiler is not None:
                self._attempt(self._profiler.stop)
        if self._problem is None:
            self._attempt(lambda: self._write_trace(ranks, f"rank{facts['rank']}.trace.json.gz"))
        took_s = self._took_s + time.perf_counter() - begin_s
        content = {**facts, "problem": self._problem, "took_s": took_s}
        path = ranks / f"rank{facts['rank']}.profile.json"
        write_atomically(path, [json.dumps(content, indent=2, allow_nan=False) + "\n"])

    def _write_trace(self, ranks: Path, name: str) -> None:
        partial = ranks / f".{os.getpid()}.{name}"  # torch compresses what ends with .gz
        try:
            self._profiler.export_chrome_trace(str(partial))
            os.replace(partial, ranks / name)
        finally:
            partial.unlink(missing_ok=True)
