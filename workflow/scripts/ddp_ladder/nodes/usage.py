"""What a run used, as its record keeps it, from the samples of its nodes. Pure.

Figures are of the measured training: without warm-up and validation. A figure is null where no sample has it. Memory
and temperature are the highest of the whole run. All are rounded, so that they are the same on every machine.

Samples (nodes/node<k>.csv) are read strictly, but for a last line that a killed agent cut, and compared with ranks of
the same node only: the clocks of two nodes may differ. On a GPU, the end of a step is when the host had launched its
work: the device may be some steps behind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ddp_ladder.common.findings import Finding
from ddp_ladder.common.model import Count, Model, Name, Several
from ddp_ladder.nodes.sampler import FABRIC, THROTTLE_REASONS, TIME, MonitorFile, columns
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


Figure = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, description="0 to 1.")]

SIGNIFICANT_DIGITS = 6  # sums may differ in the last digits of a float from one machine to another
AVERAGED = (
    "cpu_fraction", "training_cpu_cores", "network_received_bytes_per_s", "network_sent_bytes_per_s", *FABRIC,
)  # fmt: skip
LEAST_SAMPLES = 5  # of measured training on a node: fewer show a moment of it
WHOLLY, MOSTLY = 0.9, 0.5
"""A sample counts if this part of its interval is measured training. The second only if there is none of the first:
a sample of which half is validation shows neither of the two."""


class GpuUsage(Model):
    """One GPU."""

    index: Count
    name: Name
    rank: Count | None  # the rank that trained on it; None if none did, or it is not known
    busy_fraction: Fraction | None = Field(description="Share of time in which any kernel ran.")
    memory_used_bytes: Count | None
    memory_bytes: Count | None
    power_w: Figure | None
    energy_j: Figure | None = Field(description="NVML's counter, or the integral of its power.")
    temperature_c: Figure | None
    sm_clock_mhz: Figure | None = Field(description="Median.")
    throttled: Mapping[str, Fraction] | None = Field(
        description="Share of the samples in which each reason lowered the clock; null: the GPU does not report it."
    )


class NodeUsage(Model):
    """One node. Rates are means."""

    node_rank: Count
    node: Name
    samples: Count = Field(description="In the measured training.")
    cpus: Count  # that the agent may use
    cpu_fraction: Fraction | None  # of these
    training_cpu_cores: Figure | None
    interface: Name
    network_received_bytes_per_s: Figure | None
    network_sent_bytes_per_s: Figure | None
    interface_bytes_per_s: Figure | None = Field(description="The rate of the link.")
    fabric_received_bytes_per_s: Figure | None
    fabric_sent_bytes_per_s: Figure | None
    fabric_bytes_per_s: Figure | None = Field(description="The rate of all its ports together.")
    gpus: Several[GpuUsage]

    @property
    def is_enough(self) -> bool:
        """Return True if it has enough samples of the measured training to be judged."""
        return self.samples >= LEAST_SAMPLES

    @property
    def used_gpus(self) -> tuple[GpuUsage, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.rank is not None)


class Usage(Model):
    """What a run used of its nodes, and what is wrong with it. Several agents on one machine sample it each."""

    nodes: Several[NodeUsage] = Field(description="Those with samples.")
    findings: Several[Finding]
    notes: Several[str] = Field(description="Which nodes have no samples, and what they lack, and why.")

    @property
    def gpus(self) -> tuple[GpuUsage, ...]:
        return tuple(gpu for node in self.nodes for gpu in node.used_gpus)

    @property
    def gpu_busy_fraction(self) -> float | None:
        return _mean_of_known(gpu.busy_fraction for gpu in self.gpus)

    @property
    def gpu_power_w(self) -> float | None:
        return _mean_of_known(gpu.power_w for gpu in self.gpus)

    @property
    def cpu_fraction(self) -> float | None:
        return _mean_of_known(node.cpu_fraction for node in self.nodes)

    @property
    def gpu_energy_j(self) -> float | None:
        """Return the energy of the GPUs that were used; None if one is not known."""
        joules = [gpu.energy_j for gpu in self.gpus]
        return sum(filter(None, joules), 0.0) if joules and None not in joules else None


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class RankUse:
    """A rank, its place and what it recorded of itself."""

    rank: int
    local_rank: int
    node_rank: int
    gpu: str | None = None  # the id of its GPU as torch reports it; None without one
    workers: int | None = None  # of its loader; None: not known
    threads: int | None = None  # of torch, within an operator; None: not known


def gpus_of_ranks(about: MonitorFile, ranks: Sequence[RankUse]) -> dict[int, RankUse]:
    """Return the ranks of a node by the index of their GPU: by its UUID or, if torch has none, by the local rank.

    A rank whose UUID none of the sampled GPUs has trained on another one.
    """

    def bare(uuid: str | None) -> str:
        """Return a UUID as torch writes it, without NVML's ``GPU-``. That of a slice has its ``MIG-`` in both."""
        return (uuid or "").removeprefix("GPU-").lower()

    own = [rank for rank in ranks if rank.node_rank == about.node_rank and rank.gpu is not None]
    by_uuid = {bare(gpu.uuid): gpu.index for gpu in about.gpus}
    seen = {by_uuid[bare(rank.gpu)]: rank for rank in own if bare(rank.gpu) in by_uuid}
    without = (rank for rank in own if ":" in (rank.gpu or ""))  # the instrument's words for a device without a UUID
    return seen or {rank.local_rank: rank for rank in without if rank.local_rank < len(about.gpus)}


