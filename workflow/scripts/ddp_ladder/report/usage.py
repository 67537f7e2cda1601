"""The picture of what a run used over time: GPUs, CPUs, network and memory, in the phases of its training.

There is one for each scale: of the first repeat of the default variant that was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import count
from ddp_ladder.nodes.read import NodeSamples, Phase, Timeline, Values
from ddp_ladder.records.node_usage import read_node_samples, timelines_of
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.records.statistic import Warmup
from ddp_ladder.report.plots import COLOURS, GREY, INK, PAPER, STYLE, drawn, legend_key
from ddp_ladder.report.sections import Picture, Usage
from ddp_ladder.settings.terms import REFERENCE_VARIANT

FOLDER = "usage"
WIDTH_IN, PANEL_IN = 4.4, 0.95  # three beside each other on a screen, one on a phone
BINS = 240  # of time: each keeps its lowest and its highest value
MOST_LINES = 8  # in a panel; more cannot be told apart and become a band
FIRST_RANK = (0,)
GIGA = 1e9
SHADES: Mapping[Phase, str] = {
    "start-up": "#dfe3e8",
    "end": "#dfe3e8",
    "warm-up": "#fbe9b7",
    "validation": "#c3daf0",
    "between epochs": "#efc9b8",
}
TIME_UNITS = ((180.0, 1.0, "s"), (10_800.0, 60.0, "min"), (float("inf"), 3600.0, "h"))  # up to (s), size (s), name
RATES = ((GIGA, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "bytes/s"))


@dataclass(frozen=True)
class Trace:
    """One quantity of one device over time. values: nan where it is not known."""

    times_s: Values
    values: Values


@dataclass(frozen=True)
class Panel:
    """One axis of the picture: the traces of each kind, and a limit that they are seen against. top: None is free."""

    title: str
    kinds: Mapping[str, Sequence[Trace]]
    top: float | None = None
    limit: tuple[str, float] | None = None


def draw_usage(results: Path, runs: Sequence[Record]) -> tuple[Usage, dict[str, bytes]]:
    """Return the pictures of one run of each scale, and their files by path. runs: in the order of the tables."""
    pictures, files = [], {}
    notes: list[str] = []
    seen: set[tuple[str, str]] = set()
    for record in runs:
        spec = record.spec
        place = (spec.mode, str(spec.scale))
        if spec.variant != REFERENCE_VARIANT or place in seen or record.usage is None or not record.usage.nodes:
            continue
        try:
            found = _read(RunRecords(results).directory(spec), record, notes)
        except (OSError, ValueError) as error:
            notes.append(f"{spec.name}: no picture, as its files cannot be read: {error}")
            continue
        if found is None or not (shown := panels(found[0])):
            continue
        seen.add(place)
        name = f"{FOLDER}/usage_{spec.name.replace('/', '_')}"
        files.update({f"{name}.{kind}": content for kind, content in drawn(usage_figure(shown, found[1])).items()})
        pictures.append(Picture(name, f"{spec.scale} {spec.mode}, r{spec.repeat}", _caption(found[0])))
    return Usage(tuple(pictures), tuple(notes)), files


def _read(directory: RunDirectory, record: Record, notes: list[str]) -> tuple[list[NodeSamples], Timeline] | None:
    """Return the samples of a run's nodes and the timeline of its first node; None if there are none: see ``notes``.

    Raises OSError or ValueError if its files have been damaged since.
    """
    raw = read_raw_run(directory, FIRST_RANK)  # the others' steps may be many, and are not drawn
    nodes = [samples for samples in read_node_samples(raw, directory, notes).values() if len(samples)]
    if not nodes:
        return None
    warmup = record.timing.warmup_steps if record.timing else record.spec.warmup_steps
    return nodes, timelines_of(raw, Warmup(warmup, stable=True))[nodes[0].about.node_rank]


def _caption(nodes: Sequence[NodeSamples]) -> str:
    gpus = sum(len(node.gpus) for node in nodes)
    where = count(len(nodes), "node")
    words = f"{count(gpus, 'GPU')} on {where}." if gpus else f"{where}, no GPU."
    bands = "Bands go from the lowest to the highest of all, with their median as a line."
    return f"{words} {bands}" if gpus > MOST_LINES or len(nodes) > MOST_LINES else words


def panels(nodes: Sequence[NodeSamples]) -> list[Panel]:
    """Return the panels of a run from the top; one without any known value is left out."""
    return [panel for panel in (*_of_gpus(nodes), *_of_nodes(nodes)) if panel.kinds]


def _of_gpus(nodes: Sequence[NodeSamples]) -> Iterator[Panel]:
    several = len(nodes) > 1
    abouts = [gpu.about for node in nodes for gpu in node.gpus]

    def of(quantity: str, size: float = 1.0) -> dict[str, list[Trace]]:
        traces = {
            f"{node.about.node} GPU {gpu.about.index}" if several else f"GPU {gpu.about.index}": [
                Trace(node.times_s, gpu.columns[quantity] / size)
            ]
            for node in nodes
            for gpu in node.gpus
            if quantity in gpu.columns
        }
        if len(traces) > MOST_LINES:
            traces = {f"{len(traces)} GPUs": [trace for each in traces.values() for trace in each]}
        return _known(traces)

    yield Panel("GPU busy (a kernel ran), %", of("busy_fraction", 0.01), 100)
    memory = _same("memory", [gpu.memory_bytes for gpu in abouts])
    yield Panel("GPU memory, GB", of("memory_used_bytes", GIGA), limit=memory and (memory[0], memory[1] / GIGA))
    yield Panel("GPU power, W", of("power_w"), limit=_same("limit", [gpu.power_limit_w for gpu in abouts]))


def _of_nodes(nodes: Sequence[NodeSamples]) -> Iterator[Panel]:
    def of(size: float, quantities: Mapping[str, str]) -> dict[str, list[Trace]]:
        return _known(
            {
                kind: [Trace(node.times_s, node.columns[quantity] / size) for node in nodes if quantity in node.columns]
                for kind, quantity in quantities.items()
            }
        )

    yield Panel("CPU, %", of(0.01, {"mean": "cpu_fraction", "busiest": "cpu_busiest_fraction"}), 100)
    for title, name in (("Network", "network"), ("IB or Slingshot", "fabric")):
        columns = {"received": f"{name}_received_bytes_per_s", "sent": f"{name}_sent_bytes_per_s"}
        highest = max((np.nanmax(t.values) for each in of(1.0, columns).values() for t in each), default=0.0)
        size, unit = next((each for each in RATES if highest >= each[0]), RATES[-1])
        yield Panel(f"{title}, {unit}", of(size, columns))
    memory = of(GIGA, {"training": "training_rss_bytes", "whole node": "node_memory_used_bytes"})
    limit = _same("node", [node.about.memory_bytes for node in nodes])
    yield Panel("Host memory, GB", memory, limit=limit and (limit[0], limit[1] / GIGA))


def _known(kinds: Mapping[str, Sequence[Trace]]) -> dict[str, list[Trace]]:
    known = {kind: [each for each in traces if np.isfinite(each.values).any()] for kind, traces in kinds.items()}
    return {kind: traces for kind, traces in known.items() if traces}


def _same(name: str, values: Sequence[float | None]) -> tuple[str, float] | None:
    """Return a limit if it is the same for all devices."""
    return (name, float(values[0])) if values and values[0] and len(set(values)) == 1 else None


def usage_figure(shown: Sequence[Panel], timeline: Timeline) -> Figure:
    """Return the panels below each other on one axis of time, with the phases of the training shaded."""
    begin_s = min(
        [t.times_s[0] for p in shown for each in p.kinds.values() for t in each] + [timeline.spans[0].begin_s]
    )
    end_s = max(span.end_s for span in timeline.spans)
    size_s, unit = next((size, name) for most, size, name in TIME_UNITS if end_s - begin_s <= most)
    with rc_context(STYLE):
        height_in = 0.9 + PANEL_IN * len(shown)
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained", facecolor=PAPER)
        axes = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
        for panel, each in zip(shown, axes, strict=True):
            _draw(each, panel, begin_s, size_s)
            for span in timeline.spans:
                if colour := SHADES.get(span.phase):
                    ends = ((span.begin_s - begin_s) / size_s, (span.end_s - begin_s) / size_s)
                    each.axvspan(*ends, color=colour, linewidth=0, zorder=0)
        axes[-1].set_xlim(0, (end_s - begin_s) / size_s)
        axes[-1].set_xlabel(f"time since the start of the run, {unit}")
        phases = {span.phase for span in timeline.spans}
        keys = [
            Patch(facecolor=colour, edgecolor=GREY, linewidth=0.4, label=phase)
            for phase, colour in SHADES.items()
            if phase in phases and phase != "end"
        ]
        figure.legend(handles=keys, loc="outside upper left", ncols=4, columnspacing=0.9, handlelength=1.1)
    return figure


def _draw(axes: Axes, panel: Panel, begin_s: float, size_s: float) -> None:
    keys = []
    for (kind, traces), colour in zip(panel.kinds.items(), (*COLOURS, GREY), strict=False):
        if len(traces) > 1:
            times, low, middle, high = band(traces)
            axes.fill_between((times - begin_s) / size_s, low, high, color=colour, alpha=0.28, linewidth=0, zorder=2)
        else:
            times, middle = downsampled(traces[0])
        axes.plot((times - begin_s) / size_s, middle, color=colour, linewidth=1.0, zorder=3)
        keys.append(legend_key(kind, color=colour, linewidth=1.5))
    highest = max(float(np.nanmax(trace.values)) for traces in panel.kinds.values() for trace in traces)
    limit = panel.limit if panel.limit and highest >= 0.25 * panel.limit[1] else None  # far above, it flattens all
    if limit:
        axes.axhline(limit[1], color=INK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1.5)
        keys.append(legend_key(limit[0], color=INK, linewidth=0.8, linestyle=(0, (4, 2))))
    axes.set_ylim(0, 1.05 * (panel.top or max(highest, limit[1] if limit else 0.0) or 1.0))
    axes.set_title(panel.title)
    axes.locator_params(axis="y", nbins=3)
    axes.grid(visible=True, axis="y")
    if len(keys) > 1:
        style = {"ncols": 4, "handlelength": 1.1, "columnspacing": 0.8, "borderaxespad": 0, "fontsize": 8}
        axes.legend(handles=keys, loc="lower right", bbox_to_anchor=(1.0, 1.02), **style)


def downsampled(trace: Trace) -> tuple[Values, Values]:
    """Return a trace as at most 2 x BINS points: the lowest and the highest value of each bin, at their own times.

    So no peak and no dip is lost. A bin without a known value is a gap in the line.
    """
    if len(trace.times_s) <= 2 * BINS:
        return trace.times_s, trace.values
    width = -(-len(trace.times_s) // BINS)
    kept = set()
    for first in range(0, len(trace.times_s), width):
        values = trace.values[first : first + width]
        if np.isfinite(values).any():
            kept |= {first + int(np.nanargmin(values)), first + int(np.nanargmax(values))}
        else:
            kept.add(first)
    places = sorted(kept)
    return trace.times_s[places], trace.values[places]


def band(traces: Sequence[Trace]) -> tuple[Values, Values, Values, Values]:
    """Return times, and the lowest, the median and the highest value of all traces in each bin of time."""
    begin_s = min(trace.times_s[0] for trace in traces)
    end_s = max(trace.times_s[-1] for trace in traces)
    bins = max(1, min(BINS, max(len(trace.times_s) for trace in traces)))
    width_s = (end_s - begin_s) / bins or 1.0
    found: list[list[float]] = [[] for _ in range(bins)]
    for trace in traces:
        for time_s, value in zip(trace.times_s, trace.values, strict=True):
            if np.isfinite(value):
                found[min(int((time_s - begin_s) / width_s), bins - 1)].append(float(value))
    kept = [(begin_s + width_s * (k + 0.5), values) for k, values in enumerate(found) if values]
    statistics = [(time_s, min(values), float(np.median(values)), max(values)) for time_s, values in kept]
    times, low, middle, high = np.array(statistics).T
    return times, low, middle, high
