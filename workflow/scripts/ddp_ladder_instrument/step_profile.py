"""measure.profile_steps: a trace of some steps with torch.profiler, after the measured ones.

After a first step in which the profiler starts, the next ones are traced.
"""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any, Optional

import torch
from torch.profiler import ProfilerActivity, profile, schedule

WARMUP_STEPS = 1
COMPRESSION = 3


class StepTrace:
    """The profiler of one rank. ``step`` is called after each step, the last measured one included."""

    def __init__(self, steps: int, device: Optional[torch.device]) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._steps = steps
        self._calls = 0
        self._profiler: Any = None
        self.is_complete = False

    def step(self) -> None:
        """Start the profiler, tell it that a step has ended, or stop it after the last one. Raises torch's errors."""
        self._calls += 1
        if self._calls == 1:
            os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # else it reports in the log that there is no GPU
            activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._device is not None else [])
            plan = schedule(wait=0, warmup=WARMUP_STEPS, active=self._steps, repeat=1)
            self._profiler = profile(activities=activities, schedule=plan)
            self._profiler.start()
            return
        last = WARMUP_STEPS + self._steps + 1
        if self._device is not None and self._calls in (WARMUP_STEPS + 1, last):
            torch.cuda.synchronize(self._device)  # so that the steps begin and end on the GPU as on the host
        if self._calls == last:
            self._profiler.stop()
            self.is_complete = True
        else:
            self._profiler.step()

    def stop(self) -> None:
        """Stop the profiler early."""
        if self._profiler is not None and not self.is_complete:
            self._profiler.stop()
            self._profiler = None

    def write(self, trace: Path) -> None:
        """Write the trace, compressed. Raises OSError."""
        plain, packed = (trace.with_name(f".{trace.name}.{os.getpid()}.{end}") for end in ("json", "gz"))
        try:
            self._profiler.profiler.export_chrome_trace(str(plain))
            self._profiler = None
            with plain.open("rb") as file, gzip.open(packed, "wb", COMPRESSION) as compressed:
                shutil.copyfileobj(file, compressed)
            os.replace(packed, trace)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
