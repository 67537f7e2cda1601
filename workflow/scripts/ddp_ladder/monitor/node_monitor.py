"""The monitor of a node: a thread of its agent, which writes a line per sample. Nothing that it does fails the run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from ddp_ladder.common.files import write_json
from ddp_ladder.monitor.gpus import Value
from ddp_ladder.monitor.models import MonitorEnd, MonitorFile
from ddp_ladder.monitor.sampler import NodeSampler

JOIN_S = 5.0  # for a sample that is being taken when the agent ends
_DIGITS = 4  # of a figure that is no rate of bytes


class NodeMonitor:
    """Samples a node until its end. A thread, so that no process is left behind, whatever ends the agent."""

    def __init__(
        self,
        about: Path,
        samples: Path,
        every_s: float,
        open_sampler: Callable[[], NodeSampler],
        describe: Callable[[NodeSampler], MonitorFile],
    ) -> None:
        """about, samples: the files. describe: returns the content of about, which may change while it samples."""
        self._about, self._samples, self._every_s = about, samples, every_s
        self._open, self._describe = open_sampler, describe
        self._sampler: NodeSampler | None = None
        self._described: MonitorFile | None = None
        self._count, self._cpu_s = 0, 0.0
        self._error: str | None = None
        self._end = threading.Event()
        # A daemon: a call of a driver that never returns does not keep the agent from ending.
        self._thread = threading.Thread(target=self._sample_until_end, name="monitor", daemon=True)

    def start(self) -> None:
        """Start to sample."""
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads are allowed
            self._error = str(error)

    def end(self) -> MonitorEnd:
        """Take the last sample and return what was done, after JOIN_S at the latest."""
        self._end.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(JOIN_S)
        errors = [self._error] if self._error else []
        if self._thread.is_alive():
            errors.append(f"the last sample was not taken within {JOIN_S:g} s: a driver may hang")
        errors += self._sampler.errors if self._sampler else []
        return MonitorEnd(samples=self._count, cpu_s=round(self._cpu_s, 3), error="; ".join(errors) or None)

    def _sample_until_end(self) -> None:
        try:
            if sys.platform != "linux":
                raise OSError("a node is sampled on Linux only")  # /proc
            self._sampler = self._open()
            self._describe_again(self._sampler)
            with self._samples.open("w", encoding="utf-8") as file:
                print(",".join(self._sampler.header), file=file, flush=True)
                self._sample_to(file, self._sampler)
        except Exception as error:  # of any kind: it is reported in the agent's end record
            self._error = f"{type(error).__name__}: {error}"
        self._cpu_s = time.thread_time()

    def _sample_to(self, file: TextIO, sampler: NodeSampler) -> None:
        begin_s = time.monotonic()
        while True:
            last = self._end.is_set()
            row = sampler.sample()
            print(",".join(shown(name, row.get(name)) for name in sampler.header), file=file, flush=True)
            self._count += 1
            self._describe_again(sampler)
            self._cpu_s = time.thread_time()
            if last:
                return
            now_s = time.monotonic()
            self._end.wait(next_s(begin_s, self._every_s, now_s) - now_s)

    def _describe_again(self, sampler: NodeSampler) -> None:
        described = self._describe(sampler)
        if described != self._described:
            write_json(self._about, described.model_dump())
            self._described = described


def next_s(begin_s: float, every_s: float, now_s: float) -> float:
    """Return when the next sample is due: at a multiple of the interval, whatever the ones before it took."""
    return begin_s + every_s * ((now_s - begin_s) // every_s + 1)


def shown(name: str, value: Value) -> str:
    """Return a value as it is written; empty if it is unknown."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(round(value)) if name.endswith(("bytes", "bytes_per_s")) else str(round(value, _DIGITS))
    return str(value)
