"""What an application must say against its own figures: simulated nodes, few repeats, what failed or differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.common.formats import capitalised, count, full_stop, in_short
from ddp_ladder.gates.notes import NOTABLE_GAP
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.document import Block
from ddp_ladder.report.scale_notes import scale_names
from ddp_ladder.report.view import ReportView

DOUBTFUL = ("not comparable", "check", "incomplete")


def limits(view: ReportView) -> Block:
    """Return the limits as a list."""
    lines = (*_of_points(view), *_of_runs(view), *_of_site(view))
    return Block(items=tuple(full_stop(line if "/" in line.split()[0] else capitalised(line)) for line in lines))


def _of_points(view: ReportView) -> Iterator[str]:
    measured = [point for point in view.rungs if point.samples_per_s is not None]
    if len(scales := {point.scale for point in measured}) == 1:
        yield f"only {scales.pop()} was measured, which does not show how the training scales"
    for words in dict.fromkeys(point.simulated for point in measured if point.simulated):
        where = _names([point for point in measured if point.simulated == words], view)
        yield f"{where}: {words}, so the network between nodes was not measured"
    if single := [point for point in measured if point.repeats == 1]:
        yield f"one run only at {_names(single, view)}: it shows no differences between runs, so it has no interval"
    if pairs := [point for point in measured if point.repeats == 2]:
        yield f"two runs only at {_names(pairs, view)}: they show little of the differences between runs"
    if drifting := [point for point in measured if abs(point.drift_fraction or 0.0) > NOTABLE_GAP]:
        more = f"by more than {100 * NOTABLE_GAP:.0f} % from the first to the last third of their steps"
        yield f"the speed changed within the runs of {_names(drifting, view)}: {more}"
    for point in measured:
        if point.status in DOUBTFUL:
            yield f"{view.place(point)}: {point.note or point.status}"
    if allowed := [point for point in measured if point.allowed]:
        yield f"differences that were allowed (fingerprint.may_differ): {allowed[-1].allowed}"
    if missing := [point for point in view.rungs if point.status == "not run"]:
        yield f"planned and not measured: {_names(missing, view)}"


def _names(points: Sequence[ScalePoint], view: ReportView) -> str:
    return scale_names(points, view.several_series)


def _of_runs(view: ReportView) -> Iterator[str]:
    for group in view.failures:
        yield f"{count(len(group.runs), 'run')} failed ({in_short(group.runs)}): {group.verdict}"
    for stage in view.stages:
        gate = view.gates.get(stage)
        if gate is not None and not gate.is_open:
            why = gate.why or next((item.in_words for item in gate.failing), "")
            yield f"the gate of {stage} is closed{f': {why}' if why else ''}"
    yield from (warning.partition(" Next: ")[0] for warning in view.results.warnings)  # the page says what to do
    cut = dict.fromkeys(
        f"{name}: {value:g}"
        for run in view.results.plan.runs
        for name, value in (("measure.max_steps", run.max_steps), ("measure.max_seconds", run.max_seconds))
        if value is not None
    )
    if cut:
        yield f"the runs were ended early on purpose ({', '.join(cut)}); they are no whole trainings"
    yield "the figures are of speed; whether a larger global batch needs more epochs was not measured"


def _of_site(view: ReportView) -> Iterator[str]:
    if view.unit != "GPU":
        yield 'this site has no GPU: each "GPU" of a scale is one CPU process'
