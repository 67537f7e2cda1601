"""A computing centre's rules for a scaling report: read from its file, judged on what was measured, and its archive.

A rule names a check of CHECKS, which takes the case and the rule's parameters, and returns the verdict with its figure,
and for a failure what to do.
"""

from __future__ import annotations

import io
import re
import textwrap
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.formats import count, duration, in_short, interval
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Several
from ddp_ladder.common.paths import CENTRES
from ddp_ladder.common.redaction import redacted
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import efficiency_by_total_time, trained_samples
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.report.document import Block, Cell, Section
from ddp_ladder.report.proposal import Rules
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.centres import centre_file
from ddp_ladder.settings.terms import REFERENCE_VARIANT

Name = Annotated[str, Field(min_length=1)]
RuleVerdict = Literal["pass", "fail", "cannot be checked"]
Parameters = Mapping[str, float]
Compared = tuple[ScalePoint, Estimate]  # with its efficiency and the ends of the interval
LONGER = "train longer: raise measure.max_steps, measure.max_seconds or the epochs in workload.args; start again"
COLUMNS = {column.key: column for column in columns("csv")}
WIDTH = 100
SHORT = {"pass": "pass", "fail": "fail", "cannot be checked": "unknown"}
TEXTS = (".md", ".tex", ".csv", ".sh", ".txt", ".json")
WRITTEN = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can have
NAMES = {"proposal.md": "report.md", "proposal.tex": "report.tex"}
LEFT_OUT = re.compile(r"index\.html|usage/.*\.svg")  # pictures of what runs used are there as PNG, of one run per scale


class Rule(Model):
    """One rule. check: its name in centre_checks.CHECKS."""

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

    verdict: RuleVerdict
    figure: str
    next: str = ""


@dataclass(frozen=True)
class JudgedRule:
    """A rule with its verdict."""

    rule: Rule
    found: Found

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Return check, what is asked, verdict, figure, next."""
        asks = self.rule.asks if self.rule.confirmed else f"{self.rule.asks} (unconfirmed)"
        return self.rule.check, asks, self.found.verdict, self.found.figure, self.found.next


@dataclass(frozen=True)
class CentreSection:
    """The rules of a centre, judged. archive: the file with what it asks for, in the report's directory."""

    centre: Centre
    judged_on: str
    rules: tuple[JudgedRule, ...]
    archive: str

    headings = ("rule", "asks for", "verdict", "figure", "next")

    @property
    def summary(self) -> str:
        """Return ``6 of 9 rules pass, 1 fails, 2 cannot be checked``, and how many are unconfirmed."""
        verdicts = [each.found.verdict for each in self.rules]
        passed, failed = verdicts.count("pass"), verdicts.count("fail")
        rest = len(verdicts) - passed - failed
        parts = [f"{passed} of {len(verdicts)} rules pass"]
        parts += [f"{failed} {'fails' if failed == 1 else 'fail'}"] if failed else []
        parts += [f"{rest} cannot be checked"] if rest else []
        doubtful = sum(not each.rule.confirmed for each in self.rules)
        return ", ".join(parts) + (f" (unconfirmed: {doubtful} of {len(verdicts)})" if doubtful else "")

    @property
    def section(self) -> Section:
        """Return the section of the page."""
        styles = {"pass": "open", "fail": "closed"}
        rows = tuple(
            (check, asks, Cell(verdict, style=styles.get(verdict, "waiting")), figure, next_step)
            for check, asks, verdict, figure, next_step in (each.cells for each in self.rules)
        )
        summary = f"{self.centre.title}: {self.summary}. What it asks for is in {self.archive}."
        table = Block(name="Rules of the centre", headings=self.headings, rows=rows, style="gates whole")
        return Section("Rules of the centre", (Block(summary), table, Block(self.note)))

    @property
    def note(self) -> str:
        """Return where the rules are from, and what was judged."""
        unconfirmed = any(not each.rule.confirmed for each in self.rules)
        doubt = "; unconfirmed: only an excerpt was seen, so read the rule there" if unconfirmed else ""
        return f"Rules from {self.centre.source}, read {self.centre.read_on}{doubt}. Judged on: {self.judged_on}."


