"""A computing centre's form and rules for a scaling report: from workflow/centres, judged on what was measured.

A rule names a check of CHECKS, which takes the case and the rule's parameters, and returns the verdict with its figure,
and for a failure what to do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Literal

from pydantic import Field

from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import CENTRES
from ddp_ladder.common.formats import count, duration, full_stop, in_short, interval
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Name, Several
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import efficiency_by_total_time, trained_samples
from ddp_ladder.records.record import Record
from ddp_ladder.report.document import Block, Cell, Section
from ddp_ladder.report.hours import HOW_LONG
from ddp_ladder.report.proposal import PARTS, Chapter
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.load import centre_file

RuleVerdict = Literal["pass", "fail", "cannot be checked"]
Parameters = Mapping[str, float]
UNKNOWN: RuleVerdict = "cannot be checked"
STYLES = {"pass": "open", "fail": "closed"}
HEADINGS = ("rule", "asks for", "verdict", "figure", "next")
COLUMNS = {column.key: column for column in columns("csv")}
LONGER = "train longer: raise measure.max_steps, measure.max_seconds or the epochs in workload.args; start again"
MORE_SCALES = "measure scales with other node counts: add them to stages.stage3.scales, and start snakemake again"


class Rule(Model):
    """One rule."""

    check: Name  # its name in CHECKS
    asks: Name  # what the centre asks for, in a few words
    parameters: Mapping[str, float] = {}  # what the check compares with


class Centre(Model):
    """The form and the rules of a centre: a file workflow/centres/NAME.toml."""

    name: Name
    title: Name
    source: Name  # address of the rules
    read_on: str = Field(pattern="^20[0-9]{2}-[0-9]{2}$")  # month in which they were read
    note: str = ""  # how they were read, if not at the source
    chapters: Several[Chapter] = ()  # the form of the proposal; without one, the default form
    rules: Several[Rule] = Field(min_length=1)


@dataclass(frozen=True)
class Ruling:
    """What a check found."""

    verdict: RuleVerdict
    figure: str  # behind the verdict, or why there is none
    next: str = ""  # what to do


NOTHING = Ruling(UNKNOWN, "nothing was measured", "run the ladder: snakemake --profile profiles/slurm")
NOT_COUNTED = Ruling(
    UNKNOWN, "Markdown has no pages", "fill in its marks and count the pages: pandoc proposal.md -o proposal.pdf"
)


def read_centre(name: str) -> Centre:
    """Read the rules of a centre. Raises UserError for an unknown name, or a file that is not as it must be."""
    file = centre_file(name)
    try:
        centre = Centre.from_json({"name": name, **tomllib.loads(file.read_text())})
        for number, rule in enumerate(centre.rules, start=1):
            if rule.check not in CHECKS:
                raise ValueError(f"rule {number}: check {rule.check!r} is none of {', '.join(CHECKS)}")
            _, *wanted = CHECKS[rule.check]
            if set(wanted) != set(rule.parameters):
                raise ValueError(f"rule {number}: the parameters of {rule.check!r} are {', '.join(wanted) or 'none'}")
        parts = {part for chapter in centre.chapters for heading in chapter.headings for part in heading.parts}
        if unknown := sorted(parts - PARTS.keys()):
            raise ValueError(f"parts: {', '.join(unknown)}: none of {', '.join(PARTS)}")
    except ValueError as error:
        example = CENTRES / "csc-large.toml"
        raise UserError(
            Problem(str(file), "these are no rules of a centre", found=str(error), next=f"compare with {example}")
        ) from None
    return centre


Judged = Sequence[tuple[Rule, Ruling]]


def judged(centre: Centre, view: ReportView) -> Judged:
    """Return each rule with what was found; last the length of the form's chapters, which nobody has counted yet."""
    case = case_of(view)
    rules = [(rule, CHECKS[rule.check][0](case, rule.parameters) if case else NOTHING) for rule in centre.rules]
    limits = {chapter.title: chapter.max_pages for chapter in centre.chapters if chapter.max_pages}
    lengths = (f"{title}: at most {count(most, 'page')}" for title, most in limits.items())
    return [*rules, *((Rule(check="length", asks=asks), NOT_COUNTED if case else NOTHING) for asks in lengths)]


