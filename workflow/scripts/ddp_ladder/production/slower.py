"""Whether a link is as fast as the ladder promised; if not, what its steps and its nodes show."""

from __future__ import annotations

import csv
import io
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
from ddp_ladder_instrument.contract import TOTALS
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from ddp_ladder.common.files import RunDirectory, read_bytes, write_json, writing
from ddp_ladder.common.formats import duration, gigabytes, milliseconds, percent, significant
from ddp_ladder.common.model import Count, Model
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.nodes.findings import SLOWER_CLOCK, THROTTLES
from ddp_ladder.nodes.sampler import THROTTLE_REASONS, MonitorFile, last_cells, last_sample, of_gpus
from ddp_ladder.nodes.usage import LARGEST_VALUE
from ddp_ladder.production.chain import Chain, clock, is_to_stop, takes_save
from ddp_ladder.records.raw_files import of_run_if_there
from ddp_ladder.records.raw_models import AgentTotals, RankTotals, RunFile, Slow, SlowFile

Sums = NDArray[np.float64]
"""Ranks x contract.TOTALS, or the growth of these in a window; nan where a figure is not known."""

_AT = {name: place for place, name in enumerate(TOTALS)}


def sums_of(totals: Iterable[RankTotals], ranks: int) -> Sums:
    """Return the sums of all ranks; nan for those that are not there."""
    sums = np.full((ranks, len(TOTALS)), np.nan)
    for each in totals:
        if each.rank < ranks and len(each.totals) == len(TOTALS):
            sums[each.rank] = [np.nan if figure is None else figure for figure in each.totals]
    return sums


def known_so_far(before: Sums, now: Sums) -> Sums:
    """Return the sums of now, and those of before of the ranks that are not known now."""
    return np.where(np.isnan(now[:, _AT["steps"], None]), before, now)


@dataclass(frozen=True)
class Window:
    """A stretch of a run: means of its steps."""

    began_at_s: float  # unix time of the end of the step before it
    ended_at_s: float
    steps: int
    samples_per_s: float | None  # of all ranks, in the time of the slowest rank's steps; None: a rank is not known
    step_time_s: float  # of the slowest rank
    data_wait_s: float  # of a step, in the mean of the ranks
    exposed_comm_s: float | None  # of a step, on the rank that waits least for others; None: not known
    waits_least: int | None = None  # that rank


def window_of(before: Sums, now: Sums) -> Window | None:
    """Return the window between two sums; None if no step was made in it."""
    grown = now - before
    made = grown[:, _AT["steps"]] > 0  # False for nan
    if not made.any():
        return None
    of = {name: grown[made, place] for place, name in enumerate(TOTALS)}
    steps, timed = of["steps"], of["timed_steps"]
    slowest_s = float((of["step_time_s"] / steps).max())
    samples_per_s = (of["samples"] / steps).sum() / slowest_s if made.all() and slowest_s > 0 else None
    with np.errstate(invalid="ignore"):  # what DDP exchanges is not known where it timed no step: 0 / 0
        exposed_s = np.maximum((of["comm_s"] - of["overlap_s"]) / timed, 0.0) + of["collectives_s"] / steps
    is_known = not np.isnan(exposed_s).any()
    return Window(
        began_at_s=float(before[made, 0].min()),
        ended_at_s=float(now[made, 0].max()),
        steps=int(steps.max()),
        samples_per_s=float(samples_per_s) if samples_per_s else None,
        step_time_s=slowest_s,
        data_wait_s=float((of["data_wait_s"] / steps).mean()),
        exposed_comm_s=float(exposed_s.min()) if is_known else None,
        waits_least=int(np.flatnonzero(made)[exposed_s.argmin()]) if is_known else None,
    )


WINDOW_S = 60.0
WINDOWS = 10  # that are compared with the promise
AGAIN_S = 3600.0
MOST_NAMED = 3
TABLE = "windows.csv"

T = TypeVar("T")


@dataclass
class Promise:
    """The judgement on the mean rate of the last ten minutes. Pure."""

    samples_per_s: float
    slower_percent: float
    _warned_at_s: float | None = None

    def is_news(self, at_s: float, rate: float) -> bool:
        """Return True if this rate is to be reported: it was well before, or an hour ago."""
        if rate >= self.samples_per_s * (1 - self.slower_percent / 100):
            self._warned_at_s = None
            return False
        if self._warned_at_s is not None and at_s - self._warned_at_s < AGAIN_S:
            return False
        self._warned_at_s = at_s
        return True


