"""The picture of a ladder: the texts of a live view by their importance, without layout. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import count, duration, percent, significant, stage_name
from ddp_ladder.gates.figures import EFFICIENCY
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.verdict import SANITY, Verdict
from ddp_ladder.live.notes import notes_on
from ddp_ladder.live.samples import NodeSample
from ddp_ladder.live.scale_words import Mood, job_words
from ddp_ladder.live.state import LadderState, RunState, ScaleState
from ddp_ladder.run.progress import state as steps_of
from ddp_ladder.settings.terms import REFERENCE_VARIANT

STALE_S = 15.0  # a node whose last sample is older is marked
QUIET_S = 20.0  # without a new step, the progress shows since when


@dataclass(frozen=True)
class StageRow:
    """A stage and its gate. word: open, closed, or not yet."""

    name: str
    word: str
    text: str
    mood: Mood


@dataclass(frozen=True)
class ScaleRow:
    """A scale; rate and efficiency are empty while they are unknown."""

    name: str
    runs: str
    text: str
    mood: Mood
    rate: str = ""
    efficiency: str = ""


@dataclass(frozen=True)
class NodeRow:
    """What a node does now; gpu figures are the mean of its GPUs, memory that of the fullest, power the sum."""

    node: str
    cpu: str
    busiest: str
    gpu: str
    gpu_memory: str
    power: str
    age: str
    is_stale: bool
    busy_fraction: float  # of its GPUs, or else of its CPUs


@dataclass(frozen=True)
class RunRow:
    """The run that a scale's job executes. fraction: of its steps; None if their number is unknown."""

    name: str
    place: str
    text: str
    fraction: float | None
    nodes: tuple[NodeRow, ...]
    all_nodes: NodeRow | None  # their means; None for a single one

    @property
    def has_gpus(self) -> bool:
        return any(node.gpu or node.gpu_memory or node.power for node in self.nodes)


@dataclass(frozen=True)
class Picture:
    """Everything that a view shows; the layout decides what of it fits."""

    title: str
    clock: str
    results: str
    start: str
    stages: tuple[StageRow, ...]
    scales: tuple[ScaleRow, ...]
    running: tuple[RunRow, ...]
    notes: tuple[str, ...]
    report: str


def picture_of(state: LadderState) -> Picture:
    """Return the picture of a ladder whose plan is there."""
    assert state.plan is not None
    scripts = dict.fromkeys(spec.script for spec in state.plan.runs)
    return Picture(
        title=f"{', '.join(scripts)} on {state.plan.site}",
        clock=time.strftime("%H:%M:%S", time.localtime(state.now_s)),
        results=str(state.results.absolute()),
        start=start_words(state),
        stages=tuple(_stage(state, stage) for stage in state.plan.stages),
        scales=tuple(_scale(state, scale) for scale in state.scales),
        running=tuple(_run(state, scale, run) for scale in state.scales if (run := scale.running)),
        notes=tuple(notes_on(state)),
        report=report_words(state),
    )


def report_words(state: LadderState) -> str:
    """Return where the report is; empty while there is none."""
    return f"report: {state.results.absolute() / 'report/index.html'}" if state.has_report else ""


def start_words(state: LadderState) -> str:
    """Return who climbs since when, or which start was the last."""
    if state.start is not None:
        process = state.start.process
        who = f"{state.start.user}, process {process.pid} on {process.host}, since {state.start.since}"
        if state.is_alive is False:
            return f"killed: the start of {who}"
        return f"{who} ({duration(state.now_s - state.start.since_s)})"
    if state.last is not None:
        return f"none at work; the last one: {state.last.user} on {state.last.process.host}, {state.last.since}"
    return "none at work"


def _stage(state: LadderState, stage: str) -> StageRow:
    verdict = state.gates.get(stage)
    if verdict is None:
        return StageRow(stage_name(stage), "not yet", f"wanted: {_wanted(state, stage)}", "plain")
    if verdict.is_open:
        return StageRow(stage_name(stage), "open", _measured(verdict), "good")
    text = f"{verdict.why}; wanted {verdict.wanted}" if verdict.wanted else str(verdict.why)
    return StageRow(stage_name(stage), "CLOSED", _without_key(text), "bad")


def _wanted(state: LadderState, stage: str) -> str:
    assert state.plan is not None
    gate = state.plan.gates.get(stage)
    wanted = ["good runs"]
    if gate is not None and gate.min_efficiency is not None:
        wanted.append(f"efficiency at least {percent(gate.min_efficiency)}")
    if gate is not None and gate.min_samples_per_s is not None:
        wanted.append(f"at least {significant(gate.min_samples_per_s)} samples/s")
    return ", ".join(wanted)


