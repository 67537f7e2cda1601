"""The samples of a node (nodes/node<k>.csv) as columns, and what its ranks did when: phases, epochs and steps. Pure.

Samples are read strictly, but for a last line that a killed agent cut. The samples of a node are compared with ranks of
the same node only: the clocks of two nodes may differ. On a GPU, the end of a step is when the host had launched its
work: the device may be some steps behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.nodes.files import THROTTLE_REASONS, TIME, MonitorFile, columns
from ddp_ladder.platform.accelerators import NO_REASON, MonitoredGpu

Values = NDArray[np.float64]

LARGEST_VALUE = 1e18  # bytes per second; sums of larger figures are not exact
SHORTEST_S = 0.05  # shorter interruptions of the training are no spans: samples are further apart


@dataclass(frozen=True)
class GpuSamples:
    """What was sampled of one GPU."""

    about: MonitoredGpu
    columns: Mapping[str, Values]  # by their names without ``gpu<i>_``; nan where the GPU did not report a value
    throttle_reasons: tuple[tuple[str, ...] | None, ...]  # of each sample; None: not reported


@dataclass(frozen=True)
class NodeSamples:
    """What was sampled of a node."""

    about: MonitorFile
    times_s: Values  # unix time by the node's clock: the end of the interval that a sample's rates are over
    columns: Mapping[str, Values]  # by name, without those of its GPUs; nan where a value is not known
    gpus: tuple[GpuSamples, ...]

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def begins_s(self) -> Values:
        """Return the begin of each sample's interval; that of the first has no length."""
        return np.concatenate([self.times_s[:1], self.times_s[:-1]])

    def column(self, name: str) -> Values:
        """Return a column; nan everywhere if there is none."""
        return self.columns.get(name, np.full(len(self), np.nan))


def parse_samples(text: str, about: MonitorFile) -> NodeSamples:
    """Parse the samples of a node. A last line without its end is left out. Raises ValueError."""
    header, *rows = [line.split(",") for line in text[: text.rfind("\n") + 1].splitlines()] or [[]]
    wanted = columns(bool(about.fabrics), len(about.gpus))
    if missing := [name for name in wanted if name not in header]:
        raise ValueError(f"it has no column {missing[0]}")
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a line is incomplete")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(header) if name in wanted}
    values = {name: _numbers(name, cells[name]) for name in wanted if not name.endswith(THROTTLE_REASONS)}
    times_s = values.pop(TIME)
    if np.isnan(times_s).any() or (np.diff(times_s) < 0).any():
        raise ValueError(f"its {TIME} is missing or goes back: was the clock of the node set?")
    gpus = tuple(_gpu(gpu, values, cells) for gpu in about.gpus)
    return NodeSamples(about, times_s, {name: values[name] for name in values if not name.startswith("gpu")}, gpus)


def _numbers(name: str, cells: Sequence[str]) -> Values:
    """Return a column; an empty cell is nan. Raises ValueError."""
    try:
        values = np.array([cell or "nan" for cell in cells], dtype=np.float64)
    except ValueError:
        raise ValueError(f"{name} contains something else than numbers") from None
    is_written = np.array([bool(cell) for cell in cells], dtype=bool)
    if not ((values[is_written] >= 0) & (values[is_written] <= LARGEST_VALUE)).all():
        raise ValueError(f"{name} contains an impossible figure")
    return values


def _gpu(gpu: MonitoredGpu, values: Mapping[str, Values], cells: Mapping[str, Sequence[str]]) -> GpuSamples:
    prefix = f"gpu{gpu.index}_"
    own = {name.removeprefix(prefix): values[name] for name in values if name.startswith(prefix)}
    return GpuSamples(gpu, own, tuple(map(_throttle_reasons, cells[prefix + THROTTLE_REASONS])))


def _throttle_reasons(cell: str) -> tuple[str, ...] | None:
    return None if not cell else () if cell == NO_REASON else tuple(cell.split("+"))


RunPhase = Literal["start-up", "warm-up", "training", "validation", "between epochs", "end", "run"]
"""Start-up lasts until the end of the first step; training is what is measured. run: the phases are not known."""