def measured(samples: NodeSamples, timeline: Timeline) -> NDArray[np.bool_]:
    """Return True for each sample that is of measured training."""
    share = timeline.share_of_training(samples)
    wholly: NDArray[np.bool_] = share >= WHOLLY
    return wholly if wholly.any() else share >= MOSTLY


def node_usage(samples: NodeSamples, timeline: Timeline, ranks: Sequence[RankUse]) -> NodeUsage:
    """Return what the training used of a node. ranks: those of this node; others among them do not matter."""
    about, during = samples.about, measured(samples, timeline)
    rates = [port.bits_per_s for port in about.fabrics]
    of_ranks = gpus_of_ranks(about, ranks)
    return NodeUsage(
        node_rank=about.node_rank,
        node=about.node,
        samples=int(during.sum()),
        cpus=len(about.cpus),
        **{name: _figure(samples.column(name)[during]) for name in AVERAGED},
        interface=about.interface,
        interface_bytes_per_s=about.interface_bits_per_s / 8 if about.interface_bits_per_s else None,
        fabric_bytes_per_s=sum(rate or 0 for rate in rates) / 8 if rates and all(rates) else None,
        gpus=tuple(_gpu_usage(gpu, samples, timeline, during, of_ranks.get(gpu.about.index)) for gpu in samples.gpus),
    )


def _gpu_usage(
    gpu: GpuSamples, samples: NodeSamples, timeline: Timeline, during: NDArray[np.bool_], rank: RankUse | None
) -> GpuUsage:
    about = gpu.about
    return GpuUsage(
        index=about.index,
        name=about.name,
        rank=rank.rank if rank else None,
        busy_fraction=_figure(gpu.columns["busy_fraction"][during]),
        memory_used_bytes=_most(gpu.columns["memory_used_bytes"]),
        memory_bytes=about.memory_bytes,
        power_w=_figure(gpu.columns["power_w"][during]),
        energy_j=_energy_j(gpu, samples.times_s, timeline),
        temperature_c=_figure(gpu.columns["temperature_c"], np.max),
        sm_clock_mhz=_figure(gpu.columns["sm_clock_mhz"][during], np.median),
        throttled=_throttled(gpu, during),
    )


def _throttled(gpu: GpuSamples, during: NDArray[np.bool_]) -> dict[str, float] | None:
    """Return the share of the samples with each reason; None if no sample has them."""
    known = [reasons for k in np.flatnonzero(during) if (reasons := gpu.throttle_reasons[k]) is not None]
    seen = Counter(reason for reasons in known for reason in set(reasons))
    return {reason: _rounded(seen[reason] / len(known)) for reason in sorted(seen)} if known else None


def _energy_j(gpu: GpuSamples, times_s: Values, timeline: Timeline) -> float | None:
    """Return a GPU's energy in the measured training, by its counter or, without one, as the integral of its power."""
    joules, power_w = gpu.columns["energy_j"], gpu.columns["power_w"]
    if len(_known(joules)) < 2:
        known = ~np.isnan(power_w)
        times_s, watts = times_s[known], power_w[known]
        joules = np.cumsum([0.0, *np.diff(times_s) * (watts[1:] + watts[:-1]) / 2])[: len(watts)]
    known = ~np.isnan(joules)
    if known.sum() < 2 or not timeline.measured:
        return None
    joules, times_s = np.maximum.accumulate(joules[known]), times_s[known]
    edges = [(span.begin_s, span.end_s) for span in timeline.measured]
    # Between two samples it grows evenly.
    return _rounded(math.fsum(float(np.diff(np.interp(edge, times_s, joules))[0]) for edge in edges))


def energy_of_gpus_j(samples: NodeSamples, gpus: Collection[int]) -> float | None:
    """Return the energy of these GPUs of a node from its first sample to its last; None if one is not known."""
    own = [gpu for gpu in samples.gpus if gpu.about.index in gpus]
    if not own or len(own) < len(gpus) or not len(samples):
        return None
    whole = Timeline((Span("run", float(samples.times_s[0]), float(samples.times_s[-1])),))
    joules = [_energy_j(gpu, samples.times_s, whole) for gpu in own]
    return None if None in joules else math.fsum(filter(None, joules))


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def _known(values: Values) -> Values:
    return values[~np.isnan(values)]


def _figure(values: Values, of: Callable[[Values], float] = np.mean) -> float | None:
    known = _known(values)
    return _rounded(float(of(known))) if len(known) else None


def _most(values: Values) -> int | None:
    """Return the highest of whole numbers; None if none is known."""
    known = _known(values)
    return int(known.max()) if len(known) else None
