"""scaling.md: the report as text, for GitHub and the like: pictures beside it, long tables closed (<details>)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ddp_ladder.analysis.forecast import HEADINGS
from ddp_ladder.common import formats
from ddp_ladder.gates.figures import Column, columns, figures_in
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.attribution_section import attribution_section, factor_mark
from ddp_ladder.report.comparison_section import ComparisonSection
from ddp_ladder.report.escape import markdown_table as _md_table
from ddp_ladder.report.escape import markdown_text as _md
from ddp_ladder.report.first_screen import folded_series, recommendations, tables_of_others
from ddp_ladder.report.missing import not_sampled
from ddp_ladder.report.prediction_section import PredictionSection
from ddp_ladder.report.scaling_section import ScalingTable, scaling_section
from ddp_ladder.report.usage_section import UsageSection, kinds_found, row_name
from ddp_ladder.report.view import (
    INTERVALS,
    MOST_ROWS,
    PREFLIGHT_HEADINGS,
    FailureGroup,
    GateRow,
    ReportView,
    Series,
    gate_rows,
)
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale


def markdown(
    view: ReportView, usage: UsageSection, prediction: PredictionSection, comparison: ComparisonSection
) -> str:
    """Return the text of scaling.md."""
    parts = [f"# {_md(view.title)}", _md(view.headline.text)]
    if view.headline.evidence:
        parts.append(f"Evidence: {_md(formats.full_stop('; '.join(view.headline.evidence)))}")
    if view.headline.next:
        parts.append(f"Next: {_md(formats.full_stop(view.headline.next))}")
    if view.machine:
        parts.append(_md(view.machine))
    scaling = scaling_section(view)
    if advice := recommendations(scaling, prediction):
        lines = [f"- **{kind}:** {_md(line)}" if kind else f"- {_md(line)}" for kind, line in advice]
        parts += ["## What to ask for", "\n".join(lines)]
    if view.anything_measured:
        pictures = (("Throughput", "throughput.png"), ("Efficiency at each scale", "efficiency.png"))
        parts.append(" ".join(f'<img src="{file}" alt="{words}" width="49%">' for words, file in pictures))
    folded = folded_series(view.series)
    parts += [_md_series(each.series) for each in folded if not each.summary]
    if closed := [_closed(each.summary, _md_points(each.series.points)) for each in folded if each.summary]:
        parts.append(_closed(tables_of_others(len(closed)), "\n\n".join(closed)))
    if view.notes:
        parts.append("\n".join(f"- {_md(where)}: {_md(note)}" for where, note in view.notes))
    parts.append(f"Square brackets: {INTERVALS}.")
    if view.unit != "GPU":
        parts.append('This site has no GPU: each "GPU" of a scale is one CPU process.')
    if not comparison.is_empty:
        found = _md(" ".join(comparison.sentences))
        parts += ["## Variants", f"{found} All ratios are in [comparison.md](comparison.md)."]
    for table in scaling.tables:
        parts += [f"## {_md(table.title)}", _md_scaling(table)]
    if not prediction.is_empty:
        parts += ["## Prediction", *_md_prediction(prediction)]
    if view.startup.points:
        parts += ["## Start-up", _md_startup(view)]
    if not usage.is_empty:
        parts += ["## What the runs used", *_md_usage(view, usage)]
    parts += _md_attribution(view)
    parts += ["## Gates", _md_gates(view)]
    if view.preflight_rows:
        parts += ["## Preflight", _md_table(PREFLIGHT_HEADINGS, view.preflight_rows)]
    if view.failures:
        parts += ["## Failed runs", "\n".join(_md_failure(group) for group in view.failures)]
    parts += ["## Runs", f"{view.results.counts.in_words}. {not_sampled(view.runs)}".strip()]
    if view.results.warnings:
        lines = [f"- {_md(warning)}" for warning in view.results.warnings]
        parts += ["## Left out", "\n".join(lines)]
    parts += ["## Definitions", _md_definitions(view.first_scale)]
    if view.measured:
        parts += ["## Measured on", _md_measured(view)]
    if view.machine_lines:
        parts += ["## The machine", "\n".join(f"- {_md(line)}" for line in view.machine_lines)]
    parts.append(f"Written by ddp-ladder on {view.written_on.isoformat()}.")
    return "\n\n".join(parts) + "\n"


def _md_series(series: Series) -> str:
    return f"## {_md(series.title)}\n\n{_md_points(series.points)}"


def _closed(summary: str, body: str) -> str:
    """Return Markdown that is closed at first."""
    return f"<details><summary>{escape(summary, quote=False)}</summary>\n\n{body}\n\n</details>"


def _folded(table: str, rows: int, what: str = "scales") -> str:
    return _closed(f"Table of {rows} {what}", table) if rows > MOST_ROWS else table


def _md_points(points: Sequence[ScalePoint]) -> str:
    shown = [each for each in columns("markdown") if any(getattr(point, each.key) is not None for point in points)]
    rows = [(_name(point), point.status, *(_md_cell(column, point) for column in shown)) for point in points]
    return _md_table(("scale", "status", *map(_heading, shown)), rows, figures=len(shown))


def _name(point: ScalePoint) -> str:
    return f"{point.scale} plain" if point.is_plain else str(point.scale)


def _heading(column: Column) -> str:
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def _md_cell(column: Column, point: ScalePoint) -> str:
    interval, mark = column.beside(point, "markdown")
    return " ".join(filter(None, (column.shown(point), interval, f"({mark})" if mark else "")))


def _md_scaling(table: ScalingTable) -> str:
    headings = [f"{heading} ({unit})" if unit else heading for _, heading, unit in table.headings]
    rows = [(name, *(" ".join(filter(None, (cell.text, cell.mark))) for cell in cells)) for name, cells in table.rows]
    return _folded(_md_table(("scale", *headings), rows, figures=len(headings)), len(rows))


def _md_startup(view: ReportView) -> str:
    shown = view.startup.columns
    rows = [
        (view.place(point) if view.several_series else _name(point), *(column.shown(point) for column in shown))
        for point in view.startup.points
    ]
    table = _folded(_md_table(("scale", *map(_heading, shown)), rows, figures=len(shown)), len(rows))
    return f"{table}\n\n{view.startup.note}"


def _md_prediction(prediction: PredictionSection) -> Iterator[str]:
    if prediction.ahead:
        yield "\n".join(f"- {_md(line)}" for line in prediction.ahead)
    if prediction.errors:
        yield _md_table(HEADINGS, prediction.error_rows)
        yield _md(prediction.note)


def _md_usage(view: ReportView, usage: UsageSection) -> Iterator[str]:
    shown = usage.table.columns
    rows = [
        (
            row_name(point, view.several_series),
            *(column.shown(point) for column in shown),
            kinds_found(point, view.runs),
        )
        for point in usage.table.points
    ]
    if rows:
        yield _folded(_md_table(("scale", *map(_heading, shown), "findings"), rows), len(rows))
    found = [
        f"- {_md(', '.join(map(view.place, where)))}: {_md(formats.full_stop(each.in_words))} "
        f"Next: {_md(formats.full_stop(each.next))}"
        for each, where in usage.findings
    ]
    if lines := [*found, *(f"- {_md(note)}" for note in usage.notes)]:
        yield "\n".join(lines)
    if usage.jobs:
        jobs = _md_table([view.of_device(heading) for heading in usage.jobs.headings], usage.jobs.rows)
        yield _folded(jobs, len(usage.jobs.rows), "jobs")
        yield _md(formats.full_stop(usage.jobs.totals))
        if usage.jobs.advice:
            yield "\n".join(f"- {_md(line)}" for line in usage.jobs.advice)


def _md_attribution(view: ReportView) -> Iterator[str]:
    section = attribution_section(view)
    if section.is_empty:
        return
    yield "## Where the time goes"
    rows = [
        (view.place(p), *(f"{c.shown(p)} {factor_mark(c, p)}".strip() for c in section.columns)) for p in section.table
    ]
    table = _md_table(("scale", *map(_heading, section.columns)), rows, figures=len(section.columns))
    yield _folded(table, len(rows))
    for each in section.explained:
        lines = [
            f"- {_md(': '.join(filter(None, (loss.in_words, '; '.join(loss.evidence)))))}" for loss in each.found.listed
        ]
        lines += [f"- Not known: {_md(line)}" for line in each.found.unknown]
        lines += [f"- Next: {_md(change.what)}: {_md(change.gain_in_words)}" for change in each.found.changes]
        yield "\n".join((f"{_md(each.place)}: {_md(each.found.lost_in_words)}.", "", *lines))


def _md_gates(view: ReportView) -> str:
    lines = []
    every = sum(len(gate_rows(gate)) for gate in view.gates.values())
    for stage in view.stages:
        gate = view.gates.get(stage)
        if gate is None:
            lines.append(f"- {formats.stage_name(stage)}: not judged yet")
            continue
        rows = gate_rows(gate)
        why = f": {_md(gate.why)}" if gate.why and not rows else ""
        lines.append(f"- {formats.stage_name(stage)}: **{gate.verdict}**{why}")
        shown = [row for row in rows if every <= MOST_ROWS or _is_decisive(row)]
        lines += [
            f"    - {_md(row.place(view.several_series))}: {_md(row.item.in_words)}, "
            f"wanted {_md(row.item.wanted)}{'' if row.item.ok else ' (**not met**)'}"
            for row in shown
        ]
        if len(shown) < len(rows):
            lines.append(f"    - {len(rows) - len(shown)} more, of other variants: met")
    return "\n".join(lines) or "No stage is planned."


def _is_decisive(row: GateRow) -> bool:
    return not row.item.ok or row.item.variant == REFERENCE_VARIANT


def _md_failure(group: FailureGroup) -> str:
    failure, verdict = group.failure, group.verdict
    text = f"- {_md(', '.join(group.runs))}: {_md(verdict)}. Why: {_md(failure.why)} Next: {_md(failure.next)}"
    return "\n".join((text, *(f"    - {_md(line)}" for line in group.evidence)))


def _md_definitions(first: Scale) -> str:
    rows = [(figure.name, figure.unit, figure.definition) for figure in figures_in("csv", first=first)]
    return _md_table(("figure", "unit", "definition"), rows)


def _md_measured(view: ReportView) -> str:
    rows = [(row.name, row.mark, "; ".join(_with_places(*pair) for pair in row.values)) for row in view.measured]
    return _md_table(("field", "must match", "value"), rows)


def _with_places(value: str, places: str) -> str:
    return f"{value} ({places})" if places else value
