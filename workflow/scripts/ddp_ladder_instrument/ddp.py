"""DDP's own timings of forward pass, backward pass, communication and overlap, of some of the steps.

The ranks' steps are paired by their index, so all ranks must time the same ones. No message is exchanged for that:
which steps are timed depends on their index alone, and on how often a rank may time one.
"""

from __future__ import annotations

import math
import statistics
import weakref
import zlib
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_ladder_instrument import log
from ddp_ladder_instrument.recorder import NEVER, Recorder

EARLY_ITERATIONS = 10
"""DDP times its first ten iterations always."""
MOST_OF_A_STEP = 0.004
"""What timing may cost of the time of a step, in the mean."""
COST_S, COST_ON_GPU_S = 60e-6, 1e-3
"""To time one step, at most. On a GPU, reading the times waits for the device, which may then wait for the host."""
SPARSEST = 5
"""Of 2**5 = 32 steps, one is timed."""
WANTED_STEPS = 16
NANOSECOND_S = 1e-9


def timed_step(level: int, block: int) -> int:
    """Return the step, counted from 0, that is timed of ``2**level`` steps; ``block`` counts such groups of steps.

    It is at random within them, so that what recurs every so many steps is timed as often as it occurs. What is timed
    at a level is also timed at all lower ones: ranks at different levels still time common steps.
    """
    for below in range(level, 0, -1):
        block = 2 * block + (zlib.crc32(b"%d %d" % (below, block)) >> 7 & 1)
    return block


def is_timed(step: int, level: int) -> bool:
    """Return True if this step, counted from 0, is timed."""
    return timed_step(level, step >> level) == step


def next_timed(step: int, level: int) -> int:
    """Return the first step that is timed, from this one on."""
    first = timed_step(level, step >> level)
    return first if first >= step else timed_step(level, (step >> level) + 1)


class DdpTimings:
    """DDP's times of the module that was wrapped last, as events of the log.

    DDP times one pass of a step. Where a step has several (accumulation), that pass stands for all of them.
    """

    def __init__(self, recorder: Recorder, warmup_steps: int, max_steps: int | None, unmeasured: list[str]) -> None:
        self._recorder = recorder
        self._warmup_steps = warmup_steps
        self._max_steps = max_steps
        self._unmeasured = unmeasured
        self._module: Callable[[], Any] = lambda: None
        self.modules: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # wrapped ones, by number
        self.wrapped = 0  # how many
        self._device = "cpu"
        self._level: int | None = None  # None: not chosen yet
        self._first = self._newest = 0, 0  # step and iteration of the times that were read first and last
        self._buckets = ""
        self._comm_hook: str | None = None

    def attach(self, module: DistributedDataParallel, device: torch.device) -> None:
        """Time the steps of this module instead of an earlier one."""
        self.wrapped += 1
        self.modules[module] = self.wrapped
        self._device, self._level, self._newest = device.type, None, (0, 0)
        methods = ("_get_ddp_logging_data", "_set_ddp_runtime_logging_sample_rate")
        missing = next((method for method in methods if not hasattr(module, method)), None)
        if missing:
            self._unmeasured.append(f"ddp: DistributedDataParallel.{missing} is missing in torch {torch.__version__}")
        else:
            self._module = weakref.ref(module)

    def read(self, steps: int) -> int:
        """Read the times of a step that has ended, and choose the next one; return the steps after which to call again.

        DDP times iteration i if its rate divides i, and gives the times out in the next forward pass.
        """
        module = self._module()
        if module is None:
            return NEVER
        self._read_newest(module)
        if self._level is None:
            if steps < max(self._warmup_steps, EARLY_ITERATIONS):
                return steps + 1
            self._level = self._chosen_level(steps)
        now, before = is_timed(steps, self._level), is_timed(steps - 1, self._level)
        step = steps if now else steps - 1 if before else next_timed(steps, self._level)
        module._set_ddp_runtime_logging_sample_rate(1 if now and before else self._iteration(step))
        return steps + 1 if now or before else step + 1

    def _read_newest(self, module: Any) -> None:
        """Log DDP's newest times, unless they are known."""
        data = module._get_ddp_logging_data()
        self._buckets = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or self._buckets
        self._comm_hook = data.get("comm_hook") or None
        ended_at_ns = data.get("backward_comm_time_end")
        if data.get("iteration", 0) <= self._newest[1] or not ended_at_ns or not data.get("backward_compute_time"):
            return
        machine, table = self._recorder.machine, self._recorder.machine.table
        ended_s = machine.clock_s(ended_at_ns * NANOSECOND_S)  # DDP has unix time
        step = bisect_left(table.host_ended_s, ended_s)
        if step >= table.single:
            if table.block == 1 or not self._newest[1]:
                return
            step = self._step(data["iteration"])
        if not self._newest[1]:
            self._first = step, data["iteration"]
        self._newest = step, data["iteration"]
        if self._level is None or is_timed(step, self._level):
            keys = ("forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap")
            forward_s, *others_s = (data.get(f"{key}_time", 0) * NANOSECOND_S for key in keys)
            self._recorder.log.add(log.DDP, forward_s, ended_s, self.wrapped, *others_s)

    @property
    def _in_a_step(self) -> int:
        (first_step, first), (known, iteration) = self._first, self._newest
        return round((iteration - first) / (known - first_step)) if known > first_step else 1

    def _iteration(self, step: int) -> int:
        """Return the number of an iteration of DDP in a step: it counts forward passes outside of no_sync."""
        known, iteration = self._newest
        return max(1, iteration + (step - known) * self._in_a_step)

    def _step(self, iteration: int) -> int:
        """Return the step of an iteration, where the rows are blocks of steps and do not show it."""
        known, known_iteration = self._newest
        return known + (iteration - known_iteration) // max(1, self._in_a_step)

    def _chosen_level(self, steps: int) -> int:
        step_s = statistics.median([*self._recorder.machine.table.recent_s][-EARLY_ITERATIONS:])
        allowed = (COST_S if self._device == "cpu" else COST_ON_GPU_S) / (MOST_OF_A_STEP * max(step_s, 1e-6))
        level = min(SPARSEST, max(0, math.ceil(math.log2(allowed))))
        if self._max_steps is not None:  # enough of a short run
            level = min(level, int(math.log2(max(1, (self._max_steps - steps) // WANTED_STEPS))))
        return level

    def facts(self) -> dict[str, Any] | None:
        """Return what DDP tells of the wrapped module; None if none was wrapped."""
        if not self.wrapped:
            return None
        buckets = [int(size) for size in self._buckets.split(",")] if self._buckets else []
        return {"bucket_bytes": buckets, "comm_hook": self._comm_hook}