# What it measured


def in_words(window: Window, nodes: Sequence[str], gpus_per_node: int) -> str:
    """Return the parts of a step. nodes: names, by their ranks. Pure."""
    exposed_s, rank = window.exposed_comm_s, window.waits_least
    shown = (
        "exposed communication is not known"
        if exposed_s is None
        else f"{milliseconds(exposed_s)} ms exposed communication"
    )
    if rank is not None and len(nodes) * gpus_per_node > 1:
        shown += f" on rank {rank} ({nodes[rank // gpus_per_node]}), which waits least"
    step, wait = milliseconds(window.step_time_s), milliseconds(window.data_wait_s)
    return f"a step takes {step} ms, of which {wait} ms data wait, {shown}"


def signs_of_nodes(cells: Mapping[str, Mapping[str, str]], samples: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what the last samples show of clocks: throttled GPUs, and GPUs whose clock is below that of the others.

    cells, samples: by node, its last line as text, and as figures. Pure.
    """
    found = []
    clocks = {node: min(mhz) for node, sample in samples.items() if (mhz := of_gpus(sample, "sm_clock_mhz"))}
    usual = float(np.median([*clocks.values()])) if clocks else 0.0
    for node, line in cells.items():
        reported = {
            part for name, value in line.items() if name.endswith(THROTTLE_REASONS) for part in value.split("+")
        }
        if reasons := [reason for reason in THROTTLES if reason in reported]:
            found.append(f"{node}: GPU throttled ({', '.join(reasons)})")
        if node in clocks and clocks[node] < SLOWER_CLOCK * usual:
            found.append(f"{node}: SM clock {clocks[node]:.0f} MHz, {usual:.0f} MHz elsewhere")
    return found


def memories_of(about: MonitorFile) -> list[tuple[str, str, float]]:
    """Return the memories of a node and its GPUs: place, column of the samples, and size in bytes. Pure."""
    node = (about.node, "node_memory_used_bytes", float(about.memory_bytes))
    gpus = ((gpu.index, gpu.memory_bytes) for gpu in about.gpus if gpu.memory_bytes)
    return [node, *((f"GPU {index} of {about.node}", f"gpu{index}_memory_used_bytes", size) for index, size in gpus)]


# The watch over one link


@dataclass
class SpeedWatch:
    """The windows of a link: each is a line of the chain's table, and ten of them are compared with the promise.

    At each window it also does what a person asks.
    """

    chain: Chain
    directory: Path  # of the chain
    link: int
    label: str  # of the link, in lines
    say: Callable[[str], None]
    every_s: float = WINDOW_S
    windows: int = WINDOWS
    _sums: deque[Sums] = field(default_factory=deque)

    def begin(self, directory: RunDirectory, run: RunFile) -> None:
        """Watch a start of the script."""
        rate = self.chain.promised_samples_per_s
        self._run_directory, self._run = directory, run
        self._promise = None if rate is None else Promise(rate, self.chain.slower_percent)
        self._slow: list[Slow] = []
        self._growth, self._memories = Growth(), dict[str, list[tuple[str, str, float]]]()
        self._sums = deque(maxlen=self.windows + 1)
        self._until_s: float | None = None
        self._next_s = time.monotonic()

    def look(self) -> float | None:
        """Look, if it is time; return when the run is to be ended (time.monotonic()), None if it goes on."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + (self.every_s if self._sums else min(self.every_s, 5.0))
            with suppress(OSError, ValueError):  # the next one may succeed
                self._look()
            self._do_as_asked()
        return self._until_s

    def end(self) -> None:
        """Add the last window of the run."""
        with suppress(OSError, ValueError):
            self._look()

    def _totals(self) -> Iterator[RankTotals]:
        for agent in self._run.all_agents:
            if totals := of_run_if_there(self._run, AgentTotals, self._run_directory.totals(agent)):
                yield from totals.ranks

    def _look(self) -> None:
        now = sums_of(self._totals(), self._run.spec.world_size)
        if self._sums:
            now = known_so_far(self._sums[-1], now)
        elif np.isnan(now[:, 1]).any():
            return  # not all ranks have begun
        last = window_of(self._sums[-1], now) if self._sums else None
        if self._sums and last is None:
            return  # no step was made: a validation, or what follows the last one
        self._sums.append(now)
        if last is not None:
            self._append(last)
        if len(self._sums) == self._sums.maxlen:
            self._judge()

    def _append(self, window: Window) -> None:
        samples = self._samples(last_sample)
        memory = [size for sample in samples.values() for size in of_gpus(sample, "memory_used_bytes")]
        append_row(self.directory / TABLE, row_of(self.link, self._run.job.id, window, max(memory, default=None)))
        if self._run.warn_at_s is not None:
            end_s = self._run.warn_at_s + self.chain.warn_before_s
            for line in self._growth.add(window.ended_at_s, self._memory(samples), end_s):
                self.say(f"{self.label}: {line}")

    def _memory(self, samples: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, float]]:
        """Return the used and the whole memory of each node and GPU that is sampled, in bytes."""
        for node_rank, node in enumerate(self._run.nodes):
            if node not in self._memories:
                about = of_run_if_there(self._run, MonitorFile, self._run_directory.monitor(node_rank))
                if about is not None:
                    self._memories[node] = memories_of(about)
        return {
            place: (samples[node][column], size)
            for node in samples.keys() & self._memories.keys()
            for place, column, size in self._memories[node]
            if column in samples[node]
        }

    def _judge(self) -> None:
        whole = window_of(self._sums[0], self._sums[-1])
        if self._promise is None or whole is None or whole.samples_per_s is None:
            return
        if self._promise.is_news(whole.ended_at_s, whole.samples_per_s):
            parts = in_words(whole, self._run.nodes, self._run.spec.gpus_per_node)
            signs = signs_of_nodes(self._samples(last_cells), self._samples(last_sample))
            self._report(whole.samples_per_s, whole.ended_at_s, "; ".join([parts, *signs[:MOST_NAMED]]))

    def _samples(self, read: Callable[[Path], T]) -> dict[str, T]:
        found = {}
        for node_rank, node in enumerate(self._run.nodes):
            with suppress(OSError, ValueError):
                found[node] = read(self._run_directory.samples(node_rank))
        return found

    def _report(self, rate: float, at_s: float, why: str) -> None:
        promised = self.chain.promised_samples_per_s or rate
        within = duration(self.windows * self.every_s)
        text = f"{significant(rate)} samples/s in the last {within}, {percent(rate / promised)} of the ladder's"
        self.say(f"{self.label}: slower than promised: {text} {significant(promised)}: {why}")
        self._slow.append(Slow(at_s=at_s, samples_per_s=rate, why=why))
        file = SlowFile(**self._run.identity, slow=tuple(self._slow), action=self.chain.slower)
        write_json(self._run_directory.slow, file.model_dump())
        if self.chain.slower == "stop" and self._until_s is None:
            self._end("production.slower: stop")

    def _do_as_asked(self) -> None:
        if takes_save(self.directory):
            self.say(f"{self.label}: it is to save, as asked: the script gets SIGUSR1")
            self._run_directory.warn_now.touch()
        if self._until_s is None and is_to_stop(self.directory):
            self._end("as asked")

    def _end(self, why: str) -> None:
        self.say(f"{self.label}: it is being ended ({why}); the script gets SIGUSR1")
        self._run_directory.warn_now.touch()
        self._until_s = time.monotonic() + self.every_s + self.chain.warn_before_s  # agents look once a window


