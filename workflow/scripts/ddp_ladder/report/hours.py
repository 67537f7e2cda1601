"""The hours that an application asks for: the scale, what one training takes there, and the milestones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ddp_ladder.common.formats import capitalised, count, duration, full_stop, percent, significant
from ddp_ladder.gates.figures import EFFICIENCY, GPU_HOURS_TO_SOLUTION, OF_CENTRE, SAMPLES_PER_S
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.ledger.jobs import totals
from ddp_ladder.plan.plan import Hours
from ddp_ladder.production.plan import Planned, PlannedTraining
from ddp_ladder.report.document import Block, blank
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.terms import Scale

HOW_LONG = (
    "set one of report.epochs, report.samples, report.tokens and report.steps in config.yaml, and report.runs, and "
    "write the report again with the same command"
)
LIMITS = ("max_steps", "max_seconds")
EUROHPC = (
    "run type", "code", "runs", "nodes", "global batch", "steps per run", "time per step (ms)", "hours per run",
    "node hours",
)  # fmt: skip
SWISS_AI = (
    "run type", "GPUs per job", "runs", "samples per run", "samples/s", "strong efficiency", "hours per run",
    "GPU hours",
)  # fmt: skip


@dataclass(frozen=True)
class Milestone:
    """The project's trainings at one scale, with the reserve."""

    training: PlannedTraining
    point: ScalePoint
    of_steps: Estimate  # the hours of its steps: their interval, as a part of them, is that of all its hours

    def cell(self, heading: str, view: ReportView) -> str:
        """Return the text in a column of EUROHPC or SWISS_AI, or in that of the centre's hours."""
        point, training, asked = self.point, self.training, self.training.of_all
        texts = {
            "run type": training.run_type,
            "code": view.script,
            "runs": str(training.runs or blank("the number of runs", "report.runs in config.yaml")),
            "nodes": str(point.nodes),
            "GPUs per job": str(point.world_size),
            "global batch": f"{point.global_batch:,}",
            "steps per run": f"{training.samples / point.global_batch:,.0f}",
            "samples per run": f"{training.samples:,.0f}",
            "time per step (ms)": significant(1000 * (point["step_time_s"] or 0)),
            "samples/s": SAMPLES_PER_S.with_interval(point),
            "strong efficiency": f"{'weak: ' * (point.mode == 'weak')}{EFFICIENCY.shown(point)}",
            "hours per run": self._with_interval(training.hours),
            "node hours": self._with_interval(asked.nodes),
            "GPU hours": self._with_interval(asked.gpus),
            OF_CENTRE: self._with_interval(asked.of_centre(view.plan.units.hours) or 0.0),
        }
        return texts[heading]

    def _with_interval(self, hours: float) -> str:
        of_steps = self.of_steps
        low, high = (end and hours * (end / of_steps.value) for end in (of_steps.low, of_steps.high))
        return Estimate(hours, low, high).shown(significant)


def milestones(view: ReportView, *, per_node: bool = True) -> Iterator[Milestone]:
    """Yield the project's trainings at the recommended and at the cheapest scale of each mode.

    per_node: the cheapest one takes the fewest node hours, and otherwise the fewest GPU hours.
    """
    work = view.results.work
    for decision in view.decisions:
        best, cheapest = decision.recommended, decision.cheapest(per_node)
        for kind, point in (("recommended", best), ("cheapest", cheapest if cheapest != best else None)):
            hours, of_steps = (decision.hours(point), point.of("hours_to_solution")) if point else (None, None)
            if point is None or hours is None or of_steps is None:
                continue
            doubt = " (uncertain)" * bool(of_steps.doubts or (point is best and decision.doubt))
            training = PlannedTraining(
                run_type=f"training, {point.mode} scaling, {kind} {point.scale}{doubt}",
                mode=point.mode,
                scale=str(point.scale),
                nodes=point.nodes,
                gpus=point.world_size,
                hours=hours,
                samples=work.total(point.global_batch) or 0.0,
                samples_per_s=point["samples_per_s"],
                gpu_energy_kwh=point["energy_kwh_to_solution"],
                runs=work.runs,
                reserve=work.reserve,
            )
            yield Milestone(training, point, of_steps)


