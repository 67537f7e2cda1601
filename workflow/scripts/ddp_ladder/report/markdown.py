"""scaling.md: the report as text that can be pasted into a proposal."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.common import formats
from ddp_ladder.gates.figures import Column, columns, figures_in
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.report.view import FailureGroup, ReportView, gate_rows


def markdown(view: ReportView) -> str:
    """Return the text of scaling.md."""
    parts = [f"# {_md(view.title)}", _md(view.headline.text)]
    if view.headline.next:
        parts.append(f"Next: {_md(formats.full_stop(view.headline.next))}")
    if view.machine:
        parts.append(_md(view.machine))
    for series in view.series:
        parts += [f"## {_md(series.title)}", _md_points(series.points)]
    if view.notes:
        parts.append("\n".join(f"- {_md(view.place(p))}: {_md(p.note)}" for p in view.notes))
    parts.append("Square brackets: 95 % intervals (bootstrap over repeats and blocks).")
    if view.unit != "GPU":
        parts.append('This site has no GPU: each "GPU" of a scale is one CPU process.')
    if view.startup.points:
        parts += ["## Start-up", _md_startup(view)]
    parts += ["## Gates", _md_gates(view)]
    if view.failures:
        parts += ["## Failed runs", "\n".join(_md_failure(group) for group in view.failures)]
    if view.results.warnings:
        lines = [f"- {_md(warning)}" for warning in view.results.warnings]
        parts += ["## Left out", "\n".join(lines)]
    parts += ["## Definitions", _md_definitions()]
    if view.measured:
        parts += ["## Measured on", _md_measured(view)]
    parts.append(f"Written by ddp-ladder on {view.written_on.isoformat()}.")
    return "\n\n".join(parts) + "\n"


def _md(text: str) -> str:
    """Return text on one line, escaped for Markdown and HTML."""
    flat = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "|", "[", "]", "$"):
        flat = flat.replace(sign, f"\\{sign}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _md_table(header: Sequence[str], rows: Sequence[Sequence[str]], figures: int = 0) -> str:
    """Return a Markdown table. figures: how many of the last columns are right-aligned."""
    rule = ["---"] * (len(header) - figures) + ["---:"] * figures
    lines = [header, rule, *[[_md(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _md_points(points: Sequence[ScalePoint]) -> str:
    shown = columns("markdown")
    rows = [(_name(point), point.status, *(_md_cell(column, point) for column in shown)) for point in points]
    return _md_table(("scale", "status", *map(_heading, shown)), rows, figures=len(shown))


def _name(point: ScalePoint) -> str:
    return f"{point.scale} plain" if point.is_plain else str(point.scale)


def _heading(column: Column) -> str:
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def _md_cell(column: Column, point: ScalePoint) -> str:
    interval, mark = column.beside(point, "markdown")
    return " ".join(filter(None, (column.shown(point), interval, f"({mark})" if mark else "")))


def _md_startup(view: ReportView) -> str:
    shown = view.startup.columns
    rows = [
        (view.place(point) if view.several_series else _name(point), *(column.shown(point) for column in shown))
        for point in view.startup.points
    ]
    table = _md_table(("scale", *map(_heading, shown)), rows, figures=len(shown))
    return f"{table}\n\n{view.startup.note}"


def _md_gates(view: ReportView) -> str:
    lines = []
    for stage in view.stages:
        gate = view.gates.get(stage)
        if gate is None:
            lines.append(f"- {formats.stage_name(stage)}: not judged yet")
            continue
        why = f": {_md(gate.why)}" if gate.why else ""
        lines.append(f"- {formats.stage_name(stage)}: **{gate.verdict}**{why}")
        lines += [
            f"    - {_md(row.place(view.several_series))}: {_md(row.item.in_words)}, "
            f"wanted {_md(row.item.wanted)}{'' if row.item.ok else ' (**not met**)'}"
            for row in gate_rows(gate)
        ]
    return "\n".join(lines) or "No stage is planned."


def _md_failure(group: FailureGroup) -> str:
    failure = group.failure
    return f"- {_md(', '.join(group.runs))}: {_md(failure.verdict)}. Why: {_md(failure.why)} Next: {_md(failure.next)}"


def _md_definitions() -> str:
    rows = [(figure.name, figure.unit, figure.definition) for figure in figures_in("csv")]
    return _md_table(("figure", "unit", "definition"), rows)


def _md_measured(view: ReportView) -> str:
    rows = [(row.name, row.mark, "; ".join(_with_places(*pair) for pair in row.values)) for row in view.measured]
    return _md_table(("field", "must match", "value"), rows)


def _with_places(value: str, places: str) -> str:
    return f"{value} ({places})" if places else value