# The table

Cell = float | int | str | None
COLUMNS = (
    "link", "job_id", "began_at_s", "ended_at_s", "steps", "samples_per_s", "step_time_s", "data_wait_s_per_step",
    "exposed_comm_s_per_step", "gpu_memory_bytes",
)  # fmt: skip


def row_of(link: int, job_id: str, window: Window, memory_bytes: float | None) -> tuple[Cell, ...]:
    """Return the cells of a window; None where a figure is not known."""
    times = (round(window.began_at_s, 3), round(window.ended_at_s, 3))
    rate = None if window.samples_per_s is None else round(window.samples_per_s, 3)
    figures = (window.step_time_s, window.data_wait_s, window.exposed_comm_s)
    rounded = (None if figure is None else round(figure, 9) for figure in figures)
    return (link, job_id, *times, window.steps, rate, *rounded, None if memory_bytes is None else int(memory_bytes))


def append_row(path: Path, row: Sequence[Cell]) -> None:
    """Append a line, in one piece; a new table begins with its header. Raises NotWritten, also for a pipe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with (
        writing(path),
        open(path, "a+b", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666)) as file,
    ):
        if file.tell() == 0:
            writer.writerow(COLUMNS)
        elif file.seek(-1, os.SEEK_END) and file.read() != b"\n":
            text.write("\n")  # a line that a killed job has cut stays the only one that is lost
        writer.writerow(["" if cell is None else cell for cell in row])
        file.write(text.getvalue().encode())


Figure = Annotated[float, Field(ge=0, le=LARGEST_VALUE)]


class WindowRow(Model):
    """What is read of a line of the table."""

    model_config = ConfigDict(strict=False, extra="ignore", frozen=True, allow_inf_nan=False)
    link: Count
    steps: Annotated[int, Field(ge=1, le=LARGEST_VALUE)]
    step_time_s: Annotated[float, Field(gt=0, le=LARGEST_VALUE)]
    samples_per_s: Figure | None = None


def read_windows(path: Path) -> tuple[tuple[WindowRow, ...], int]:
    """Return the windows of the table, and the number of its lines that are damaged. Raises OSError."""
    rows, damaged = [], 0
    for line in read_bytes(path).decode(errors="replace").splitlines():
        cells = line.split(",")
        if cells == [*COLUMNS]:
            continue
        try:
            rows.append(WindowRow.from_json({name: x for name, x in zip(COLUMNS, cells, strict=True) if x}))
        except ValueError:
            damaged += 1
    return tuple(rows), damaged


def last_window(path: Path) -> WindowRow | None:
    """Return the last window of the table; None without one. Raises OSError or ValueError."""
    cells = last_cells(path)
    return WindowRow.from_json(cells) if cells else None


# --- Memory that grows while a link runs: whether it would fill a node or a GPU before the link ends. Pure.


TREND_WINDOWS = 60  # that a trend is of: an hour
LEAST_WINDOWS = 20  # before them, caches and the allocator's pools fill
LEAST_GROWTH = 0.01  # of all memory, over these windows
STILL = 0.5  # the later half grows by so much of the earlier one's rate, or the growth is coming to its end


@dataclass
class Growth:
    """The memory of each place (a node, or a GPU of one), a value for each window."""

    _used: defaultdict[str, deque[tuple[float, float]]] = field(
        default_factory=partial(defaultdict, partial(deque, maxlen=TREND_WINDOWS))
    )
    _told: set[str] = field(default_factory=set)

    def add(self, at_s: float, memory: Mapping[str, tuple[float, float]], end_s: float) -> list[str]:
        """Add a window; return a line for each place that would be full before the link ends, once for each.

        at_s: unix time. memory: bytes that are used, and that there are. end_s: of the link, unix time.
        """
        found = []
        for place, (used, size) in memory.items():
            series = self._used[place]
            series.append((at_s, used))
            rate = growth_per_s(series, size)
            if rate and place not in self._told and (full_s := at_s + (size - used) / rate) < end_s:
                self._told.add(place)
                found.append(
                    f"the memory of {place} grows by {gigabytes(rate * HOUR_S)} GB an hour, and has "
                    f"{gigabytes(used)} of {gigabytes(size)} GB: full at {clock(full_s)}, before the link ends at "
                    f"{clock(end_s)}"
                )
        return found


def growth_per_s(series: Sequence[tuple[float, float]], size: float) -> float | None:
    """Return the rate at which memory grows, in bytes per second; None if it does not, or is coming to its end.

    series: unix times and used bytes of windows, in their order. size: of the memory, in bytes.
    """
    if len(series) < LEAST_WINDOWS:
        return None
    at_s, used = np.array(series).T
    half = len(at_s) // 2
    rate, earlier, later = (_slope(at_s[part], used[part]) for part in (slice(None), slice(half), slice(half, None)))
    goes_on = earlier > 0 and later > STILL * earlier
    return rate if goes_on and rate * (at_s[-1] - at_s[0]) > LEAST_GROWTH * size else None


def _slope(at_s: np.ndarray, values: np.ndarray) -> float:
    """Return the median slope of all pairs: single windows, such as of a save, do not move it (Theil and Sen)."""
    one, other = np.triu_indices(len(at_s), k=1)
    return float(np.median((values[other] - values[one]) / (at_s[other] - at_s[one])))