# --- The checks.


@dataclass(frozen=True)
class Case:
    """What is judged: one mode and variant.

    series: its measured points, by size. points: those with as many GPUs per node as the largest, at least one.
    runs: the good runs of each scale. job_scripts: a file of each scale, below the results. pictures: of what the runs
    used, below the report.
    """

    view: ReportView
    series: tuple[ScalePoint, ...]
    points: tuple[ScalePoint, ...]
    runs: Mapping[str, tuple[Record, ...]]
    job_scripts: Mapping[str, str]
    pictures: tuple[str, ...]

    @property
    def largest(self) -> ScalePoint:
        return self.points[-1]

    @property
    def all_runs(self) -> tuple[Record, ...]:
        return tuple(run for point in self.points for run in self.runs[str(point.scale)])


def _names(points: Sequence[ScalePoint]) -> str:
    return in_short([str(point.scale) for point in points], 8)


def _shown(key: str, points: Sequence[ScalePoint]) -> str:
    column = COLUMNS[key]
    shown = [f"{point.scale} {column.shown(point)} {column.unit}".strip() for point in points]
    return in_short(shown, 8)


def _node_counts(case: Case, parameters: Parameters) -> Found:
    counts = sorted({point.nodes for point in case.points})
    figure = f"{count(len(counts), 'node count')}: {', '.join(map(str, counts))}"
    if len(counts) >= parameters["least"]:
        return Found("pass", figure)
    return Found("fail", figure, _more_nodes(case))


def _more_nodes(case: Case) -> str:
    """Return how to measure other node counts: those that are planned, or else a new one."""
    largest, counts = case.largest, {point.nodes for point in case.points}
    kind = (largest.mode, largest.variant, largest.gpus_per_node)
    planned = [p for p in case.view.rungs if (p.mode, p.variant, p.gpus_per_node) == kind and p.nodes not in counts]
    failed = [point for point in planned if point.status == "failed"]
    others = [point for point in planned if point.status != "failed"]
    parts = [f"{_names(failed)} planned, but runs failed: do what the top of report/index.html says"] if failed else []
    parts += [f"{_names(others)} planned, but not run yet: see the gates in report/index.html"] if others else []
    if not planned:
        parts = [f"add scales such as {2 * largest.nodes}x{largest.gpus_per_node} to stages.stage3.scales"]
    return f"{'; '.join(parts)}; start snakemake again"


def _same_input(case: Case, parameters: Parameters) -> Found:
    if differing := [point for point in case.points if point.differing or not point.smallest_baseline]:
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
    if simulated := [point for point in case.points if point.simulated]:
        figure = f"{_names(simulated)}: {simulated[0].simulated}"
        return Found("fail", figure, "run it on the centre's nodes: snakemake --profile profiles/slurm")
    if local := [job for job in jobs if job.startswith("local-")]:
        figure = f"not in Slurm: {in_short(local)}"
        return Found("fail", figure, "run it on the centre's machine: snakemake --profile profiles/slurm")
    partitions = {job.slurm.partition for job in case.view.results.plan.jobs if job.slurm.partition}
    where = f", partition {', '.join(sorted(partitions))}" if partitions else ""
    figure = f"Slurm jobs {in_short(jobs, 8)}, site {case.view.results.plan.site}{where}"
    return Found("pass", figure, "check that this is the centre's machine")