def summary(name: str, rules: Judged) -> str:
    """Return ``csc-large: 6 of 9 rules pass, 1 fails (run length), 2 cannot be checked``."""
    verdicts = [ruling.verdict for _, ruling in rules]
    failed, unknown = [rule.check for rule, ruling in rules if ruling.verdict == "fail"], verdicts.count(UNKNOWN)
    parts = [f"{name}: {verdicts.count('pass')} of {len(verdicts)} rules pass"]
    parts += [f"{len(failed)} {'fails' if len(failed) == 1 else 'fail'} ({', '.join(failed)})"] if failed else []
    parts += [f"{unknown} cannot be checked"] if unknown else []
    return ", ".join(parts)


def rules_section(centre: Centre, view: ReportView, rules: Judged, *, with_next: bool) -> Section:
    """Return the section for the page, or for the proposal, which does not say what is to be done."""
    case = case_of(view)
    shown = len(HEADINGS) if with_next else len(HEADINGS) - 1
    rows = [(rule.check, rule.asks, _verdict(ruling), ruling.figure, ruling.next) for rule, ruling in rules]
    table = Block(
        f"{summary(centre.title, rules)}.",
        name="Rules of the centre",
        headings=HEADINGS[:shown],
        rows=tuple(row[:shown] for row in rows),
        style="gates whole",
    )
    note = f" {full_stop(centre.note)}" if centre.note else ""
    judged_on = f" Judged on {case.largest.mode} scaling at {_names(case.points)}." if case else ""
    return Section(
        "Rules of the centre", (table, Block(f"Rules from {centre.source}, read {centre.read_on}.{note}{judged_on}"))
    )


def _verdict(ruling: Ruling) -> Cell:
    return Cell(ruling.verdict, style=STYLES.get(ruling.verdict, "waiting"))


# --- What is judged.


@dataclass(frozen=True)
class JudgedScales:
    """One mode of the reference variant."""

    view: ReportView
    points: tuple[ScalePoint, ...]  # by size, at least one

    @property
    def largest(self) -> ScalePoint:
        return self.points[-1]

    @cached_property
    def runs(self) -> list[Record]:
        return self.view.good_runs(*self.points)


def case_of(view: ReportView) -> JudgedScales | None:
    """Return what is judged: the scales with as many GPUs per node as the largest; None if nothing was measured.

    Of two modes the one with more such scales; with as many of both, strong scaling: all its runs have the same work.
    """
    by_mode = sorted(view.decisions, key=lambda decision: decision.mode)  # strong before weak
    chosen = max((_alike(decision.points) for decision in by_mode), key=len, default=())
    return JudgedScales(view, chosen) if chosen else None


def _alike(points: Sequence[ScalePoint]) -> tuple[ScalePoint, ...]:
    """Return the points with as many GPUs per node as the largest, by size: their node counts are compared."""
    ordered = sorted((p for p in points if p.status != "failed"), key=lambda point: (point.world_size, point.nodes))
    return tuple(point for point in ordered if point.gpus_per_node == ordered[-1].gpus_per_node)


# --- The checks.


def _names(points: Sequence[ScalePoint]) -> str:
    return in_short([str(point.scale) for point in points], 8)


def _shown(key: str, points: Sequence[ScalePoint]) -> str:
    column = COLUMNS[key]
    return in_short([f"{point.scale} {column.shown(point)} {column.unit}".strip() for point in points], 8)


def _node_counts(case: JudgedScales, parameters: Parameters) -> Ruling:
    counts = [point.nodes for point in case.points]
    figure = f"{count(len(counts), 'node count')}: {', '.join(map(str, counts))}"
    return Ruling("pass", figure) if len(counts) >= parameters["least"] else Ruling("fail", figure, MORE_SCALES)