def planned(view: ReportView) -> Planned | None:
    """Return the milestones as they are kept for the final report; None without one."""
    kept = tuple(each.training for each in milestones(view))
    return Planned(written_on=view.written_on.isoformat(), trainings=kept) if kept else None


def milestone_table(view: ReportView, headings: Sequence[str]) -> Iterator[Block]:
    """Yield the table of milestones with these columns, and what its hours contain."""
    every = list(milestones(view, per_node="node hours" in headings))
    headings = (*headings, *([OF_CENTRE] if view.plan.units.hours else []))
    shown = [view.of_device(heading) for heading in headings]
    if not every:
        yield Block(blank(f"a row for each milestone: {', '.join(shown)}", HOW_LONG))
        return
    yield Block(
        f"One run is a training of {view.results.work.in_words}:",
        headings=tuple(shown),
        rows=tuple(tuple(milestone.cell(heading, view) for heading in headings) for milestone in every),
    )
    yield Block(
        items=tuple(full_stop(capitalised(line)) for line in _overheads(view, [milestone.point for milestone in every]))
    )


def _overheads(view: ReportView, points: Sequence[ScalePoint]) -> Iterator[str]:
    reserve = percent(view.results.work.reserve)
    yield f"the hours of all runs contain a reserve of {reserve} for failed jobs and restarts (report.reserve)"
    whole = all(decision.whole for decision in view.decisions)
    parts = "one start-up, and validation and checkpoints in the proportion of the measured runs"
    contain = parts if whole else "its steps alone"
    yield f"the hours of a run contain {contain}; square brackets are 95 % intervals, from those of the throughput"
    scales = {point.scale for point in points}
    ended_by = {rank.ended_by for run in view.runs if run.spec.scale in scales for rank in run.ranks[:1]}
    if whole and not ended_by.isdisjoint(LIMITS):
        yield (
            "measured runs were ended early (measure.max_steps or max_seconds): warm-up is a larger part of them than "
            "of a training, and the validation and checkpoints that end an epoch may be missing"
        )
    starts = (
        f"{duration(startup_s)} at {point.scale}, {_node_hours(point, startup_s / 3600, view)}"
        for point in points
        if (startup_s := point["startup_s"])
    )
    if restart := "; ".join(dict.fromkeys(starts)):
        yield f"a restart repeats the steps since the last checkpoint, and takes the start-up, as measured: {restart}"
    waits = [row.queue_wait_s for row in view.results.jobs if row.queue_wait_s is not None]
    if waits:
        yield (
            f"{count(len(waits), 'job')} of these measurements waited {duration(median(waits))} in the queue "
            f"(median; the longest {duration(max(waits))}), which takes no node hours"
        )


def _node_hours(point: ScalePoint, hours: float, view: ReportView) -> str:
    """Return ``0.0200 node hours``, with those of the centre."""
    cost = point.cost(hours)
    return f"{significant(cost.nodes)} node hours{view.plan.hour_unit.beside(cost)}"


# --- The request in words.


def in_mode(point: ScalePoint) -> str:
    """Return ``4x4 (weak scaling)``; the proposal is of one variant."""
    return f"{point.scale} ({point.mode} scaling)"


def request(view: ReportView) -> Iterator[Block]:
    """Yield what is asked for, why that scale, and what is expected beyond it."""
    for decision in view.decisions:
        point = decision.recommended
        if point is None:
            why = f"No {decision.mode} scale can be recommended, as none compares with a smaller one."
            yield Block(f"{why} {blank('the scale to ask for, and why', 'the table of the results')}")
            continue
        asked = f"{capitalised(point.mode)} scaling: jobs of {point.scale} are requested, {decision.rule}."
        yield Block(f"{asked} {decision.doubt}".rstrip())
        yield Block(" ".join(_one_training(point, view)))
    if any(point["hours_to_solution"] for point in view.proposed):
        yield from milestone_table(view, EUROHPC)
    yield from beyond(view)
    if view.results.jobs:
        yield Block(f"These measurements themselves: {totals(view.results.jobs, view.plan.hour_unit)}.")


