"""A computing centre's rules for a scaling report: read from workflow/centres, and judged on what was measured.

A rule names a check of CHECKS, which takes the case and the rule's parameters, and returns the verdict with its figure,
and for a failure what to do.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.files import CENTRES
from ddp_ladder.common.formats import count, duration, in_short, interval
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Several
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import efficiency_by_total_time, trained_samples
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.report.document import Block, Cell, Section
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.sources import centre_file
from ddp_ladder.settings.terms import REFERENCE_VARIANT

Name = Annotated[str, Field(min_length=1)]
Verdict = Literal["pass", "fail", "cannot be checked"]
Parameters = Mapping[str, float]
UNKNOWN: Verdict = "cannot be checked"
STYLES = {"pass": "open", "fail": "closed"}
HEADINGS = ("rule", "asks for", "verdict", "figure", "next")
COLUMNS = {column.key: column for column in columns("csv")}
LONGER = "train longer: raise measure.max_steps, measure.max_seconds or the epochs in workload.args; start again"
WIDTH = 100


class Rule(Model):
    """One rule. check: its name in CHECKS."""

    check: Name
    asks: Name = Field(description="What the centre asks for, in a few words.")
    confirmed: bool = Field(description="False: only an excerpt of the source was seen.")
    parameters: Mapping[str, float] = Field(default_factory=dict, description="What the check compares with.")


class Centre(Model):
    """The rules of a centre: a file workflow/centres/NAME.toml."""

    name: Name
    title: Name
    source: Name = Field(description="Address of the rules.")
    read_on: str = Field(pattern="^20[0-9]{2}-[0-9]{2}$", description="Month in which they were read.")
    rules: Several[Rule] = Field(min_length=1)


@dataclass(frozen=True)
class Found:
    """A verdict, the figure behind it or why there is none, and what to do."""

    verdict: Verdict
    figure: str
    next: str = ""


NOTHING = Found(UNKNOWN, "nothing was measured", "run the ladder: snakemake --profile profiles/slurm")


@dataclass(frozen=True)
class JudgedCentre:
    """The rules of a centre, judged."""

    centre: Centre
    judged_on: str
    rules: tuple[tuple[Rule, Found], ...]

    @property
    def summary(self) -> str:
        """Return ``6 of 9 rules pass, 1 fails, 2 cannot be checked``, and how many are unconfirmed."""
        verdicts = [found.verdict for _, found in self.rules]
        failed, unknown = verdicts.count("fail"), verdicts.count(UNKNOWN)
        parts = [f"{verdicts.count('pass')} of {len(verdicts)} rules pass"]
        parts += [f"{failed} {'fails' if failed == 1 else 'fail'}"] if failed else []
        parts += [f"{unknown} cannot be checked"] if unknown else []
        doubtful = sum(not rule.confirmed for rule, _ in self.rules)
        return ", ".join(parts) + (f" (unconfirmed: {doubtful} of {len(verdicts)})" if doubtful else "")

    @property
    def note(self) -> str:
        """Return where the rules are from, and what was judged."""
        unconfirmed = any(not rule.confirmed for rule, _ in self.rules)
        doubt = "; unconfirmed: only an excerpt was seen, so read the rule there" if unconfirmed else ""
        return f"Rules from {self.centre.source}, read {self.centre.read_on}{doubt}. Judged on: {self.judged_on}."

    def section(self, *, with_next: bool) -> Section:
        """Return the section for the page, or for the proposal, which does not say what is to be done."""
        shown = len(HEADINGS) if with_next else len(HEADINGS) - 1
        rows = [
            (
                rule.check,
                _asks(rule),
                Cell(found.verdict, style=STYLES.get(found.verdict, "waiting")),
                found.figure,
                found.next,
            )
            for rule, found in self.rules
        ]
        table = Block(
            f"{self.centre.title}: {self.summary}.",
            name="Rules of the centre",
            headings=HEADINGS[:shown],
            rows=tuple(row[:shown] for row in rows),
            widths=(1, 2.5, 0.8, 2.5, 2.5)[:shown],
            style="gates whole",
        )
        return Section("Rules of the centre", (table, Block(self.note)))


def _asks(rule: Rule) -> str:
    return rule.asks if rule.confirmed else f"{rule.asks} (unconfirmed)"


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
    except ValueError as error:
        example = CENTRES / "csc-large.toml"
        raise UserError(
            Problem(str(file), "these are no rules of a centre", found=str(error), next=f"compare with {example}")
        ) from None
    return centre


def judged(centre: Centre, view: ReportView, pictures: Sequence[str]) -> JudgedCentre:
    """Return the rules, judged. pictures: of what the runs used, as files below the report."""
    case = case_of(view, pictures)
    rules = tuple((rule, CHECKS[rule.check][0](case, rule.parameters) if case else NOTHING) for rule in centre.rules)
    if case is None:
        return JudgedCentre(centre, "nothing", rules)
    scales = ", ".join(str(point.scale) for point in case.points)
    mode, variant = case.largest.mode, case.largest.variant
    return JudgedCentre(centre, f"{mode} scaling, variant {variant}, scales {scales}", rules)


def terminal_lines(found: JudgedCentre) -> list[str]:
    """Return the rules for the terminal: figure of each, and what to do about those that do not pass."""
    lines = _wrapped("centre", f"{found.centre.title}: {found.summary}")
    for rule, one in found.rules:
        lines += _wrapped("unknown" if one.verdict == UNKNOWN else one.verdict, f"{rule.check}: {one.figure}")
        if one.verdict != "pass":
            lines += _wrapped("", f"asked: {_asks(rule)}")
        if one.next:
            lines += _wrapped("", f"next: {one.next}")
    return [*lines, *_wrapped("", found.note)]


def _wrapped(word: str, text: str) -> list[str]:
    plain = text.replace("\u00a0", " ").replace("\u2013", "-")
    return textwrap.wrap(plain, WIDTH, initial_indent=f"{word:<9}", subsequent_indent=" " * 9)


# --- What is judged.


@dataclass(frozen=True)
class Case:
    """One mode and variant.

    series: its measured points, by size. points: those with as many GPUs per node as the largest, at least one.
    runs: the good runs of each scale. pictures: of what the runs used, below the report.
    """

    view: ReportView
    series: tuple[ScalePoint, ...]
    points: tuple[ScalePoint, ...]
    runs: Mapping[str, tuple[Record, ...]]
    pictures: tuple[str, ...]

    @property
    def largest(self) -> ScalePoint:
        return self.points[-1]

    @property
    def all_runs(self) -> tuple[Record, ...]:
        return tuple(run for point in self.points for run in self.runs[str(point.scale)])


def case_of(view: ReportView, pictures: Sequence[str]) -> Case | None:
    """Return what is judged: the mode with the most scales of the largest one's nodes; None if nothing was measured.

    With as many of both, strong scaling: all its runs have the same work.
    """
    chosen = max((_series(view, mode) for mode in ("strong", "weak")), key=lambda points: len(_alike(points)))
    if not chosen:
        return None
    kind = (chosen[0].mode, chosen[0].variant)
    good = [run for run in view.runs if run.status == "ok" and (run.spec.mode, run.spec.variant) == kind]
    runs = {str(point.scale): tuple(run for run in good if run.spec.scale == point.scale) for point in chosen}
    return Case(view, chosen, _alike(chosen), runs, tuple(pictures))


def _series(view: ReportView, mode: str) -> tuple[ScalePoint, ...]:
    """Return the measured points of a mode, of the reference variant or else of the first, by size."""
    measured = [p for p in view.rungs if p.mode == mode and p.samples_per_s is not None and p.status != "failed"]
    names = [point.variant for point in measured]
    variant = REFERENCE_VARIANT if REFERENCE_VARIANT in names else next(iter(names), "")
    return tuple(sorted((p for p in measured if p.variant == variant), key=lambda p: (p.world_size, p.nodes)))


def _alike(points: Sequence[ScalePoint]) -> tuple[ScalePoint, ...]:
    """Return the points with as many GPUs per node as the largest: their node counts are compared."""
    return tuple(point for point in points if point.gpus_per_node == points[-1].gpus_per_node)


# --- The checks.


def _names(points: Sequence[ScalePoint]) -> str:
    return in_short([str(point.scale) for point in points], 8)


def _shown(key: str, points: Sequence[ScalePoint]) -> str:
    column = COLUMNS[key]
    return in_short([f"{point.scale} {column.shown(point)} {column.unit}".strip() for point in points], 8)


def _node_counts(case: Case, parameters: Parameters) -> Found:
    counts = sorted({point.nodes for point in case.points})
    figure = f"{count(len(counts), 'node count')}: {', '.join(map(str, counts))}"
    return Found("pass", figure) if len(counts) >= parameters["least"] else Found("fail", figure, _more_nodes(case))


def _more_nodes(case: Case) -> str:
    """Return how to measure other node counts: those that are planned, or else a new one."""
    largest, counts = case.largest, {point.nodes for point in case.points}
    kind = (largest.mode, largest.variant, largest.gpus_per_node)
    planned = [p for p in case.view.rungs if (p.mode, p.variant, p.gpus_per_node) == kind and p.nodes not in counts]
    if planned:
        return f"{_names(planned)} planned: see the gates and failed runs in report/index.html; start snakemake again"
    scale = f"{2 * largest.nodes}x{largest.gpus_per_node}"
    return f"add scales such as {scale} to stages.stage3.scales; start snakemake again"


def _same_input(case: Case, parameters: Parameters) -> Found:
    if differing := [point for point in case.points if point.differing or point.efficiency is None]:
        fields = dict.fromkeys(field for point in differing for field in point.differing)
        figure = f"{', '.join(fields) or 'runs'} differ at {_names(differing)}"
        return Found("fail", figure, "measure all scales with the same script, arguments, versions and devices")
    samples = sorted({trained_samples(run) for run in case.all_runs})
    figure = f"same script, arguments and fields in {count(len(case.all_runs), 'run')}"
    if allowed := next((point.allowed for point in case.points if point.allowed), ""):
        figure += f"; allowed by fingerprint.may_differ: {allowed}"
    if len(samples) > 1:
        figure += f"; {samples[0]:,} to {samples[-1]:,} samples trained, so times are compared by the sample"
    return Found("pass", figure)


def _through_slurm(case: Case, parameters: Parameters) -> Found:
    jobs = list(dict.fromkeys(run.job.id for run in case.all_runs if run.job))
    simulated = [point for point in case.points if point.simulated]
    local = [job for job in jobs if job.startswith("local-")]
    if simulated or local:
        figure = f"{_names(simulated)}: {simulated[0].simulated}" if simulated else f"not in Slurm: {in_short(local)}"
        return Found("fail", figure, "run it on the centre's machine: snakemake --profile profiles/slurm")
    figure = f"Slurm jobs {in_short(jobs, 8)}, site {case.view.results.plan.site}"
    return Found("pass", figure, "check that this is the centre's machine")


def _run_length(case: Case, parameters: Parameters) -> Found:
    walls = [(run.timing.wall_s, run) for point in case.points for run in case.runs[str(point.scale)] if run.timing]
    shortest_s, run = min(walls, key=lambda each: each[0])
    shares = [(point.startup_s / point.wall_s, point) for point in case.points if point.startup_s and point.wall_s]
    figure, is_short = f"shortest run {duration(shortest_s)} ({run.spec.scale})", shortest_s < parameters["min_run_s"]
    if len(shares) < len(case.points):
        figure += "; the start-up was not recorded"
        return Found("fail", figure, LONGER) if is_short else Found(UNKNOWN, figure, "let it run under the instrument")
    share, worst = max(shares, key=lambda each: each[0])
    figure += f"; start-up at most {100 * share:.1f} % of a run ({worst.scale})"
    most = parameters["max_startup_fraction"]
    if not is_short and share <= most:
        return Found("pass", figure)
    wanted = f"; wanted at least {duration(parameters['min_run_s'])} and at most {100 * most:.0f} %"
    return Found("fail", figure + wanted, LONGER)


Compared = tuple[ScalePoint, Estimate]
"""A scale with its efficiency and the ends of the interval."""


def _by_total_time(case: Case, parameters: Parameters) -> Found:
    if unknown := _not_compared(case):
        return unknown
    base, found = case.runs[str(case.points[0].scale)], []
    for point in case.points[1:]:
        whole = efficiency_by_total_time(case.runs[str(point.scale)], base)
        if whole is None:
            return Found(UNKNOWN, f"the samples of the runs of {point.scale} were not counted")
        found.append((point, whole))
    return _compared_with(case, parameters, found)


def _by_steps(case: Case, parameters: Parameters) -> Found:
    if unknown := _not_compared(case):
        return unknown
    found = [(point, _steps(point, case.points[0])) for point in case.points[1:]]
    return _compared_with(case, parameters, found)


def _not_compared(case: Case) -> Found | None:
    """Return why there is no efficiency at all; None if there is one."""
    if len(case.points) == 1:
        return Found(UNKNOWN, f"only {case.largest.scale} was measured: nothing to compare it with", _more_nodes(case))
    if other := [point for point in case.points if point.efficiency is None]:
        figure = f"{_names(other)} ran another program than {case.points[0].baseline}: {other[-1].note}"
        return Found(UNKNOWN, figure, "measure all scales with the same script, arguments and versions")
    return None


def _steps(point: ScalePoint, base: ScalePoint) -> Estimate:
    """Return the efficiency by steps against a scale, without an interval."""
    return (point.samples_per_s or 0) * base.world_size / (point.world_size * (base.samples_per_s or 1)), None, None


def _compared_with(case: Case, parameters: Parameters, found: Sequence[Compared]) -> Found:
    least, text = parameters["min_efficiency"], COLUMNS["efficiency_total_time"].text
    shown = [
        f"{point.scale} {text(value)} {interval(text(low), text(high)) if (low or 0) < (high or 0) else ''}".strip()
        for point, (value, low, high) in found
    ]
    figure = f"{', '.join(shown)}, against {case.points[0].scale}"
    failing = [point for point, (value, _, _) in found if value < least]
    if not failing:
        doubt = [point for point, (_, low, _) in found if low is not None and low < least]
        more = f"; the interval of {_names(doubt)} goes below {100 * least:.0f} %: more repeats tell" if doubt else ""
        return Found("pass", figure + more)
    slow = next((point for point in failing if _steps(point, case.points[0])[0] < least), None)
    if slow is None:
        words = f"at {_names(failing)} the steps alone reach it, so start-up and end take too much of a run: "
        return Found("fail", figure, words + LONGER)
    most = [point for point in case.points if point.world_size < slow.world_size][-1].scale
    instead = 'do what the section "Where the time goes" proposes'
    return Found("fail", figure, f"the steps of {slow.scale} do not reach it: ask for at most {most}, or {instead}")


def _gpu_utilisation(case: Case, parameters: Parameters) -> Found:
    if case.view.unit != "GPU":
        return Found(UNKNOWN, "this site has no GPU")
    again = "set monitor.enabled to true, see docs/monitoring.md, and measure these scales again"
    if unknown := [point for point in case.points if point.gpu_busy_fraction is None]:
        return Found("fail", f"not sampled at {_names(unknown)}", again)
    figure = f"GPUs busy: {_shown('gpu_busy_fraction', case.points)}"
    return (
        Found("pass", f"{figure}; pictures in usage/")
        if case.pictures
        else Found("fail", f"{figure}; no picture", again)
    )


def _batch_script(case: Case, parameters: Parameters) -> Found:
    results = case.view.results.directory
    scripts = [RunRecords(results).directory(run.spec).job_script for run in case.runs[str(case.largest.scale)]]
    if found := next((script for script in scripts if script.is_file()), None):
        return Found("pass", str(found.relative_to(results)))
    return Found("fail", f"no job.sh of {case.largest.scale}", "keep results/runs: each run's directory has its job.sh")


def _speedup_table(case: Case, parameters: Parameters) -> Found:
    compared = [point for point in case.series if point.speedup is not None]
    if len(compared) < 2:
        return Found("fail", f"{count(len(compared), 'scale')} with a speed-up", "measure a second scale")
    return Found("pass", f"speed-up over {compared[-1].baseline}: {_shown('speedup', compared)}")


def _partition_limit(case: Case, parameters: Parameters) -> Found:
    figure = f"largest run: {case.largest.scale}; the records do not hold the limit of a partition"
    return Found(UNKNOWN, figure, "compare with MaxNodes of scontrol show partition")


def _repeats(case: Case, parameters: Parameters) -> Found:
    few = [point for point in case.points if point.repeats < parameters["least"]]
    figure = f"runs of each scale: {_shown('repeats', case.points)}"
    next_step = f"set repeats to {parameters['least']:.0f} in config.yaml and start snakemake again"
    return Found("fail", figure, next_step) if few else Found("pass", figure)


def _no_failed_runs(case: Case, parameters: Parameters) -> Found:
    if failed := [name for group in case.view.failures for name in group.runs]:
        return Found("fail", f"failed: {in_short(failed)}", case.view.failures[0].failure.next)
    return Found("pass", f"{count(len(case.all_runs), 'run')}, none failed")


CHECKS: Mapping[str, tuple[Callable[[Case, Parameters], Found], *tuple[str, ...]]] = {
    "node counts": (_node_counts, "least"),
    "same input": (_same_input,),
    "through Slurm": (_through_slurm,),
    "run length": (_run_length, "min_run_s", "max_startup_fraction"),
    "efficiency by total time": (_by_total_time, "min_efficiency"),
    "efficiency by steps": (_by_steps, "min_efficiency"),
    "wall times": (lambda case, _: Found("pass", _shown("wall_s", case.points)),),
    "speed-up table": (_speedup_table,),
    "partition limit": (_partition_limit,),
    "GPU utilisation": (_gpu_utilisation,),
    "batch script": (_batch_script,),
    "repeats": (_repeats, "least"),
    "no failed runs": (_no_failed_runs,),
    "by a person": (lambda case, _: Found(UNKNOWN, "only a person knows", "fill in the marks in proposal.md"),),
}
"""Each check, and the parameters that a rule must give it."""
