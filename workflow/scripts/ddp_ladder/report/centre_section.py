"""The rules of a centre, read from its file and judged on what was measured."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.paths import CENTRES
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.report.centre import Centre, CentreSection, Found, JudgedRule, Rule
from ddp_ladder.report.centre_checks import CHECKS, Case
from ddp_ladder.report.document import Block
from ddp_ladder.report.proposal import Rules
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.centres import centre_file
from ddp_ladder.settings.terms import REFERENCE_VARIANT

WIDTH = 100
SHORT = {"pass": "pass", "fail": "fail", "cannot be checked": "unknown"}
NOTHING = Found("cannot be checked", "nothing was measured", "run the ladder: snakemake --profile profiles/slurm")


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


def centre_section(centre: Centre, results: Path, view: ReportView, pictures: Sequence[str]) -> CentreSection:
    """Return the rules, judged. pictures: of what the runs used, as files below the report."""
    case = case_of(results, view, pictures)
    rules = tuple(
        JudgedRule(rule, CHECKS[rule.check].judge(case, rule.parameters) if case else NOTHING) for rule in centre.rules
    )
    judged_on = (
        f"{case.largest.mode} scaling, variant {case.largest.variant}, scales {_names(case)}" if case else "nothing"
    )
    return CentreSection(centre, judged_on, rules, f"{centre.name}.zip")


def _names(case: Case) -> str:
    return ", ".join(str(point.scale) for point in case.points)


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