def _measured(verdict: Verdict) -> str:
    """Return the threshold that the largest scale has passed, or how many runs were good."""
    judged = [item for item in verdict.judged if item.check in ("efficiency", "throughput") and item.ok]
    own = [item for item in judged if item.variant == REFERENCE_VARIANT]
    if own:
        return _without_key(f"{own[-1].scale} {own[-1].measured}, wanted {own[-1].wanted}")
    good = sum(item.check == SANITY for item in verdict.judged)
    return count(good, "good run")


def _without_key(text: str) -> str:
    """Return a text without the keys of config.yaml and the intervals: they are in the report."""
    return re.sub(r" \((?:95 % interval|stages\.)[^)]*\)", "", text)


def _scale(state: LadderState, scale: ScaleState) -> ScaleRow:
    text, mood = job_words(state, scale)
    point = _point(state, scale)
    rate = f"{significant(point.samples_per_s)}" if point and point.samples_per_s else ""
    efficiency = EFFICIENCY.shown(point) if point and point.efficiency else ""
    return ScaleRow(scale.name, f"{len(scale.ended)}/{len(scale.runs)}", text, mood, rate, efficiency)


def _point(state: LadderState, scale: ScaleState) -> ScalePoint | None:
    """Return the figures of the reference variant, or else of the first, in the first mode."""
    points = [point for point in state.points if point.scale == scale.job.scale and point.samples_per_s]
    reference = [point for point in points if point.variant == REFERENCE_VARIANT]
    return next(iter(reference or points), None)


def _run(state: LadderState, scale: ScaleState, run: RunState) -> RunRow:
    spec, progress = run.spec, run.progress
    total = run.expected.total(progress) if run.expected else None
    text = steps_of(progress, run.expected, state.left_at_most_s(scale)) if run.expected else "starting"
    since_s = state.now_s - float((progress or {}).get("updated_at_s") or state.now_s)
    if since_s > QUIET_S:
        text += f"; no news for {duration(since_s)}"
    place = f"run {scale.runs.index(run) + 1} of {len(scale.runs)}"
    fraction = progress["step"] / total.steps if progress and total else None
    name = f"{scale.name} {spec.variant}/{spec.mode}/r{spec.repeat}"
    nodes = tuple(node_row(sample, state.now_s) for sample in run.samples)
    return RunRow(name, place, text, fraction, nodes, _all_nodes(run.samples, state.now_s))


def node_row(sample: NodeSample, now_s: float) -> NodeRow:
    """Return a node's figures as texts; an unknown one is empty."""
    busy = [gpu.busy_fraction for gpu in sample.gpus if gpu.busy_fraction is not None]
    memory = [gpu.memory_used_bytes for gpu in sample.gpus if gpu.memory_used_bytes is not None]
    power = [gpu.power_w for gpu in sample.gpus if gpu.power_w is not None]
    age_s = max(0.0, now_s - sample.time_s)
    return NodeRow(
        node=sample.node,
        cpu=_share(sample.cpu_fraction),
        busiest=_share(sample.cpu_busiest_fraction),
        gpu=_share(sum(busy) / len(busy)) if busy else "",
        gpu_memory=f"{max(memory) / 1e9:.1f} GB" if memory else "",
        power=f"{sum(power):.0f} W" if power else "",
        age=f"{duration(age_s)} ago",
        is_stale=age_s > STALE_S,
        busy_fraction=sum(busy) / len(busy) if busy else sample.cpu_fraction or 0.0,
    )


def _all_nodes(samples: Sequence[NodeSample], now_s: float) -> NodeRow | None:
    """Return one row for several nodes: means, the busiest CPU, the fullest GPU, the power of all, the oldest time."""
    if len(samples) < 2:
        return None
    cpus = [sample.cpu_fraction for sample in samples if sample.cpu_fraction is not None]
    busiest = [sample.cpu_busiest_fraction for sample in samples if sample.cpu_busiest_fraction is not None]
    together = NodeSample(
        node=f"all {len(samples)} nodes",
        time_s=min(sample.time_s for sample in samples),
        cpu_fraction=sum(cpus) / len(cpus) if cpus else None,
        cpu_busiest_fraction=max(busiest, default=None),
        gpus=tuple(gpu for sample in samples for gpu in sample.gpus),
    )
    return node_row(together, now_s)


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)
