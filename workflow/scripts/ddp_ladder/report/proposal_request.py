"""The justification of the requested hours: what a training takes at the scale that is asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.accounting.advice import accounting_table
from ddp_ladder.analysis.cost import Pick, Work, picks
from ddp_ladder.analysis.prediction import Prediction
from ddp_ladder.common.formats import capitalised, duration, full_stop
from ddp_ladder.gates.figures import GPU_HOURS, GPU_HOURS_TO_SOLUTION
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.document import Block
from ddp_ladder.report.escape import blank
from ddp_ladder.report.prediction_section import PredictionSection
from ddp_ladder.report.view import ReportView

SOURCE = "scaling.csv: gpu_hours_per_million_samples, hours_to_solution, wall_hours_to_solution, gpu_hours_to_solution"


def request(view: ReportView, prediction: PredictionSection, series: Sequence[Sequence[ScalePoint]]) -> Iterator[Block]:
    """Yield what is asked for, why that scale, and what is expected beyond it."""
    for points in series:
        chosen = _chosen(points, view)
        if chosen is None:
            yield Block(
                f"No {points[0].mode} scale can be recommended, as none compares with a smaller one. "
                + blank("the scale to ask for, and why")
            )
            continue
        yield Block(" ".join(_request(chosen, points[0].mode, view)), source=SOURCE)
    for at in prediction.outlooks:
        if words := _beyond(at, view):
            yield Block(words, source="from scaling.csv, see docs/prediction.md")
    if view.results.jobs:
        totals = accounting_table(view.results.plan, view.results.jobs).totals
        yield Block(f"These measurements themselves: {full_stop(totals)}", source="accounting.csv")


def _chosen(points: Sequence[ScalePoint], view: ReportView) -> Pick | None:
    """Return the recommended scale, or else the cheapest."""
    found = {pick.kind: pick for pick in picks(points, view.thresholds)}
    return found.get("recommended") or found.get("cheapest")


def _request(pick: Pick, mode: str, view: ReportView) -> Iterator[str]:
    point, work = pick.point, view.results.work
    yield f"{capitalised(mode)} scaling: jobs of {point.scale} are requested, {pick.rule}."
    if pick.kind != "recommended":
        yield "No scale reaches the efficiency that is asked for, so this is the cheapest."
    hours, per_node = GPU_HOURS_TO_SOLUTION, point.gpus_per_node
    if point.gpu_hours_to_solution is None or point.hours_to_solution is None:
        yield f"A million samples take {GPU_HOURS.shown(point)} {view.unit} hours there."
        yield blank(f"the samples of one training, the number of trainings, and the {view.unit} hours that follow")
        return
    yield (
        f"One training of {_amount(work)} takes {duration(3600 * point.hours_to_solution)} there: "
        f"{hours.shown(point)} {view.unit} hours, or {hours.text(point.gpu_hours_to_solution / per_node)} node hours."
    )
    if point.wall_hours_to_solution is not None:
        yield (
            "With start-up, validation and checkpoints as in the measured runs it takes "
            f"{duration(3600 * point.wall_hours_to_solution)}, "
            f"{hours.text(point.world_size * point.wall_hours_to_solution)} {view.unit} hours."
        )
    yield (
        f"The project needs {blank('the number of trainings, with seeds, searches and repetitions')} of these, "
        f"{blank(f'the total of {view.unit} hours, with a reserve for failed jobs')} in all."
    )


def _amount(work: Work) -> str:
    return f"{work.samples:,.0f} samples" if work.samples is not None else f"{work.epochs:g} epochs"


def _beyond(at: Prediction, view: ReportView) -> str:
    """Return what is predicted for the next larger scale; empty if there is none."""
    if at.is_measured:
        return ""
    cost = f"{GPU_HOURS.text(at.gpu_hours_per_million_samples)} {view.of_device(GPU_HOURS.heading)}"
    words = f"predicted, not measured: {at.in_words}"
    lines = (f"{words}, at {cost}" if at.samples_per_s else words, *at.notes)
    return " ".join(full_stop(capitalised(line)) for line in lines)
