"""measure.profile_steps: a trace of some steps with torch.profiler, after the measured ones.

After a first step in which the profiler starts, the next ones are traced.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, Optional

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ddp_ladder_instrument import trace_parts
from ddp_ladder_instrument.files import write_atomically

WARMUP_STEPS = 1
MOST_TRACE_BYTES = 200_000_000
"""Of the trace before compression, which makes it ten to twenty times smaller: reading more takes gigabytes."""
COMPRESSION = 3


class TooLarge(ValueError):
    """The trace is too large to be read."""


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

    def write(self, trace: Path) -> dict[str, Any]:
        """Write the trace, compressed, and return the table of its parts. Raises OSError or ValueError."""
        plain = trace.with_name(f".{trace.name}.{os.getpid()}.json")
        try:
            self._profiler.profiler.export_chrome_trace(str(plain))
            self._profiler = None
            size = plain.stat().st_size
            if size > MOST_TRACE_BYTES:
                raise TooLarge(
                    f"the trace of {self._steps} steps has {size / 1e6:,.0f} MB, which is more than the "
                    f"{MOST_TRACE_BYTES / 1e6:,.0f} MB that are read: lower measure.profile_steps"
                )
            content = json.loads(plain.read_bytes())
        finally:
            plain.unlink(missing_ok=True)
        content.pop("traceName", None)  # the path of this temporary file
        trace_parts.align_steps(content["traceEvents"])
        table = trace_parts.summary(content["traceEvents"])
        packed = gzip.compress(json.dumps(content).encode("utf-8", "replace"), COMPRESSION)
        write_atomically(trace, [packed])
        return {**table, "trace": {"file": trace.name, "bytes": len(packed)}}