def _run_length(case: Case, parameters: Parameters) -> Found:
    walls = [(run.timing.wall_s, run) for point in case.points for run in case.runs[str(point.scale)] if run.timing]
    shortest_s, run = min(walls, key=lambda each: each[0])
    shares = [(point.startup_s / point.wall_s, point) for point in case.points if point.startup_s and point.wall_s]
    figure = f"shortest run {duration(shortest_s)} ({run.spec.scale})"
    if len(shares) < len(case.points):
        unknown = f"{figure}; the start-up was not recorded"
        if shortest_s < parameters["min_run_s"]:
            return Found("fail", unknown, LONGER)
        return Found("cannot be checked", unknown, "let the script run under the instrument, not from its log")
    share, worst = max(shares, key=lambda each: each[0])
    figure += f"; start-up at most {100 * share:.1f} % of a run ({worst.scale})"
    good = shortest_s >= parameters["min_run_s"] and share <= parameters["max_startup_fraction"]
    wanted = f"; wanted at least {duration(parameters['min_run_s'])} and at most "
    wanted += f"{100 * parameters['max_startup_fraction']:.0f} %"
    return Found("pass", figure) if good else Found("fail", figure + wanted, LONGER)


def _by_total_time(case: Case, parameters: Parameters) -> Found:
    found: list[Compared] = []
    base, larger = case.points[0], case.points[1:]
    unknown = _not_compared(case)
    if unknown is not None:
        return unknown
    for point in larger:
        one = efficiency_by_total_time(case.runs[str(point.scale)], case.runs[str(base.scale)])
        if one is None:
            return Found("cannot be checked", f"the samples of the runs of {point.scale} were not counted")
        found.append((point, one))
    judged = _judged(case, parameters, found, "efficiency_total_time")
    return judged if judged.verdict == "fail" else _hidden_by_startup(case, parameters, judged.figure) or judged


def _hidden_by_startup(case: Case, parameters: Parameters, figure: str) -> Found | None:
    """Return that scales pass only because every scale pays the same start-up; None if there are none."""
    base = case.runs[str(case.points[0].scale)]
    without = [
        (point, found[0])
        for point in case.points[1:]
        if (found := efficiency_by_total_time(case.runs[str(point.scale)], base, with_startup=False))
        and found[0] < parameters["min_efficiency"]
    ]
    if not without:
        return None
    text = COLUMNS["efficiency_total_time"].text
    shown = ", ".join(f"{point.scale} {text(value)}" for point, value in without)
    times = [run.timing for run in case.all_runs if run.timing]
    share = max(time.startup_s / time.wall_s for time in times if time.startup_s is not None)
    figure += f"; but without the start-up, which is up to {100 * share:.0f} % of a run: {shown}"
    return Found("cannot be checked", figure, LONGER)


def _by_steps(case: Case, parameters: Parameters) -> Found:
    unknown = _not_compared(case)
    if unknown is not None:
        return unknown
    found = [(point, _steps(point, case.points[0])) for point in case.points[1:]]
    return _judged(case, parameters, found, "efficiency_smallest")


def _not_compared(case: Case) -> Found | None:
    """Return why there is no efficiency at all; None if there is one."""
    if len(case.points) == 1:
        figure = f"only {case.largest.scale} was measured: nothing to compare it with"
        return Found("cannot be checked", figure, _more_nodes(case))
    other = [point for point in case.points if point.smallest_baseline != _baseline(case)]
    if other:
        figure = f"{_names(other)} ran another program than {case.points[0].scale}: {other[-1].note}"
        return Found("cannot be checked", figure, "measure all scales with the same script, arguments and versions")
    return None


def _baseline(case: Case) -> str:
    return case.points[0].smallest_baseline


def _steps(point: ScalePoint, base: ScalePoint) -> Estimate:
    """Return the efficiency by steps against a scale, without an interval."""
    return (point.samples_per_s or 0) * base.world_size / (point.world_size * (base.samples_per_s or 1)), None, None


def _judged(case: Case, parameters: Parameters, found: Sequence[Compared], key: str) -> Found:
    text, least = COLUMNS[key].text, parameters["min_efficiency"]
    shown = [
        f"{point.scale} {text(value)} {interval(text(low), text(high)) if (low or 0) < (high or 0) else ''}".strip()
        for point, (value, low, high) in found
    ]
    figure = f"{', '.join(shown)}, against {case.points[0].scale}"
    failing = [point for point, (value, _, _) in found if value < least]
    if not failing:
        doubt = [point for point, (_, low, _) in found if low is not None and low < least]
        if doubt:
            figure += f"; the interval of {_names(doubt)} goes below {100 * least:.0f} %: more repeats tell"
        return Found("pass", figure)
    return Found("fail", figure, _smaller_or_longer(case, failing, least))