def _same_input(case: JudgedScales, parameters: Parameters) -> Ruling:
    if differing := [point for point in case.points if point.differing or point["efficiency"] is None]:
        fields = dict.fromkeys(field for point in differing for field in point.differing)
        figure = f"{', '.join(fields) or 'runs'} differ at {_names(differing)}"
        return Ruling("fail", figure, "measure all scales with the same script, arguments, versions and devices")
    samples = sorted({trained_samples(run) for run in case.runs})
    figure = f"same script, arguments and fields in {count(len(case.runs), 'run')}"
    if allowed := next((point.allowed for point in case.points if point.allowed), ""):
        figure += f"; allowed by fingerprint.may_differ: {allowed}"
    if len(samples) > 1:
        figure += f"; {samples[0]:,} to {samples[-1]:,} samples trained, so times are compared by the sample"
    return Ruling("pass", figure)


def _through_slurm(case: JudgedScales, parameters: Parameters) -> Ruling:
    jobs = list(dict.fromkeys(run.job.id for run in case.runs if run.job))
    simulated = [point for point in case.points if point.simulated]
    local = [job for job in jobs if job.startswith("local-")]
    if simulated or local:
        figure = f"{_names(simulated)}: {simulated[0].simulated}" if simulated else f"not in Slurm: {in_short(local)}"
        return Ruling("fail", figure, "run it on the centre's machine: snakemake --profile profiles/slurm")
    figure = f"Slurm jobs {in_short(jobs, 8)}, site {case.view.plan.site}"
    return Ruling("pass", figure, "check that this is the centre's machine")


def _run_length(case: JudgedScales, parameters: Parameters) -> Ruling:
    shortest_s, run = min(((run.timing.wall_s, run) for run in case.runs if run.timing), key=itemgetter(0))
    times = [(point["startup_s"], point["wall_s"], point) for point in case.points]
    shares = [(startup_s / wall_s, point) for startup_s, wall_s, point in times if startup_s and wall_s]
    figure, is_short = f"shortest run {duration(shortest_s)} ({run.spec.scale})", shortest_s < parameters["min_run_s"]
    if len(shares) < len(case.points):
        figure += "; the start-up was not recorded"
        return (
            Ruling("fail", figure, LONGER) if is_short else Ruling(UNKNOWN, figure, "let it run under the instrument")
        )
    share, worst = max(shares, key=itemgetter(0))
    figure += f"; start-up at most {100 * share:.1f} % of a run ({worst.scale})"
    most = parameters["max_startup_fraction"]
    if not is_short and share <= most:
        return Ruling("pass", figure)
    wanted = f"; wanted at least {duration(parameters['min_run_s'])} and at most {100 * most:.0f} %"
    return Ruling("fail", figure + wanted, LONGER)


def _by_total_time(case: JudgedScales, parameters: Parameters) -> Ruling:
    first, *others = case.points
    if not others:
        return Ruling(UNKNOWN, f"only {first.scale} was measured: nothing to compare it with", MORE_SCALES)
    if unlike := [point for point in case.points if point["efficiency"] is None]:
        figure = f"{_names(unlike)} ran another program than {first.baseline}: {unlike[-1].note}"
        return Ruling(UNKNOWN, figure, "measure all scales with the same script, arguments and versions")
    shown, low_at, text = [], [], COLUMNS["efficiency_total_time"].text
    for point in others:
        efficiency = efficiency_by_total_time(case.view.good_runs(point), case.view.good_runs(first))
        if efficiency is None:
            return Ruling(UNKNOWN, f"the samples of the runs of {point.scale} were not counted")
        low, high = efficiency.ends
        ends = interval(text(low), text(high)) if low < high else ""
        shown.append(f"{point.scale} {text(efficiency.value)} {ends}".strip())
        low_at += [point] if efficiency.value < parameters["min_efficiency"] else []
    figure = f"{', '.join(shown)}, against {first.scale}"
    if low_at:
        instead = 'do what the section "Where the time goes" proposes'
        return Ruling("fail", figure, f"ask for a scale below {low_at[0].scale}, {LONGER}, or {instead}")
    by_steps = {point.scale: (point["efficiency"] or 0) / (first["efficiency"] or 1) for point in others}
    if hidden := {scale: value for scale, value in by_steps.items() if value < parameters["min_efficiency"]}:
        steps = ", ".join(f"{scale} {text(value)}" for scale, value in hidden.items())
        return Ruling(UNKNOWN, f"{figure}; but without the start-up, which all scales pay: {steps}", LONGER)
    return Ruling("pass", figure)


