"""The report of a ladder: CSV, Markdown, plots and one self-contained page.

It works with any results: no record at all, one stage, failed runs, a closed gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import get_args

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ddp_ladder.common import formats
from ddp_ladder.common.files import write_atomically
from ddp_ladder.common.paths import REPORT
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column, columns, csv_columns, figures_in
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.records.statistic import RESAMPLES
from ddp_ladder.report.efficiency_plot import efficiency_figure
from ddp_ladder.report.markdown import markdown
from ddp_ladder.report.plots import Format, inline_svg, render
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.throughput_plot import throughput_figure
from ddp_ladder.report.view import ReportView, gate_rows, make_view

MOST_RUNS_IN_PRINT = 30  # a longer list of runs is shown on the screen only


def write_report(results: Path, found: LadderResults, written_on: date | None = None) -> tuple[Path, ...]:
    """Write results/report/ and return the files, the page first. Raises OSError (disk full)."""
    view = make_view(found, written_on or date.today())
    plots = {
        "throughput": throughput_figure(view.rungs, view.units),
        "efficiency": efficiency_figure(view.rungs, view.thresholds),
    }
    inline = {
        name: inline_svg(plots[name], name, name.capitalize(), describe(view, column))
        for name, column in (("throughput", SAMPLES_PER_S), ("efficiency", EFFICIENCY))
    }
    files: dict[str, str | bytes] = {
        "index.html": page(view, inline),
        "scaling.md": markdown(view),
        "scaling.csv": table(view.points).to_csv(index=False, float_format="%.6g"),
        **{f"{name}.{kind}": render(plot, kind) for name, plot in plots.items() for kind in get_args(Format)},
    }
    for name, content in files.items():
        write_atomically(results / "report" / name, content)
    return tuple(results / "report" / name for name in files)


def table(points: Sequence[ScalePoint]) -> pd.DataFrame:
    """Return scaling.csv: one row per variant x mode x scale, columns csv_columns()."""
    return pd.DataFrame([asdict(point) for point in points], columns=list(csv_columns()))


def page(view: ReportView, inline: Mapping[str, str]) -> str:
    """Return index.html. inline: the two plots as SVG elements. Everything else is escaped."""
    environment = Environment(
        loader=FileSystemLoader(REPORT),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["stage_name"] = formats.stage_name
    environment.filters["capitalised"] = formats.capitalised
    environment.filters["full_stop"] = formats.full_stop
    return environment.get_template("index.html.j2").render(
        view=view,
        plots={name: Markup(svg) for name, svg in inline.items()},
        figures=figures_in("csv", "runs"),
        columns=columns,
        most_runs_in_print=MOST_RUNS_IN_PRINT,
        host_words=host_words,
        gate_rows=gate_rows,
        resamples=RESAMPLES,
    )


def host_words(hosts: Sequence[str]) -> str:
    """Return ``a``, ``a, b`` or ``a to h (8)``."""
    return ", ".join(hosts) if len(hosts) < 3 else f"{hosts[0]} to {hosts[-1]} ({len(hosts)})"


def describe(view: ReportView, column: Column) -> str:
    """Return a plot in words, for screen readers."""
    measured = [point for point in view.rungs if point.samples_per_s is not None]
    figures = [f"{point.mode} {point.variant} {point.scale}: {column.shown(point)}" for point in measured]
    return f"{column.heading} by scale. {'; '.join(figures) or 'nothing measured yet'}."