def _smaller_or_longer(case: Case, failing: Sequence[ScalePoint], least: float) -> str:
    """Return what to do for scales that do not reach an efficiency: longer runs if only their steps do."""
    slow = next((point for point in failing if _steps(point, case.points[0])[0] < least), None)
    short = [point for point in failing if slow is None or point.world_size < slow.world_size]
    parts = []
    if slow is not None:
        most = [point for point in case.points if point.world_size < slow.world_size][-1].scale
        instead = 'do what the section "Where the time goes" proposes'
        parts.append(f"the steps of {slow.scale} do not reach it: ask for at most {most}, or {instead}")
    if short:
        parts.append(
            f"at {_names(short)} the steps alone reach it, so start-up and end take too much of a run: raise "
            "measure.max_steps, measure.max_seconds or the epochs in workload.args; start again"
        )
    return "; ".join(parts)


def _wall_times(case: Case, parameters: Parameters) -> Found:
    return Found("pass", _shown("wall_s", case.points))


def _gpu_utilisation(case: Case, parameters: Parameters) -> Found:
    if case.view.unit != "GPU":
        return Found("cannot be checked", "this site has no GPU")
    unknown = [point for point in case.points if point.gpu_busy_fraction is None]
    again = "set monitor.enabled to true, see docs/monitoring.md, and measure these scales again"
    if unknown:
        return Found("fail", f"not sampled at {_names(unknown)}", again)
    figure = f"GPUs busy: {_shown('gpu_busy_fraction', case.points)}"
    if not case.pictures:
        return Found("fail", f"{figure}; no picture, as the runs were too short for one", again)
    return Found("pass", f"{figure}; pictures in {case.pictures[0].rpartition('/')[0]}/")


def _batch_script(case: Case, parameters: Parameters) -> Found:
    script = case.job_scripts.get(str(case.largest.scale))
    if script is None:
        return Found(
            "fail", f"no job.sh of {case.largest.scale}", "keep results/runs: each run's directory has its job.sh"
        )
    return Found("pass", script)


def _by_a_person(case: Case, parameters: Parameters) -> Found:
    return Found("cannot be checked", "only a person knows", "fill in the marks in proposal.md")


def _speedup_table(case: Case, parameters: Parameters) -> Found:
    compared = [point for point in case.series if point.speedup_smallest is not None]
    if len(compared) < 2:
        return Found("fail", f"{count(len(compared), 'scale')} with a speed-up", "measure a second scale")
    last = compared[-1]
    return Found("pass", f"speed-up over {last.smallest_baseline}: {_shown('speedup_smallest', compared)}")


def _partition_limit(case: Case, parameters: Parameters) -> Found:
    partitions = sorted({job.slurm.partition for job in case.view.results.plan.jobs if job.slurm.partition})
    figure = f"largest run: {case.largest.scale}; the records do not hold the limit of a partition"
    return Found(
        "cannot be checked", figure, f"compare with MaxNodes of scontrol show partition {' '.join(partitions)}".strip()
    )


def _repeats(case: Case, parameters: Parameters) -> Found:
    few = [point for point in case.points if point.repeats < parameters["least"]]
    figure = f"runs of each scale: {_shown('repeats', case.points)}"
    next_step = f"set repeats to {parameters['least']:.0f} in config.yaml and start snakemake again"
    return Found("fail", figure, next_step) if few else Found("pass", figure)


def _no_failed_runs(case: Case, parameters: Parameters) -> Found:
    failed = [name for group in case.view.failures for name in group.runs]
    if failed:
        return Found("fail", f"failed: {in_short(failed)}", case.view.failures[0].failure.next)
    return Found("pass", f"{count(len(case.all_runs), 'run')}, none failed")


