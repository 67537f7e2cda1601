"""The summary at the end of a ladder in the terminal: plain text, no colour. Only a table of many variants is wider."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_ladder.analysis.prediction import error_rows, outlooks, planned_forecasts
from ddp_ladder.common.formats import full_stop, shortened, text_table
from ddp_ladder.common.messages import columns as width
from ddp_ladder.common.messages import for_terminal
from ddp_ladder.gates.figures import SPEEDUP, TOKENS_PER_S, TOKENS_PER_S_PER_GPU, Column, columns
from ddp_ladder.gates.gate import Verdict, closed_box
from ddp_ladder.gates.points import ScalePoint, findings_across_scales
from ddp_ladder.ledger.jobs import terminal_lines
from ddp_ladder.plan.plan import HourUnit
from ddp_ladder.report.document import LONGEST, plain
from ddp_ladder.report.view import LadderResults, gate_words, headline, scale_names, scale_notes

OF_GPUS = HourUnit("GPU", None)
OF_TOKENS = (TOKENS_PER_S.heading, TOKENS_PER_S_PER_GPU.heading)
# Columns to leave out on a narrow terminal: they follow from scale and efficiency.
SPARE = (TOKENS_PER_S_PER_GPU.heading, SPEEDUP.heading, "GPUs")


def summary_text(ladder: LadderResults, log: str = "") -> str:
    """Return the headline, the table of scales, jobs, warnings and closed gates. log: Snakemake's, to be named."""
    plan, results = ladder.plan, ladder.directory
    points, report = [point for point in ladder.points if not point.is_plain], results / "report"
    lines = [_fitted(headline(ladder).text)]
    lines += [_fitted(f"Predicted, not measured: {full_stop(scale.in_words)}") for scale in outlooks(plan, points)]
    lines += ["", terminal_table(points, ladder.gates, report if report.exists() else None, plan.hour_unit)]
    forecasts = error_rows(planned_forecasts(results, plan), points)
    lines += [_fitted(f"forecast {place}: {forecast}; {measured}") for place, forecast, measured in forecasts]
    lines += terminal_lines(plan, ladder.jobs, results)
    lines += [f"log      {log}"] if log else []
    lines += [ladder.counts] if ladder.unread or ladder.begun else []
    lines += [_fitted(f"warning: {warning}") for warning in ladder.warnings]
    boxes = [f"\n{closed_box(gate)}" for gate in ladder.gates.values() if not gate.is_open]
    return plain("\n".join((*lines, *boxes)))


def _fitted(text: str) -> str:
    """Return text for the terminal's width; on one line for a pipe or a file."""
    return for_terminal(plain(text), sys.stdout)


def terminal_table(
    points: Sequence[ScalePoint],
    gates: Mapping[str, Verdict],
    report: Path | None = None,
    unit: HourUnit = OF_GPUS,
) -> str:
    """Return the table, its notes and the path of the report, without a final newline."""
    if not points:
        return "no run is planned"
    rows = [_cells(point, gates) for point in points]
    names = [name for name in rows[0] if name not in ("mode", "variant") or len({row[name] for row in rows}) > 1]
    names = names if any(row["status"] for row in rows) else names[:-1]
    if all(point["tokens_per_s"] is None for point in points):
        names = [name for name in names if name not in OF_TOKENS]
    right = [column.heading for column in columns("terminal") if "terminal" not in column.interval_in]
    for left_out in range(len(SPARE) + 1):
        shown = [name for name in names if name not in SPARE[:left_out]]
        headings = [unit.of_device(name) for name in shown]
        lines = text_table(headings, [[row[name] for name in shown] for row in rows], [*map(unit.of_device, right)])
        if max(map(len, lines)) <= width():
            break
    lines += _notes(points)
    if report is not None:
        lines += ["", f"report   {report / 'index.html'}", f"figures  {report / 'scaling.csv'}"]
    return plain("\n".join(lines))


def _cells(point: ScalePoint, gates: Mapping[str, Verdict]) -> dict[str, str]:
    return {
        "mode": point.mode,
        "variant": shortened(point.variant, LONGEST, "…"),
        "scale": str(point.scale),
        **{column.heading: _figure(column, point) for column in columns("terminal")},
        "gate": gate_words(gates, point),
        "status": "" if point.status == "ok" else point.status,
    }


def _figure(column: Column, point: ScalePoint) -> str:
    text = column.shown(point)
    return f"{text:>5} {column.interval(point)}".rstrip() if "terminal" in column.interval_in else text


def _notes(points: Sequence[ScalePoint]) -> list[str]:
    """Return the notes and findings below the table; equal ones are shown once, with all their scales."""
    several = len({(point.mode, point.variant) for point in points}) > 1
    findings = [(scale_names(where, several), finding.line) for finding, where in findings_across_scales(points)]
    lines = [""]
    for where, note in (*scale_notes(points, several), *findings):
        lines += textwrap.wrap(f"{where}: {note}", width(), initial_indent="  ", subsequent_indent="    ")
    return lines if len(lines) > 1 else []