def _gpu_utilisation(case: JudgedScales, parameters: Parameters) -> Ruling:
    if case.view.unit != "GPU":
        return Ruling(UNKNOWN, "this site has no GPU")
    if unknown := [point for point in case.points if point["gpu_busy_fraction"] is None]:
        again = "set monitor.enabled to true, see docs/monitoring.md, and measure these scales again"
        return Ruling("fail", f"not sampled at {_names(unknown)}", again)
    return Ruling("pass", f"GPUs busy: {_shown('gpu_busy_fraction', case.points)}; pictures in usage/")


def _both_modes(case: JudgedScales, parameters: Parameters) -> Ruling:
    decisions = case.view.decisions
    figure = "; ".join(f"{decision.mode}: {_names(decision.points)}" for decision in decisions)
    if len(decisions) > 1:
        return Ruling("pass", figure)
    return Ruling("fail", f"only {figure}", "set modes: [weak, strong] in config.yaml, and start snakemake again")


def _memory(case: JudgedScales, parameters: Parameters) -> Ruling:
    if unknown := [point for point in case.points if point["peak_memory_bytes"] is None]:
        return Ruling(UNKNOWN, f"not recorded at {_names(unknown)}", "let it run under the instrument")
    return Ruling("pass", _shown("peak_memory_bytes", case.points))


def _time_to_solution(case: JudgedScales, parameters: Parameters) -> Ruling:
    work = case.view.results.work
    if case.largest["hours_to_solution"] is None:
        return Ruling("fail", work.missing or "the length of the training is not known", HOW_LONG)
    if work.runs is None:
        return Ruling("fail", f"one training of {work.in_words}; the number of runs is not known", HOW_LONG)
    return Ruling("pass", f"{work.runs} runs of {work.in_words}: {_shown('hours_to_solution', case.points)} each")


def _batch_script(case: JudgedScales, parameters: Parameters) -> Ruling:
    results = case.view.results.directory
    scripts = [RunRecords(results).directory(run.spec).job_script for run in case.view.good_runs(case.largest)]
    if kept := next((script for script in scripts if script.is_file()), None):
        return Ruling("pass", str(kept.relative_to(results)))
    return Ruling("fail", f"no job.sh of {case.largest.scale}", "keep the runs: each one's directory has its job.sh")


CHECKS: Mapping[str, tuple[Callable[[JudgedScales, Parameters], Ruling], *tuple[str, ...]]] = {
    "node counts": (_node_counts, "least"),
    "same input": (_same_input,),
    "through Slurm": (_through_slurm,),
    "run length": (_run_length, "min_run_s", "max_startup_fraction"),
    "efficiency by total time": (_by_total_time, "min_efficiency"),
    "wall times": (lambda case, _: Ruling("pass", _shown("wall_s", case.points)),),
    "GPU utilisation": (_gpu_utilisation,),
    "both modes": (_both_modes,),
    "memory": (_memory,),
    "time to solution": (_time_to_solution,),
    "batch script": (_batch_script,),
    "by a person": (lambda case, _: Ruling(UNKNOWN, "not in the records", "see to it, and say so in the application"),),
}
"""Each check, and the parameters that a rule must give it."""