@dataclass(frozen=True)
class Check:
    """A check and the parameters that a rule must give it."""

    judge: Callable[[Case, Parameters], Found]
    parameters: tuple[str, ...] = ()


CHECKS: Mapping[str, Check] = {
    "node counts": Check(_node_counts, ("least",)),
    "same input": Check(_same_input),
    "through Slurm": Check(_through_slurm),
    "run length": Check(_run_length, ("min_run_s", "max_startup_fraction")),
    "efficiency by total time": Check(_by_total_time, ("min_efficiency",)),
    "efficiency by steps": Check(_by_steps, ("min_efficiency",)),
    "wall times": Check(_wall_times),
    "speed-up table": Check(_speedup_table),
    "partition limit": Check(_partition_limit),
    "GPU utilisation": Check(_gpu_utilisation),
    "batch script": Check(_batch_script),
    "repeats": Check(_repeats, ("least",)),
    "no failed runs": Check(_no_failed_runs),
    "by a person": Check(_by_a_person),
}


# --- The section.


def read_centre(name: str) -> Centre:
    """Read the rules of a centre. Raises UserError for an unknown name, or a file that is not as it must be."""
    file = centre_file(name)
    try:
        centre = Centre.from_json({"name": name, **tomllib.loads(file.read_text())})
        for number, rule in enumerate(centre.rules, start=1):
            _check(number, rule)
    except ValueError as error:
        example = CENTRES / "csc-large.toml"
        raise UserError(
            Problem(str(file), "these are no rules of a centre", found=str(error), next=f"compare with {example}")
        ) from None
    return centre


def _check(number: int, rule: Rule) -> None:
    if rule.check not in CHECKS:
        raise ValueError(f"rule {number}: check {rule.check!r} is none of {', '.join(CHECKS)}")
    wanted = CHECKS[rule.check].parameters
    if set(wanted) != set(rule.parameters):
        raise ValueError(f"rule {number}: the parameters of {rule.check!r} are {', '.join(wanted) or 'none'}")


_NOTHING = Found("cannot be checked", "nothing was measured", "run the ladder: snakemake --profile profiles/slurm")


def centre_section(centre: Centre, results: Path, view: ReportView, pictures: Sequence[str]) -> CentreSection:
    """Return the rules, judged. pictures: of what the runs used, as files below the report."""
    case = case_of(results, view, pictures)
    rules = tuple(
        JudgedRule(rule, CHECKS[rule.check].judge(case, rule.parameters) if case else _NOTHING) for rule in centre.rules
    )
    judged_on = (
        f"{case.largest.mode} scaling, variant {case.largest.variant}, scales {_names(case.points)}"
        if case
        else "nothing"
    )
    return CentreSection(centre, judged_on, rules, f"{centre.name}.zip")


def case_of(results: Path, view: ReportView, pictures: Sequence[str]) -> Case | None:
    """Return what is judged: the mode with the most scales of the largest one's nodes; None if nothing was measured.

    With as many of both, strong scaling: all its runs have the same work.
    """
    series = [tuple(_series(view, mode)) for mode in ("strong", "weak")]
    chosen = max(series, key=lambda points: len(_whole_nodes(points)))
    if not chosen:
        return None
    runs: dict[str, list[Record]] = {str(point.scale): [] for point in chosen}
    for run in view.runs:
        mine = (run.spec.mode, run.spec.variant) == (chosen[0].mode, chosen[0].variant)
        if mine and run.status == "ok" and str(run.spec.scale) in runs:
            runs[str(run.spec.scale)].append(run)
    return Case(
        view,
        chosen,
        _whole_nodes(chosen),
        {scale: tuple(found) for scale, found in runs.items()},
        dict(_job_scripts(results, runs)),
        tuple(pictures),
    )


