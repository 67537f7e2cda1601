"""Write the report of a ladder: one self-contained page, Markdown, CSV, plots, and the section for an application.

It works with any results: no record at all, one stage, failed runs, a closed gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from ddp_ladder import __version__
from ddp_ladder.common.files import make_directory, write_atomically
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import count, duration, full_stop, stage_name
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, SCALING_CSV, csv_row
from ddp_ladder.gates.gate import Place
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.production.plan import keep_planned
from ddp_ladder.report.centre import Centre, judged, rules_section
from ddp_ladder.report.comparison import comparison_csv
from ddp_ladder.report.document import Block, Cell, Document, Section, as_html, as_markdown, csv_text
from ddp_ladder.report.hours import per_million, planned
from ddp_ladder.report.plots import (
    FOLDER,
    attribution_figure,
    draw_usage,
    drawn,
    efficiency_figure,
    throughput_figure,
)
from ddp_ladder.report.proposal import proposal
from ddp_ladder.report.sections import runs_csv, sections
from ddp_ladder.report.view import LadderResults, ReportView, tokens_in_words
from ddp_ladder.settings.terms import ONE_GPU, REFERENCE_VARIANT


@dataclass(frozen=True)
class Written:
    """What was written."""

    files: tuple[Path, ...]  # the page first
    rules: Sequence[Finding] = ()  # of the centre


def write_report(
    ladder: LadderResults,
    written_on: date | None = None,
    centre: Centre | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Written:
    """Write report/ in the results directory. centre: whose form the proposal has and whose rules are checked.

    say: is told what is done next, where that takes seconds. Raises OSError (disk full).
    """
    say("drawing  the figures")
    view, report = ReportView(ladder, written_on or date.today()), ladder.directory / "report"
    figures = {
        "throughput": throughput_figure(view.rungs, view.units),
        "efficiency": efficiency_figure(view.rungs, view.thresholds),
        "attribution": attribution_figure([point for point in view.rungs if point.variant == REFERENCE_VARIANT]),
    }
    plots = {f"{name}.{kind}": data for name, figure in figures.items() for kind, data in drawn(figure).items()}
    say("drawing  what the runs used")
    usage, pictures = draw_usage(ladder.directory, view.runs)
    rules: Sequence[Finding] = ()
    chapters, of_page = centre.chapters if centre else (), []
    application = proposal(view, chapters)
    if centre:
        rules = judged(centre, view)
        of_page = [rules_section(centre, view, rules, with_next=True)]
        if not chapters:  # a form is pasted as it is: its rules are on the page alone
            application = proposal(view, rules=[rules_section(centre, view, rules, with_next=False)])
    parts = sections(view, usage, of_page)
    files: dict[str, str | bytes] = {
        "scaling.md": as_markdown(markdown_document(view, parts)),
        "proposal.md": as_markdown(application),
        "runs.csv": runs_csv(view.runs),
        "scaling.csv": csv_text(map(csv_row, view.points), SCALING_CSV),
        **plots,
        **({"comparison.csv": comparison_csv(view.comparison)} if view.comparison else {}),
        **pictures,
    }
    files = {"index.html": html(view, parts, files), **files}
    make_directory(report / FOLDER)  # an output of Snakemake's rule, if only an empty one
    for name, content in files.items():
        write_atomically(report / name, content)
    if plan := planned(view):
        keep_planned(ladder.directory, plan)
    return Written(tuple(report / name for name in files), rules)


def html(view: ReportView, parts: Sequence[Section], files: Mapping[str, str | bytes]) -> str:
    """Return index.html with its plots inside; every text is escaped."""
    return as_html(
        "index.html.j2",
        files,
        view=view,
        gates=gate_lines(view),
        recommendations=recommendations(view),
        plots=plot_blocks(view),
        sections=parts,
    )


def markdown_document(view: ReportView, parts: Sequence[Section]) -> Document:
    """Return scaling.md: the report as text, for GitHub and the like, with the pictures beside it."""
    headline, warnings = view.headline, view.results.warnings
    head = [Block(headline.text)]
    head += [Block(f"Evidence: {full_stop('; '.join(headline.evidence))}")] if headline.evidence else []
    head += [Block(f"Next: {full_stop(headline.next)}")] if headline.next else []
    asked = tuple(Cell(text, lead=kind) for kind, text in recommendations(view))
    failures = tuple(
        Block(
            f"{', '.join(group.runs)}: {group.failure.placed}",
            items=(group.failure.why, *group.failure.quoted, f"Next: {group.failure.next}"),
        )
        for group in view.failures
    )
    first = (
        Section("", (*head, Block(view.machine))),
        Section("What to ask for", (Block(items=asked),) if asked else ()),
        Section("Plots", plot_blocks(view)),
        Section("Failed runs", failures),
        Section("Left out", (Block(items=warnings),) if warnings else ()),
    )
    ending = f"Written by ddp-ladder {__version__} on {view.written_on.isoformat()}."
    return Document(view.title, (*(part for part in first if part.blocks), *parts), ending)


# --- The first screen.


def plot_blocks(view: ReportView) -> tuple[Block, ...]:
    """Return the plots of throughput and efficiency; none if nothing was measured."""
    if not view.anything_measured:
        return ()
    group = ", a process group of one" if view.plan.first_scale == ONE_GPU else ", where the ladder starts"
    against = f"against {view.plan.first_scale} of the same variant and mode{group}"
    return (
        Block(
            f"Throughput against the number of {view.units}, both axes logarithmic, equal ones side by side.",
            picture="throughput",
        ),
        Block(f"Efficiency at each scale in climbing order, {against}.", picture="efficiency"),
    )


def gate_lines(view: ReportView) -> Iterator[tuple[str, str, str, str]]:
    """Yield stage, CSS classes, verdict and what decided it for each gate, in climbing order."""
    for stage in view.plan.stages:
        gate = view.results.gates.get(stage)
        if gate is None:
            yield stage_name(stage), "waiting", "not judged", ""
            continue
        doubts = gate.uncertain(REFERENCE_VARIANT)
        met = [item for item in gate.worth_showing if item.ok and Place.of(item).variant == REFERENCE_VARIANT]
        decided = next(iter((*doubts, *filter(None, [gate.reason]), *gate.failing, *reversed(met))), None)
        sane = gate.why or f"{count(gate.sane_runs, 'run')} passed every sanity check"
        word = f"{gate.verdict} (uncertain)" if doubts else gate.verdict
        yield stage_name(stage), f"{gate.verdict}{' uncertain' * bool(doubts)}", word, _in_a_line(decided) or sane


def _in_a_line(item: Finding | None) -> str:
    """Return the figure and the threshold alone; the headline has the rest of what closes a gate."""
    if item is None:
        return ""
    return f"{Place.of(item).scale}: {item.measured.partition('; ')[0]}, wanted {item.wanted.partition(' (')[0]}"


def recommendations(view: ReportView) -> tuple[tuple[str, str], ...]:
    """Return what to ask for, the recommended scale first: (what it is, the figures)."""
    lines = []
    for decision in view.decisions:
        if point := decision.recommended:
            figures = full_stop(", ".join(_figures(point, view)))
            text = f"{view.place(point)} ({view.of_device(decision.rule)}): {figures} {decision.doubt}"
            lines.append(("Recommended", text.rstrip()))
    lines += [("", view.results.work.missing)] if view.anything_measured and view.results.work.missing else []
    return (*lines, *(("", full_stop(f"Predicted, not measured: {one.in_words}")) for one in view.outlooks))


def _figures(point: ScalePoint, view: ReportView) -> Iterator[str]:
    yield f"{SAMPLES_PER_S.shown(point)} {SAMPLES_PER_S.heading}{tokens_in_words(point, view.unit)}"
    if not point.is_baseline:
        yield f"efficiency {EFFICIENCY.with_interval(point)}"
    yield per_million(point, view)
    if (took_h := point["hours_to_solution"]) is not None:
        hours = view.plan.hour_unit.in_words(point.cost(took_h))
        yield f"{view.results.work.in_words} take {duration(3600 * took_h)}: {hours}"
