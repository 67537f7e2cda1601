"""The picture of what a run used over time: GPUs, CPUs, network and memory, in the phases of its training.

There is one for each scale: of the first run of the default variant that was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import count
from ddp_ladder.measuring.node_usage import notes_on, read_node_samples, timelines_of
from ddp_ladder.nodes.read import NodeSamples, RunPhase, Timeline, Values
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import Record
from ddp_ladder.report.document import Block
from ddp_ladder.report.plots import COLOURS, GREY, PAPER, STYLE, drawn, legend_key
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale

FOLDER = "usage"
WIDTH_IN, PANEL_IN = 4.4, 0.95  # three beside each other on a screen, one on a phone
BINS = 240  # of time: each shows its lowest, median and highest value
LINES = (*COLOURS, GREY)
LEGEND_CHARACTERS, KEY_CHARACTERS, LEGEND_ROW_IN = 60, 5, 0.17  # of a row, of a line and its gaps; a row's height
MOST_LINES = 8  # GPUs in a panel; more cannot be told apart and become one band
FIRST_RANK = (0,)
MEGA, GIGA = 1e6, 1e9
SHADES: Mapping[RunPhase, str] = {
    "start-up": "#dfe3e8",
    "warm-up": "#fbe9b7",
    "validation": "#c3daf0",
    "between epochs": "#efc9b8",
    "end": "#d9cfe3",
}
TIME_UNITS = ((180.0, 1.0, "s"), (10_800.0, 60.0, "min"), (float("inf"), 3600.0, "h"))  # up to (s), size (s), name


Trace = tuple[Values, Values]  # of a device: unix times, and values, nan where one is not known


@dataclass(frozen=True)
class Chart:
    """One axis of the picture."""

    title: str
    kinds: Mapping[str, Sequence[Trace]]  # of each device, by what the values are
    top: float | None = None  # of the axis; None: the highest value
    of_gpus: bool = False  # its lines are those of the other panels of GPUs, and named once, above all panels


def draw_usage(results: Path, runs: Sequence[Record]) -> tuple[list[Block], dict[str, bytes]]:
    """Return the pictures of one run of each scale with what could not be drawn, and their files by path.

    runs: in the order of the tables.
    """
    pictures: dict[Scale, Block] = {}
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for record in runs:
        spec = record.spec
        if spec.variant != REFERENCE_VARIANT or spec.scale in pictures or not (record.usage and record.usage.nodes):
            continue
        try:
            nodes, timeline = _read(RunRecords(results).directory(spec), record, notes)
        except (OSError, ValueError) as error:
            notes.append(f"{spec.name}: no picture, as its files cannot be read: {error}")
            continue
        if shown := charts(nodes):
            name = f"{FOLDER}/usage_{spec.name.replace('/', '_')}"
            files |= {f"{name}.{kind}": content for kind, content in drawn(usage_figure(shown, timeline)).items()}
            title = f"{spec.scale} {spec.mode}, r{spec.repeat}"
            pictures[spec.scale] = Block(f"What {title} used over time. {_caption(nodes)}", picture=name, style="usage")
    return [*pictures.values(), *([Block(items=tuple(notes), style="notes")] if notes else [])], files


def _read(directory: RunDirectory, record: Record, notes: list[str]) -> tuple[list[NodeSamples], Timeline]:
    """Return the samples of a run's nodes and the timeline of its first node: no record has them.

    Raises OSError or ValueError if its files have been damaged since.
    """
    raw = read_raw_run(directory, FIRST_RANK)  # the others' steps may be many, and are not drawn
    by_node, lacking = read_node_samples(raw)
    nodes = [samples for samples in by_node.values() if len(samples)]
    notes += notes_on(lacking)
    warmup_steps = record.timing.warmup_steps if record.timing else record.spec.warmup_steps
    return nodes, timelines_of(raw, warmup_steps)[nodes[0].about.node_rank if nodes else 0]


def _caption(nodes: Sequence[NodeSamples]) -> str:
    gpus = sum(len(node.gpus) for node in nodes)
    where = count(len(nodes), "node")
    words = f"{count(gpus, 'GPU')} on {where}." if gpus else f"{where}, no GPU."
    return f"{words} Bands go from the lowest to the highest value, lines are medians."


def charts(nodes: Sequence[NodeSamples]) -> list[Chart]:
    """Return the charts of a run from the top; one without any known value is left out."""
    known = (replace(chart, kinds=_known(chart.kinds)) for chart in (*_of_gpus(nodes), *_of_nodes(nodes)))
    return [chart for chart in known if chart.kinds]


def _of_gpus(nodes: Sequence[NodeSamples]) -> Iterator[Chart]:
    several = len(nodes) > 1
    abouts = [gpu.about for node in nodes for gpu in node.gpus]

    def of(quantity: str, size: float = 1.0) -> dict[str, list[Trace]]:
        known = [(node, gpu) for node in nodes for gpu in node.gpus if quantity in gpu.columns]
        traces = [(node.times_s, gpu.columns[quantity] / size) for node, gpu in known]
        if len(known) > MOST_LINES:
            return {f"{len(known)} GPUs": traces}
        names = (f"{node.about.node} " * several + f"GPU {gpu.about.index}" for node, gpu in known)
        return {name: [trace] for name, trace in zip(names, traces, strict=True)}

    memory = max((gpu.memory_bytes or 0 for gpu in abouts), default=0) / GIGA
    limit = max((gpu.power_limit_w or 0 for gpu in abouts), default=0)
    yield Chart("GPU busy (a kernel ran), %", of("busy_fraction", 0.01), 100, of_gpus=True)
    yield Chart(f"GPU memory, GB of {memory:.0f}", of("memory_used_bytes", GIGA), of_gpus=True)
    yield Chart(f"GPU power, W of {limit:.0f}" if limit else "GPU power, W", of("power_w"), of_gpus=True)


def _of_nodes(nodes: Sequence[NodeSamples]) -> Iterator[Chart]:
    def of(size: float, quantities: Mapping[str, str]) -> dict[str, list[Trace]]:
        return {
            kind: [(node.times_s, node.columns[key] / size) for node in nodes if key in node.columns]
            for kind, key in quantities.items()
        }

    yield Chart("CPU, %", of(0.01, {"mean": "cpu_fraction", "busiest": "cpu_busiest_fraction"}), 100)
    for title, name in (("Network", "network"), ("IB or Slingshot", "fabric")):
        rates = {"received": f"{name}_received_bytes_per_s", "sent": f"{name}_sent_bytes_per_s"}
        yield Chart(f"{title}, MB/s", of(MEGA, rates))
    memory = max((node.about.memory_bytes or 0 for node in nodes), default=0) / GIGA
    used = {"training": "training_rss_bytes", "whole node": "node_memory_used_bytes"}
    yield Chart(f"Host memory, GB of {memory:.0f}", of(GIGA, used))


def _known(kinds: Mapping[str, Sequence[Trace]]) -> dict[str, list[Trace]]:
    known = {kind: [trace for trace in traces if not np.isnan(trace[1]).all()] for kind, traces in kinds.items()}
    return {kind: traces for kind, traces in known.items() if traces}


def usage_figure(shown: Sequence[Chart], timeline: Timeline) -> Figure:
    """Return the panels below each other on one axis of time, with the phases of the training shaded."""
    begins_s = [times_s[0] for chart in shown for traces in chart.kinds.values() for times_s, _ in traces]
    begin_s = min(*begins_s, timeline.spans[0].begin_s)
    end_s = max(span.end_s for span in timeline.spans)
    size_s, unit = next((size, name) for most, size, name in TIME_UNITS if end_s - begin_s <= most)
    with rc_context(STYLE):
        gpus = next((chart.kinds for chart in shown if chart.of_gpus and len(chart.kinds) > 1), {})
        columns = max(1, min(4, LEGEND_CHARACTERS // (KEY_CHARACTERS + max(map(len, gpus), default=0))))
        height_in = 0.9 + PANEL_IN * len(shown) + LEGEND_ROW_IN * (len(gpus) // columns)
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained", facecolor=PAPER)
        axes = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
        shaded = [span for span in timeline.spans if span.phase in SHADES]
        for chart, own in zip(shown, axes, strict=True):
            _draw(own, chart, begin_s, size_s)
            for span in shaded:
                ends = ((span.begin_s - begin_s) / size_s, (span.end_s - begin_s) / size_s)
                own.axvspan(*ends, color=SHADES[span.phase], linewidth=0, zorder=0)
        axes[-1].set_xlim(0, (end_s - begin_s) / size_s)
        axes[-1].set_xlabel(f"time since the start of the run, {unit}")
        phases = {span.phase for span in shaded}
        style: dict[str, Any] = {"edgecolor": GREY, "linewidth": 0.4}
        keys: list[Artist] = [
            Patch(facecolor=SHADES[phase], label=phase, **style) for phase in SHADES if phase in phases
        ]
        keys += [legend_key(gpu, color=colour, linewidth=1.5) for gpu, colour in zip(gpus, LINES, strict=False)]
        figure.legend(handles=keys, loc="outside upper left", ncols=columns, columnspacing=0.9, handlelength=1.1)
    return figure


def _draw(axes: Axes, chart: Chart, begin_s: float, size_s: float) -> None:
    keys, highest = [], 0.0
    for (kind, traces), colour in zip(chart.kinds.items(), LINES, strict=False):
        times_s, low, median, high = in_bins(traces)
        times = (times_s - begin_s) / size_s
        axes.fill_between(times, low, high, color=colour, alpha=0.28, linewidth=0, zorder=2)
        axes.plot(times, median, color=colour, linewidth=1.0, zorder=3)
        keys.append(legend_key(kind, color=colour, linewidth=1.5))
        highest = max(highest, np.nanmax(high))
    axes.set_ylim(0, 1.05 * (chart.top or highest or 1.0))
    axes.set_title(chart.title)
    axes.locator_params(axis="y", nbins=3)
    axes.grid(visible=True, axis="y")
    if len(keys) > 1 and not chart.of_gpus:
        style = {"ncols": 4, "handlelength": 1.1, "columnspacing": 0.8, "borderaxespad": 0, "fontsize": 8}
        axes.legend(handles=keys, loc="lower right", bbox_to_anchor=(1.0, 1.02), **style)


def in_bins(traces: Sequence[Trace]) -> tuple[Values, Values, Values, Values]:
    """Return the middle of each bin of time, and the lowest, the median and the highest of all traces in it.

    No peak and no dip is lost; nan where no value of a bin is known.
    """
    import pandas as pd  # half a second, which a report without pictures of samples need not pay

    times_s, values = map(np.concatenate, zip(*traces, strict=True))
    bins = min(BINS, max(len(own_s) for own_s, _ in traces))
    begin_s = times_s.min()
    width_s = (times_s.max() - begin_s) / bins or 1.0
    bin_of = np.minimum((times_s - begin_s) // width_s, bins - 1)
    binned = pd.Series(values).groupby(begin_s + width_s * (bin_of + 0.5)).agg(["min", "median", "max"])
    low, median, high = binned.to_numpy().T
    return binned.index.to_numpy(), low, median, high
