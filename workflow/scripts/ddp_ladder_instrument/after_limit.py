"""The steps after measure.max_steps or max_seconds that are traced and not measured: measure.profile_steps.

ranks/rank<k>.trace.json.gz has the trace, rank<k>.profile.json the time that it took, or why there is none. They are
written last, so that they can spoil no figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ddp_ladder_instrument import host
from ddp_ladder_instrument.files import write_atomically
from ddp_ladder_instrument.not_measured import one_line

if TYPE_CHECKING:
    from ddp_ladder_instrument.step_profile import StepTrace

ENDED_FIRST = "the script ended first; set measure.max_steps to fewer steps than it makes"


class ProfiledSteps:
    """The steps that follow the measured ones. on_begin: called when the last measured step has ended.
    start: called after it with the number of steps to trace.

    began_at_s: unix time at which the measured steps were over; None before. peak_memory_bytes: of the host, then.
    """

    def __init__(self, steps: int, on_begin: Callable[[], None], start: Callable[[int], StepTrace]) -> None:
        self._steps = steps
        self._start = start
        self._on_begin = on_begin
        self._calls = 0
        self._trace: Optional[StepTrace] = None
        self._problem: Optional[str] = None
        self._took_s = 0.0
        self.began_at_s: Optional[float] = None
        self.peak_memory_bytes: Optional[int] = None

    def go_on(self) -> bool:
        """Return True if another step follows; called after each step from the last measured one on.

        One step more than those that are traced comes first, in which the profiler starts: that takes a while, and not
        the same on every rank. A failure of the profiler changes nothing: all ranks make the same steps.
        """
        if not self._steps:
            return False
        if self.began_at_s is None:
            self.began_at_s = time.time()
            self.peak_memory_bytes = host.peak_memory_bytes()
            self._on_begin()
        self._calls += 1
        if self._problem is None:
            self._attempt(self._step)
        self._took_s = time.time() - self.began_at_s
        return self._calls <= 1 + self._steps

    def _step(self) -> None:
        if self._trace is None:
            self._trace = self._start(self._steps)
        self._trace.step()

    def _attempt(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # never the training's problem
            self._problem = one_line(error)

    def write(self, ranks: Path, facts: dict[str, Any], device_answers: bool) -> None:
        """Write the files of rank ``facts["rank"]``. Raises OSError.

        device_answers: False after a failure, when the device may wait for a rank that is gone.
        """
        if not self._steps or not device_answers:
            return
        path = ranks / f"rank{facts['rank']}.profile.json"
        begin_s = time.perf_counter()
        trace = self._trace
        if self._problem is None and (trace is None or not trace.is_complete):
            self._problem = ENDED_FIRST
            if trace is not None:
                self._attempt(trace.stop)
        if self._problem is None and trace is not None:
            self._attempt(lambda: trace.write(ranks / f"rank{facts['rank']}.trace.json.gz"))
        took_s = self._took_s + time.perf_counter() - begin_s
        content = {**facts, "problem": self._problem, "took_s": took_s}
        write_atomically(path, [json.dumps(content, indent=2, allow_nan=False) + "\n"])
