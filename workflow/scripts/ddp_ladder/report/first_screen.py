"""What the first screen of the page shows beside the verdict: each gate in a line, what to ask for, folded tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ddp_ladder.analysis.cost import PickKind
from ddp_ladder.common.formats import capitalised, count, full_stop, stage_name
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S
from ddp_ladder.gates.verdict import Finding, Verdict
from ddp_ladder.report.prediction_section import PredictionSection
from ddp_ladder.report.scaling_section import ScalingSection
from ddp_ladder.report.view import ReportView, Series
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale

RECOMMENDED: PickKind = "recommended"
MOST_OPEN = 2  # tables of variants; with more of them all but the first of each mode are closed


@dataclass(frozen=True)
class GateCard:
    """A gate in a line. kind: its CSS classes. why: what decided it, or what the stage would measure."""

    stage: str
    kind: str
    verdict: str
    why: str


@dataclass(frozen=True)
class FoldedSeries:
    """A table of scales. summary: what stands for it while it is closed; empty if it is open."""

    series: Series
    summary: str


def gate_cards(view: ReportView) -> tuple[GateCard, ...]:
    """Return a line for each stage of the plan, in climbing order."""
    return tuple(_card(stage, view.gates.get(stage), view) for stage in view.stages)


def _card(stage: str, gate: Verdict | None, view: ReportView) -> GateCard:
    name = stage_name(stage)
    if gate is None:
        scales = dict.fromkeys(str(point.scale) for point in view.rungs if point.stage == stage)
        return GateCard(name, "waiting", "not judged", ", ".join(scales))
    doubts = gate.uncertain(REFERENCE_VARIANT)
    kind = f"{gate.verdict}{' uncertain' if doubts else ''}"
    verdict = f"{gate.verdict}{' (uncertain)' if doubts else ''}"
    decided = doubts[0] if doubts else _deciding(gate)
    return GateCard(name, kind, verdict, _in_a_line(decided) if decided else _without_threshold(gate))


def _deciding(gate: Verdict) -> Finding | None:
    """Return what closes the gate, or the threshold that its largest scale met."""
    if not gate.is_open:
        return gate.reason or next(iter(gate.failing), None)
    met = [item for item in gate.worth_showing if item.ok and item.variant == REFERENCE_VARIANT]
    return max(met, key=lambda item: Scale.parse(item.scale).world_size, default=None)


def _in_a_line(item: Finding) -> str:
    """Return the figure and the threshold alone; the headline has the rest of what closes a gate."""
    return f"{item.scale}: {item.in_words.partition('; ')[0]}, wanted {item.wanted.partition(' (')[0]}"


def _without_threshold(gate: Verdict) -> str:
    return gate.why or f"{count(gate.sane_runs, 'run')} passed every sanity check"


def recommendations(scaling: ScalingSection, prediction: PredictionSection) -> tuple[tuple[str, str], ...]:
    """Return what to ask for, the recommended scale first: (what it is, the figures)."""
    lines = sorted(map(_kind_and_figures, scaling.notes), key=lambda line: RECOMMENDED not in line[0].lower())
    return (*lines, *(("", full_stop(capitalised(sentence))) for sentence in prediction.sentences))


def _kind_and_figures(note: str) -> tuple[str, str]:
    """Return ``("Fastest and recommended", "8x4 ...")``; a note that does not name a scale has no kind."""
    kind, colon, figures = note.partition(": ")
    is_pick = colon and set(kind.lower().split()) <= {*get_args(PickKind), "and"}
    return (kind, figures) if is_pick else ("", note)


def folded_series(series: Sequence[Series]) -> tuple[FoldedSeries, ...]:
    """Return the tables of scales: the first of each mode open, the others closed if there are many variants."""
    modes_seen: set[str] = set()
    shown = []
    variants = {point.variant for each in series for point in each.points if not point.is_plain}
    for each in series:
        mode = each.points[0].mode
        is_first = mode not in modes_seen
        modes_seen.add(mode)
        shown.append(FoldedSeries(each, "" if is_first or len(variants) <= MOST_OPEN else _summary(each)))
    return tuple(shown)


def tables_of_others(closed: int) -> str:
    """Return the words for tables that are closed together."""
    return f"{capitalised(count(closed, 'more table'))} of other variants"


def _summary(series: Series) -> str:
    """Return ``Weak scaling, variant gloo: 2x4 runs at 1,720 samples/s, 72 % efficiency``."""
    measured = [point for point in series.points if point.samples_per_s is not None]
    if not measured:
        return f"{series.title}: nothing measured"
    largest = max(measured, key=lambda point: point.world_size)
    words = f"{series.title}: {largest.scale} runs at {SAMPLES_PER_S.shown(largest)} {SAMPLES_PER_S.heading}"
    if largest.efficiency is None:
        return words
    return f"{words}, {EFFICIENCY.shown(largest)} {EFFICIENCY.heading}"