def _series(view: ReportView, mode: str) -> list[ScalePoint]:
    """Return the measured points of a mode, of the reference variant or else of the first, by size."""
    measured = [
        point
        for point in view.rungs
        if point.mode == mode and point.samples_per_s is not None and point.status != "failed"
    ]
    names = [point.variant for point in measured]
    variant = REFERENCE_VARIANT if REFERENCE_VARIANT in names else next(iter(names), "")
    return sorted((p for p in measured if p.variant == variant), key=lambda p: (p.world_size, p.nodes))


def _whole_nodes(points: Sequence[ScalePoint]) -> tuple[ScalePoint, ...]:
    """Return the points with as many GPUs per node as the largest: their node counts are compared."""
    return tuple(point for point in points if point.gpus_per_node == points[-1].gpus_per_node)


def _job_scripts(results: Path, runs: dict[str, list[Record]]) -> Iterator[tuple[str, str]]:
    """Yield the job.sh of the first good run of each scale that has one."""
    for scale, found in runs.items():
        for run in found:
            script = RunRecords(results).directory(run.spec).job_script
            if script.is_file():
                yield scale, str(script.relative_to(results))
                break


def rules_of(section: CentreSection) -> Rules:
    """Return the section for the proposal, without what is to be done: an application says what was found."""
    table = Block(
        f"{section.centre.title}: {section.summary}.",
        headings=section.headings[:-1],
        rows=tuple(each.cells[:-1] for each in section.rules),
        widths=(1, 2.5, 0.8, 2.5),
    )
    return Rules("Rules of the centre", table, section.note)


def terminal_lines(section: CentreSection, report: Path) -> list[str]:
    """Return the rules for the terminal: figure of each, and what to do about those that do not pass."""
    lines = _wrapped("centre", f"{section.centre.title}: {section.summary}; {report / section.archive}")
    for each in section.rules:
        check, asks, verdict, figure, next_step = each.cells
        lines += _wrapped(SHORT[verdict], f"{check}: {figure}")
        if verdict != "pass":
            lines += _wrapped("", f"asked: {asks}")
        if next_step:
            lines += _wrapped("", f"next: {next_step}")
    return [*lines, *_wrapped("", section.note)]


def _wrapped(word: str, text: str) -> list[str]:
    plain = text.replace("\u00a0", " ").replace("\u2013", "-")
    return textwrap.wrap(plain, WIDTH, initial_indent=f"{word:<9}", subsequent_indent=" " * 9)


# --- The archive: the same content gives the same bytes, and no secret is in it.


def archive(results: Path, files: Mapping[str, str | bytes], case: Case | None) -> bytes:
    """Return the zip file: the report's own files, and of one run of each scale job script and monitoring.

    files: of the report, by path below it. A file that cannot be read is left out.
    """
    content = {NAMES.get(name, name): data for name, data in files.items() if not LEFT_OUT.fullmatch(name)}
    for name, path in _others(results, case):
        with suppress(OSError):
            content[name] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(content):
            info = zipfile.ZipInfo(name, WRITTEN)
            info.external_attr = 0o644 << 16
            file.writestr(info, _clean(name, content[name]), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _clean(name: str, data: str | bytes) -> bytes:
    """Return the bytes of a file, a text without secrets."""
    if not name.endswith(TEXTS):
        return data.encode() if isinstance(data, str) else data
    return redacted(data if isinstance(data, str) else data.decode(errors="replace")).encode()


def _others(results: Path, case: Case | None) -> Iterator[tuple[str, Path]]:
    """Yield the name in the archive and the path of each file that is not the report's own."""
    yield "accounting.csv", results / "accounting.csv"
    if case is None:
        return
    for scale, script in case.job_scripts.items():
        yield f"jobs/{scale}/job.sh", results / script
    for scale, runs in case.runs.items():
        for run in runs[:1]:
            directory = RunRecords(results).directory(run.spec)
            for node_rank in range(run.spec.nodes):
                yield f"monitoring/{scale}/node{node_rank}.csv", directory.samples(node_rank)
