"""The report's section "What the runs used": pictures, and tables of figures, findings and jobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from ddp_ladder.accounting.advice import AccountingTable
from ddp_ladder.common.formats import count
from ddp_ladder.gates.figures import Column, columns
from ddp_ladder.gates.points import ScaleFinding, ScalePoint
from ddp_ladder.records.record import Record
from ddp_ladder.report.traces import DIP_BELOW, Dip
from ddp_ladder.report.usage_across import spreads
from ddp_ladder.report.usage_panels import MOST_LINES, panels
from ddp_ladder.report.usage_plot import run_figure
from ddp_ladder.report.usage_runs import SampledRun
from ddp_ladder.report.usage_scales_plot import scales_figure
from ddp_ladder.settings.terms import REFERENCE_VARIANT

SCALES = "usage_scales"


@dataclass(frozen=True)
class Picture:
    """A picture of the section. name: the stem of its files. caption: what it shows, in words."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class UsageTable:
    """The points whose usage is known, and the columns of which any value is known."""

    columns: tuple[Column, ...]
    points: tuple[ScalePoint, ...]


@dataclass(frozen=True)
class UsageSection:
    """What the section shows. pictures: with their SVG elements. others: files of runs that are not on the page."""

    table: UsageTable
    findings: tuple[tuple[ScaleFinding, list[ScalePoint]], ...] = ()  # each with the points that have it
    pictures: tuple[tuple[Picture, str], ...] = ()
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    jobs: AccountingTable | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to show."""
        return not (self.table.points or self.pictures or self.findings or self.notes or self.jobs)


def usage_table(points: Sequence[ScalePoint]) -> UsageTable:
    """Return the table of what the runs used, at the points with samples (the ranks report their memory)."""
    sampled = [column.key for column in columns("usage") if column.key != "peak_memory_bytes"]
    known = [point for point in points if any(getattr(point, key) is not None for key in sampled)]
    shown = [column for column in columns("usage") if any(getattr(point, column.key) is not None for point in known)]
    return UsageTable(tuple(shown), tuple(known))


def row_name(point: ScalePoint, several_series: bool) -> str:
    """Return ``1x4``, ``1x1 plain`` or, if there are several modes or variants, ``1x4 weak gloo``."""
    return f"{point.scale} plain" if point.is_plain else point.place(several_series)


def kinds_found(point: ScalePoint, runs: Sequence[Record]) -> str:
    """Return the kinds of findings of a point's runs, for its row."""
    if kinds := dict.fromkeys(found.kind for found in point.findings):
        return ", ".join(kinds)
    place = (point.mode, point.variant, point.scale)
    own = [run.usage for run in runs if (run.spec.mode, run.spec.variant, run.spec.scale) == place and run.usage]
    judged = any(usage.nodes and all(node.is_enough for node in usage.nodes) for usage in own)
    return "none" if judged else "too few samples"


def usage_notes(runs: Sequence[Record]) -> tuple[str, ...]:
    """Return what could not be sampled: notes that differ in figures only once, with the first run that has it."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        for note in dict.fromkeys(run.usage.notes if run.usage else ()):
            alike.setdefault(re.sub(r"\d+", "#", note), []).append((run.spec.name, note))
    return tuple(_with_runs(each) for each in alike.values())


def _with_runs(noted: Sequence[tuple[str, str]]) -> str:
    """Return ``vm: no counters (default/weak/1x1/r1 and 3 more runs)``."""
    runs = list(dict.fromkeys(name for name, _ in noted))
    more = f" and {count(len(runs) - 1, 'more run')}" if len(runs) > 1 else ""
    return f"{noted[0][1]} ({runs[0]}{more})"


def is_shown(record: Record, shown: Sequence[Record]) -> bool:
    """Return True if a run's picture belongs on the page: the first repeat with samples of its scale and mode."""
    spec = record.spec
    earlier = {(other.spec.mode, other.spec.scale) for other in shown}
    return spec.variant == REFERENCE_VARIANT and (spec.mode, spec.scale) not in earlier


def scales_picture(runs: Sequence[Record]) -> Picture | None:
    """Return the picture across scales; None if nothing of it is known."""
    found = spreads(runs)
    if not found:
        return None
    places = dict.fromkeys(place for spread in found for place in spread.values)
    scales = list(dict.fromkeys(scale for _, scale in places))
    modes = list(dict.fromkeys(mode for mode, _ in places))
    words = "In the measured time; all repeats together."
    if any(spread.key == "busy" for spread in found):
        words += " GPUs that wait longer as they get more are less busy, and need less power."
    return Picture(SCALES, "All scales", words, scales_figure(found, scales, modes))


def run_picture(run: SampledRun) -> Picture:
    """Return the picture of one run."""
    spec = run.record.spec
    shown = panels(run.nodes)
    found = run.dips if shown and shown[0].key == "busy" else []
    figure = run_figure(shown, run.timeline.spans, run.timeline.epochs_s, found)
    title = (
        f"{spec.scale} {spec.mode}, {'' if spec.variant == REFERENCE_VARIANT else f'{spec.variant}, '}r{spec.repeat}"
    )
    return Picture(file_stem(run.record), title, " ".join(_words(run, found)), figure)


def file_stem(record: Record) -> str:
    """Return ``usage_default_weak_2x4_r1``."""
    return "usage_" + record.spec.name.replace("/", "_")


def _words(run: SampledRun, found: Sequence[Dip]) -> Iterator[str]:
    gpus = sum(len(node.gpus) for node in run.nodes)
    where = count(len(run.nodes), "node")
    yield f"{count(gpus, 'GPU')} on {where}." if gpus else f"{where}, no GPU."
    if gpus > MOST_LINES:
        yield "Bands go from the lowest to the highest of all, with their median as a line."
    if found:
        counts = Counter(dip.phase for dip in found)
        dips = ", ".join(f"{number} {in_phase(phase)}" for phase, number in counts.most_common())
        yield f"Times in which a GPU was busy for less than {100 * DIP_BELOW:.0f}\u00a0%: {dips}."


def in_phase(phase: str) -> str:
    """Return ``in validation``, ``between epochs``."""
    return phase if phase.startswith("between") else f"in {phase}"
