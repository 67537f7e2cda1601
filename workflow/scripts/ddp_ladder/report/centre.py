"""A computing centre's form and rules for a scaling report: from workflow/centres, judged on what was measured.

A rule names a check of CHECKS, which takes the case and the rule, and returns its finding.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from pydantic import Field

from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import CENTRES
from ddp_ladder.common.findings import Finding, RuleKind, Severity
from ddp_ladder.common.formats import count, duration, full_stop, in_short
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Name, Several
from ddp_ladder.gates.figures import COLUMN
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import efficiency_by_total_time, trained_samples
from ddp_ladder.records.record import Record
from ddp_ladder.report.document import Block, Cell, Section
from ddp_ladder.report.hours import HOW_LONG
from ddp_ladder.report.proposal import PARTS, Chapter
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.load import centre_file

VERDICTS: Mapping[Severity, Cell] = {
    "note": Cell("pass", style="open"),
    "error": Cell("fail", style="closed"),
    "unknown": Cell("cannot be checked", style="waiting"),
}
HEADINGS = ("rule", "asks for", "verdict", "figure", "next")
LONGER = "train longer: raise measure.max_steps, measure.max_seconds or the epochs in workload.args; start again"
MORE_SCALES = "measure scales with other node counts: add them to stages.stage3.scales, and start snakemake again"


class Rule(Model):
    """One rule."""

    check: RuleKind  # in CHECKS
    asks: Name  # what the centre asks for, in a few words
    parameters: Mapping[str, float] = {}  # what the check compares with

    def passed(self, figure: str, next_step: str = "") -> Finding:
        return self._found("note", figure, next_step)

    def failed(self, figure: str, next_step: str) -> Finding:
        return self._found("error", figure, next_step)

    def unchecked(self, why: str, next_step: str = "") -> Finding:
        return self._found("unknown", why, next_step)

    def _found(self, severity: Severity, measured: str, next_step: str) -> Finding:
        return Finding(kind=self.check, severity=severity, measured=measured, wanted=self.asks, next=next_step)


class Centre(Model):
    """The form and the rules of a centre: a file workflow/centres/NAME.toml."""

    name: Name
    title: Name
    source: Name  # address of the rules
    read_on: str = Field(pattern="^20[0-9]{2}-[0-9]{2}$")  # month in which they were read
    note: str = ""  # how they were read, if not at the source
    chapters: Several[Chapter] = ()  # the form of the proposal; without one, the default form
    rules: Several[Rule] = Field(min_length=1)


def read_centre(name: str) -> Centre:
    """Read the rules of a centre. Raises UserError for an unknown name, or a file that is not as it must be."""
    file = centre_file(name)
    try:
        centre = Centre.from_json({"name": name, **tomllib.loads(file.read_text())})
        for number, rule in enumerate(centre.rules, start=1):
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


def judged(centre: Centre, view: ReportView) -> tuple[Finding, ...]:
    """Return a finding for each rule."""
    if case := case_of(view):
        return tuple(CHECKS[rule.check][0](case, rule) for rule in centre.rules)
    why, advice = "nothing was measured", "run the ladder: snakemake --profile profiles/slurm"
    return tuple(rule.unchecked(why, advice) for rule in centre.rules)


def summary(name: str, rules: Sequence[Finding]) -> str:
    """Return ``csc-large: 6 of 9 rules pass, 1 fails (run length), 2 cannot be checked``."""
    severities, failed = [found.severity for found in rules], [found.kind for found in rules if not found.ok]
    parts = [f"{name}: {severities.count('note')} of {len(rules)} rules pass"]
    parts += [f"{len(failed)} {'fails' if len(failed) == 1 else 'fail'} ({', '.join(failed)})"] if failed else []
    unknown = severities.count("unknown")
    parts += [f"{unknown} cannot be checked"] if unknown else []
    return ", ".join(parts)


def rules_section(centre: Centre, view: ReportView, rules: Sequence[Finding], *, with_next: bool) -> Section:
    """Return the section for the page, or for the proposal, which does not say what is to be done."""
    case = case_of(view)
    shown = len(HEADINGS) if with_next else len(HEADINGS) - 1
    rows = [(found.kind, found.wanted, VERDICTS[found.severity], found.measured, found.next) for found in rules]
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
    column = COLUMN[key]
    return in_short([f"{point.scale} {column.shown(point)} {column.unit}".strip() for point in points], 8)


def _node_counts(case: JudgedScales, rule: Rule) -> Finding:
    counts = [point.nodes for point in case.points]
    figure = f"{count(len(counts), 'node count')}: {', '.join(map(str, counts))}"
    return rule.passed(figure) if len(counts) >= rule.parameters["least"] else rule.failed(figure, MORE_SCALES)


def _same_input(case: JudgedScales, rule: Rule) -> Finding:
    if differing := [point for point in case.points if point.differing or point["efficiency"] is None]:
        fields = dict.fromkeys(field for point in differing for field in point.differing)
        figure = f"{', '.join(fields) or 'runs'} differ at {_names(differing)}"
        return rule.failed(figure, "measure all scales with the same script, arguments, versions and devices")
    samples = sorted({trained_samples(run) for run in case.runs})
    figure = f"same script, arguments and fields in {count(len(case.runs), 'run')}"
    if allowed := next((point.allowed for point in case.points if point.allowed), ""):
        figure += f"; allowed by fingerprint.may_differ: {allowed}"
    if len(samples) > 1:
        figure += f"; {samples[0]:,} to {samples[-1]:,} samples trained, so times are compared by the sample"
    return rule.passed(figure)


def _through_slurm(case: JudgedScales, rule: Rule) -> Finding:
    jobs = list(dict.fromkeys(run.job.id for run in case.runs if run.job))
    simulated = [point for point in case.points if point.simulated]
    local = [job for job in jobs if job.startswith("local-")]
    if simulated or local:
        figure = f"{_names(simulated)}: {simulated[0].simulated}" if simulated else f"not in Slurm: {in_short(local)}"
        return rule.failed(figure, "run it on the centre's machine: snakemake --profile profiles/slurm")
    figure = f"Slurm jobs {in_short(jobs, 8)}, site {case.view.plan.site}"
    return rule.passed(figure, "check that this is the centre's machine")


def _run_length(case: JudgedScales, rule: Rule) -> Finding:
    shortest_s, run = min(((run.timing.wall_s, run) for run in case.runs if run.timing), key=itemgetter(0))
    times = [(point["startup_s"], point["wall_s"], point) for point in case.points]
    shares = [(startup_s / wall_s, point) for startup_s, wall_s, point in times if startup_s and wall_s]
    least_s, most = rule.parameters["min_run_s"], rule.parameters["max_startup_fraction"]
    figure, is_short = f"shortest run {duration(shortest_s)} ({run.spec.scale})", shortest_s < least_s
    if len(shares) < len(case.points):
        figure += "; the start-up was not recorded"
        return rule.failed(figure, LONGER) if is_short else rule.unchecked(figure, "let it run under the instrument")
    share, worst = max(shares, key=itemgetter(0))
    figure += f"; start-up at most {100 * share:.1f} % of a run ({worst.scale})"
    if not is_short and share <= most:
        return rule.passed(figure)
    wanted = f"; wanted at least {duration(least_s)} and at most {100 * most:.0f} %"
    return rule.failed(figure + wanted, LONGER)


def _by_total_time(case: JudgedScales, rule: Rule) -> Finding:
    first, *others = case.points
    if not others:
        return rule.unchecked(f"only {first.scale} was measured: nothing to compare it with", MORE_SCALES)
    if unlike := [point for point in case.points if point["efficiency"] is None]:
        figure = f"{_names(unlike)} ran another program than {first.baseline}: {unlike[-1].note}"
        return rule.unchecked(figure, "measure all scales with the same script, arguments and versions")
    shown, low_at, text = [], [], COLUMN["efficiency_total_time"].text
    for point in others:
        efficiency = efficiency_by_total_time(case.view.good_runs(point), case.view.good_runs(first))
        if efficiency is None:
            return rule.unchecked(f"the samples of the runs of {point.scale} were not counted")
        shown.append(f"{point.scale} {efficiency.shown(text)}")
        low_at += [point] if efficiency.value < rule.parameters["min_efficiency"] else []
    figure = f"{', '.join(shown)}, against {first.scale}"
    if low_at:
        instead = 'do what the section "Where the time goes" proposes'
        return rule.failed(figure, f"ask for a scale below {low_at[0].scale}, {LONGER}, or {instead}")
    by_steps = {point.scale: (point["efficiency"] or 0) / (first["efficiency"] or 1) for point in others}
    if hidden := {scale: value for scale, value in by_steps.items() if value < rule.parameters["min_efficiency"]}:
        steps = ", ".join(f"{scale} {text(value)}" for scale, value in hidden.items())
        return rule.unchecked(f"{figure}; but without the start-up, which all scales pay: {steps}", LONGER)
    return rule.passed(figure)


def _gpu_utilisation(case: JudgedScales, rule: Rule) -> Finding:
    if case.view.unit != "GPU":
        return rule.unchecked("this site has no GPU")
    if unknown := [point for point in case.points if point["gpu_busy_fraction"] is None]:
        again = "set monitor.enabled to true, see docs/monitoring.md, and measure these scales again"
        return rule.failed(f"not sampled at {_names(unknown)}", again)
    return rule.passed(f"GPUs busy: {_shown('gpu_busy_fraction', case.points)}; pictures in usage/")


def _both_modes(case: JudgedScales, rule: Rule) -> Finding:
    decisions = case.view.decisions
    figure = "; ".join(f"{decision.mode}: {_names(decision.points)}" for decision in decisions)
    if len(decisions) > 1:
        return rule.passed(figure)
    return rule.failed(f"only {figure}", "set modes: [weak, strong] in config.yaml, and start snakemake again")


def _memory(case: JudgedScales, rule: Rule) -> Finding:
    if unknown := [point for point in case.points if point["peak_memory_bytes"] is None]:
        return rule.unchecked(f"not recorded at {_names(unknown)}", "let it run under the instrument")
    return rule.passed(_shown("peak_memory_bytes", case.points))


def _time_to_solution(case: JudgedScales, rule: Rule) -> Finding:
    work = case.view.results.work
    if case.largest["hours_to_solution"] is None:
        return rule.failed(work.missing or "the length of the training is not known", HOW_LONG)
    if work.runs is None:
        return rule.failed(f"one training of {work.in_words}; the number of runs is not known", HOW_LONG)
    return rule.passed(f"{work.runs} runs of {work.in_words}: {_shown('hours_to_solution', case.points)} each")


def _batch_script(case: JudgedScales, rule: Rule) -> Finding:
    results = case.view.results.directory
    scripts = [RunRecords(results).directory(run.spec).job_script for run in case.view.good_runs(case.largest)]
    if kept := next((script for script in scripts if script.is_file()), None):
        return rule.passed(str(kept.relative_to(results)))
    return rule.failed(f"no job.sh of {case.largest.scale}", "keep the runs: each one's directory has its job.sh")


CHECKS: Mapping[RuleKind, tuple[Callable[[JudgedScales, Rule], Finding], *tuple[str, ...]]] = {
    "node counts": (_node_counts, "least"),
    "same input": (_same_input,),
    "through Slurm": (_through_slurm,),
    "run length": (_run_length, "min_run_s", "max_startup_fraction"),
    "efficiency by total time": (_by_total_time, "min_efficiency"),
    "wall times": (lambda case, rule: rule.passed(_shown("wall_s", case.points)),),
    "GPU utilisation": (_gpu_utilisation,),
    "both modes": (_both_modes,),
    "memory": (_memory,),
    "time to solution": (_time_to_solution,),
    "batch script": (_batch_script,),
    "by a person": (
        lambda case, rule: rule.unchecked("not in the records", "see to it, and say so in the application"),
    ),
}
"""Each check, and the parameters that a rule must give it."""
