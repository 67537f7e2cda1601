"""The headline: the result of a ladder in one or two sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddp_ladder.common.formats import UNKNOWN, capitalised, count, full_stop, stage_name
from ddp_ladder.gates.figures import AGAINST_PLAIN, EFFICIENCY, SAMPLES_PER_S, SPEEDUP
from ddp_ladder.gates.points import ScalePoint, other_processes
from ddp_ladder.gates.verdict import Finding, Verdict
from ddp_ladder.records.record import SAMPLES_PER_TIME
from ddp_ladder.report.results import LadderResults
from ddp_ladder.settings.terms import REFERENCE_VARIANT

Kind = Literal["reached", "doubtful", "stopped", "failed", "empty"]
PLURALS = {"GPU": "GPUs", "process": "processes"}


@dataclass(frozen=True)
class Headline:
    """The headline of a report: one or two sentences.

    evidence: the figures that show why it stopped. next: what to do; None if there is nothing to do.
    """

    kind: Kind
    text: str
    next: str | None = None
    evidence: tuple[str, ...] = ()


def device_word(results: LadderResults) -> str:
    """Return the unit of a scale: without CUDA a "GPU" is one CPU process."""
    return "GPU" if any(run.device == "cuda" for run in results.plan.runs) else "process"


def headline(results: LadderResults, points: Sequence[ScalePoint]) -> Headline:
    """Return how far the ladder got, or what stopped it and what to do."""
    points = [point for point in points if not point.is_plain]
    closed = next((gate for gate in _in_order(results) if not gate.is_open), None)
    if closed is not None:
        return _stopped(closed, points, device_word(results))
    shown = _furthest(points)
    if shown:
        return _reached(results, points, shown)
    failures = [run.failure for run in results.records.values() if run.failure and run.job and not run.spec.is_plain]
    if failures:
        text = f"Nothing could be measured: {count(len(failures), 'run')} failed."
        return Headline("failed", f"{text} {full_stop(capitalised(failures[0].why))}", failures[0].next)
    if results.unread:
        text = f"What was measured cannot be shown: {count(results.unread, 'record')} cannot be used."
        return Headline("failed", text, "see the warnings, which name each file and what is wrong with it")
    return Headline(
        "empty",
        "Nothing has been measured yet.",
        "run `snakemake --cores all` here, or `snakemake --profile profiles/slurm` on a cluster",
    )


def _in_order(results: LadderResults) -> list[Verdict]:
    return [results.gates[stage] for stage in results.plan.stages if stage in results.gates]


def _stopped(gate: Verdict, points: Sequence[ScalePoint], unit: str) -> Headline:
    several = len({point.mode for point in points}) > 1
    reason = gate.reason or next(iter(gate.failing), None)  # of any variant if the default has none
    why = _why(reason, several) if reason else gate.why or "its file does not say why"
    text = f"Stopped at the gate of {_stage(gate.stage, points)}: {full_stop(why)}"
    evidence = reason.evidence if reason and reason.repeat is None else ()
    before = [point for point in _furthest(points) if point.stage != gate.stage]
    if before:
        text += f" Before it, {_figures(before[0], unit)}."
    return Headline("stopped", text, gate.next or (reason and reason.next) or None, evidence)


def _why(item: Finding, several_modes: bool) -> str:
    place = f"{item.scale} {item.mode}" if several_modes else item.scale
    return f"{place} {item.in_words}, wanted {item.wanted}"


def _furthest(points: Sequence[ScalePoint]) -> list[ScalePoint]:
    """Return the last measured point of each mode, of the reference variant or else of the first."""
    measured = [p for p in points if p.samples_per_s is not None and p.status != "failed"]
    names = [point.variant for point in points]
    reference = REFERENCE_VARIANT if REFERENCE_VARIANT in names else names[0] if names else ""
    chosen = [p for p in measured if p.variant == reference] or measured
    return list({point.mode: point for point in chosen}.values())


def _reached(results: LadderResults, points: Sequence[ScalePoint], shown: Sequence[ScalePoint]) -> Headline:
    stages = results.plan.stages
    stage = max((point.stage for point in shown), key=stages.index)
    several = len({point.mode for point in points}) > 1
    found = [point for point in shown if point.stage == stage]
    unit = device_word(results)
    judged = "reached" if stage in results.gates else "measured, its gate is not judged yet"
    text = f"{capitalised(_stage(stage, points))} {judged}"
    if several:
        text += "".join(f". {capitalised(p.mode)} scaling: {_figures(p, unit)}" for p in found) + "."
    else:
        text += f": {_figures(found[0], unit)}."
    later = stages[stages.index(stage) + 1 :]
    missing = [stage for stage in later if not _ran(stage, points)]
    if missing:
        text += f" {capitalised(stage_name(missing[0]))} has not been run."
    failed = [point for point in points if point.status == "failed"]
    if failed:
        text += f" Runs failed at {_places(failed)}."
    disturbed = other_processes(*found)
    if disturbed:
        text += f" Not measured alone: {full_stop(disturbed.in_words)}"
    doubts = [item for gate in _in_order(results) for item in gate.uncertain(REFERENCE_VARIANT)]
    if doubts:
        text += f" Decided on the estimate alone: {doubts[0].scale} {full_stop(doubts[0].in_words)}"
    doubtful = bool(doubts or disturbed) or any(point.status in ("check", "not comparable") for point in found)
    return Headline("doubtful" if doubtful else "reached", text, disturbed.next if disturbed else None)


def _stage(stage: str, points: Sequence[ScalePoint]) -> str:
    """Return ``stage 3``, with a note if its nodes were simulated."""
    simulated = [point.simulated for point in points if point.stage == stage and point.simulated]
    return stage_name(stage) + (f" ({simulated[-1]})" if simulated else "")


def _ran(stage: str, points: Sequence[ScalePoint]) -> bool:
    return any(point.stage == stage and point.status != "not run" for point in points)


def _places(points: Sequence[ScalePoint]) -> str:
    return ", ".join(dict.fromkeys(f"{point.scale} ({point.variant})" for point in points))


def _figures(point: ScalePoint, unit: str) -> str:
    rate = f"{point.scale} runs at {SAMPLES_PER_S.shown(point)} {SAMPLES_PER_S.heading}"
    if point.statistic == SAMPLES_PER_TIME:
        rate += " (samples / time)"
    if point.is_baseline and point.status != "not comparable":
        return f"{rate} {SAMPLES_PER_S.interval(point)}".rstrip()
    baseline = point.baseline_in_words.replace("GPU", unit)
    if point.efficiency is None:
        return f"{rate}; no efficiency against {baseline} can be given ({point.note})"
    rate_of = "the rate of " if baseline == point.baseline else ""
    efficiency = f"{EFFICIENCY.shown(point)} {EFFICIENCY.heading} {EFFICIENCY.interval(point)}".rstrip()
    text = f"{rate}, {SPEEDUP.shown(point)}x {rate_of}{baseline}, {efficiency}"
    if point.efficiency_plain is not None:
        text += f" ({AGAINST_PLAIN.shown(point)} against the script without DDP)"
    return f"{text}, which is more than the ideal (see its note)" if point.status == "check" else text


def gate_words(gates: Mapping[str, Verdict], point: ScalePoint) -> str:
    """Return ``stage 2 open``; a dash while the gate is not judged."""
    gate = gates.get(point.stage)
    return f"{stage_name(point.stage)} {gate.words_of(point)}" if gate else UNKNOWN