def time_to_solution(view: ReportView) -> Iterator[Block]:
    """Yield what one training takes at the recommended scale of each mode."""
    for decision in view.decisions:
        if decision.recommended:
            yield Block(" ".join((*_one_training(decision.recommended, view), decision.doubt)).rstrip())


def _one_training(point: ScalePoint, view: ReportView) -> Iterator[str]:
    work, unit = view.results.work, view.plan.hour_unit
    took_h, wall_h = point["hours_to_solution"], point["wall_hours_to_solution"]
    if took_h is None:
        cost = point.cost_per_million
        hours = f"{significant(cost.gpus)} {view.unit} hours{unit.beside(cost)}"
        yield f"A million samples take {hours} at {in_mode(point)}."
        yield blank(f"the samples of one training, the number of trainings, and the {view.unit} hours", HOW_LONG)
        return
    yield (
        f"One training of {work.in_words} takes {duration(3600 * took_h)} at {in_mode(point)}: "
        f"{GPU_HOURS_TO_SOLUTION.shown(point)} {view.unit} hours, or "
        f"{_node_hours(point, took_h, view)}."
    )
    if wall_h is not None:
        of_all = point.cost(wall_h)
        yield (
            "With start-up, validation and checkpoints as in the measured runs it takes "
            f"{duration(3600 * wall_h)}, "
            f"{significant(of_all.gpus)} {view.unit} hours{unit.beside(of_all)}."
        )
    yield from checks(point, view)
    yield from _energy(point, view)


def per_million(point: ScalePoint, view: ReportView) -> str:
    """Return ``0.322 GPU h (0.644 normalised GPU h) per million samples``."""
    return f"{view.plan.hour_unit.in_words(point.cost_per_million)} per million samples"


def _energy(point: ScalePoint, view: ReportView) -> Iterator[str]:
    """Yield the energy of the GPUs, and its carbon, as far as they are known."""
    kwh = point["energy_kwh_to_solution"]
    if kwh is None:
        return
    text = f"Its steps take {significant(kwh)} kWh in the {view.units}, as their power was sampled"
    if carbon := view.plan.units.carbon_in_words(kwh):
        text += f", and thus {carbon}"
    yield f"{text}; CPUs, memory, network and cooling are not in it."


def checks(point: ScalePoint, view: ReportView) -> Iterator[str]:
    """Yield the hours by the usual rule beside the measured ones, if all that it takes is known."""
    samples, per_gpu = view.results.work.total(point.global_batch), point["tflop_per_s_per_gpu"]
    if not (samples and point.tokens_per_sample and point.parameters and per_gpu and point["hours_to_solution"]):
        return
    tokens, tflop_per_s = samples * point.tokens_per_sample, per_gpu * point.world_size
    by_rule_h, measured_h = 6 * point.parameters * tokens / (tflop_per_s * 1e12) / 3600, point["hours_to_solution"]
    yield (
        f"Check at {in_mode(point)}: 6 x {point.parameters:,} parameters x {tokens:,.0f} tokens / "
        f"{significant(tflop_per_s)} TFLOP/s = {significant(by_rule_h)} h; measured {significant(measured_h)} h, "
        f"{significant(measured_h / by_rule_h)} times that. The rule leaves attention out and counts embeddings as "
        "products; the parameters are the trained ones, the FLOP/s those counted in the runs."
    )


def beyond(view: ReportView) -> Iterator[Block]:
    """Yield what is predicted for the next larger scale of each mode."""
    for outlook in view.outlooks:
        hours = (outlook.gpu_hours_per_million_samples or 0.0) / outlook.gpus
        held = Hours.held(hours, Scale.parse(outlook.scale).nodes, outlook.gpus)
        cost = f"{view.plan.hour_unit.in_words(held)} per million samples"
        at_cost = f", at {cost}" if outlook.samples_per_s else ""
        words = f"predicted, not measured: {outlook.figures_in_words}{at_cost}{outlook.doubt_in_words}"
        yield Block(" ".join(full_stop(capitalised(line)) for line in (words, *outlook.notes)))