@dataclass(frozen=True)
class Span:
    """A phase in unix time."""

    phase: RunPhase
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class StepTimes:
    """What a rank recorded of its steps."""

    ended_at_s: Values  # unix time of each row of steps
    step_time_s: Values
    warmup_rows: int  # of the run
    epoch_rows: Sequence[int] = ()  # those with the first step of a pass over training data, counted from 1
    validations_s: Sequence[tuple[float, float]] = ()  # begin and end of each, unix time


@dataclass(frozen=True)
class Timeline:
    """The phases of a run on one node, without gaps."""

    spans: tuple[Span, ...]

    @property
    def is_known(self) -> bool:
        """Return True if it shows the phases of a training."""
        return self.spans[0].phase != "run"

    @property
    def measured(self) -> list[Span]:
        """Return the measured training; without phases, the whole run."""
        return [span for span in self.spans if span.phase in ("training", "run")]

    def share_of_training(self, samples: NodeSamples) -> Values:
        """Return which part of each sample's interval is measured training; without phases, of the whole run."""
        length_s, inside_s = samples.times_s - samples.begins_s, np.zeros(len(samples))
        for span in self.measured:
            inside = np.minimum(samples.times_s, span.end_s) - np.maximum(samples.begins_s, span.begin_s)
            inside_s += np.clip(inside, 0, None)
        return np.divide(inside_s, length_s, out=np.zeros(len(samples)), where=length_s > 0)


def timeline(begin_s: float, end_s: float, steps: StepTimes | None) -> Timeline:
    """Return the timeline of a run between two unix times. steps: of one of its ranks; None if not known."""
    if steps is None or not len(steps.ended_at_s):
        return Timeline((Span("run", begin_s, max(begin_s, end_s)),))
    ends_s = np.maximum.accumulate(steps.ended_at_s)  # a clock may have been set back
    first_s, last_s = float(ends_s[0]), float(ends_s[-1])
    warm_s = float(ends_s[min(max(steps.warmup_rows, 1), len(ends_s)) - 1])
    edges_s = [min(begin_s, first_s), first_s, warm_s, last_s, max(end_s, last_s)]
    phases: tuple[RunPhase, ...] = ("start-up", "warm-up", "training", "end")
    base = [Span(phase, *ends) for phase, ends in zip(phases, pairwise(edges_s), strict=True)]
    whole = Span("run", edges_s[0], edges_s[-1])
    validations = [Span("validation", begin, end) for begin, end in steps.validations_s]
    return Timeline(_painted([whole, *base, *_longer(_pauses(steps, ends_s), first_s), *_longer(validations, first_s)]))


def _pauses(steps: StepTimes, ends_s: Values) -> list[Span]:
    """Return the spans from the last step of an epoch to the begin of the next."""
    firsts = [row - 1 for row in steps.epoch_rows if 1 < row <= len(ends_s)]
    return [Span("between epochs", float(ends_s[k - 1]), float(ends_s[k] - steps.step_time_s[k])) for k in firsts]


def _longer(spans: Sequence[Span], since_s: float) -> list[Span]:
    """Return the spans after ``since_s`` that are long enough to be seen."""
    cut = [Span(span.phase, max(since_s, span.begin_s), span.end_s) for span in spans]
    return [span for span in cut if span.end_s - span.begin_s >= SHORTEST_S]


def _painted(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans as they are seen if later ones cover earlier ones. The first covers the whole time."""
    whole = spans[0]
    edges_s = np.unique([edge for span in spans for edge in (span.begin_s, span.end_s)])
    edges_s = edges_s[(edges_s >= whole.begin_s) & (edges_s <= whole.end_s)]
    seen = [whole.phase] * (len(edges_s) - 1)
    for span in spans[1:]:
        first, after = np.searchsorted(edges_s, [span.begin_s, span.end_s])
        seen[first:after] = [span.phase] * (after - first)
    merged: list[Span] = []
    for phase, begin_s, end_s in zip(seen, edges_s[:-1].tolist(), edges_s[1:].tolist(), strict=True):
        if merged and merged[-1].phase == phase:
            merged[-1] = Span(phase, merged[-1].begin_s, end_s)
        else:
            merged.append(Span(phase, begin_s, end_s))
    return tuple(merged)
