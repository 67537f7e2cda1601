"""The report of a ladder: CSV, Markdown, plots and one self-contained page.

It works with any results: no record at all, one stage, failed runs, a closed gate.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import date
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ddp_ladder.accounting.advice import accounting_table
from ddp_ladder.analysis.forecast import HEADINGS as FORECAST_HEADINGS
from ddp_ladder.common import formats
from ddp_ladder.common.files import make_directory, write_atomically
from ddp_ladder.common.paths import REPORT
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column, columns, csv_columns, figures_in
from ddp_ladder.gates.points import ScalePoint, findings_across_scales
from ddp_ladder.report.attribution_plot import attribution_figure
from ddp_ladder.report.attribution_section import attribution_section, caption, factor_mark, picture_in_words
from ddp_ladder.report.centre import CentreSection
from ddp_ladder.report.centre_archive import archive
from ddp_ladder.report.centre_section import case_of, centre_section, rules_of
from ddp_ladder.report.comparison_plot import comparison_figure, forest_in_words
from ddp_ladder.report.comparison_section import ComparisonSection, comparison_section
from ddp_ladder.report.csv_text import csv_text
from ddp_ladder.report.efficiency_plot import efficiency_figure
from ddp_ladder.report.first_screen import folded_series, gate_cards, recommendations, tables_of_others
from ddp_ladder.report.links import Links, contents
from ddp_ladder.report.markdown import markdown
from ddp_ladder.report.missing import not_sampled
from ddp_ladder.report.prediction_section import PredictionSection, prediction_section
from ddp_ladder.report.proposal_files import proposal_files
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.run_list import listed_runs, runs_table
from ddp_ladder.report.scaling_section import scaling_section
from ddp_ladder.report.svg import Drawing
from ddp_ladder.report.throughput_plot import throughput_figure
from ddp_ladder.report.tikz import attribution_tikz, efficiency_tikz, throughput_tikz
from ddp_ladder.report.usage_files import FOLDER, usage_files
from ddp_ladder.report.usage_section import UsageSection, kinds_found, row_name, usage_notes, usage_table
from ddp_ladder.report.view import MOST_ROWS, PREFLIGHT_HEADINGS, ReportView, gate_rows, make_view


def write_report(results: Path, found: LadderResults, written_on: date | None = None) -> tuple[Path, ...]:
    """Write results/report/ and return the files, the page first. Raises OSError (disk full)."""
    view = make_view(found, written_on or date.today())
    shown = attribution_section(view).plotted
    plots = {
        "throughput": Drawing(throughput_figure(view.rungs, view.units)),
        "efficiency": Drawing(efficiency_figure(view.rungs, view.thresholds)),
        "attribution": Drawing(attribution_figure(shown)),
    }
    titles = {
        "throughput": ("Throughput", describe(view, SAMPLES_PER_S)),
        "efficiency": ("Efficiency", describe(view, EFFICIENCY)),
        "attribution": ("Where the time goes", picture_in_words(shown)),
    }
    comparison = comparison_section(view)
    if not comparison.is_empty:
        plots["comparison"] = Drawing(comparison_figure(comparison.comparison))
        titles["comparison"] = ("Variants", forest_in_words(comparison.comparison))
    inline = {name: drawing.inline(name, *titles[name]) for name, drawing in plots.items()}
    drawn = usage_files(results, view.runs)
    usage = UsageSection(
        usage_table(view.points),
        tuple(findings_across_scales(view.points)),
        tuple((picture, Markup(svg)) for picture, svg in drawn.shown),
        tuple(drawn.others),
        (*usage_notes(view.runs), *drawn.notes),
        accounting_table(found.plan, found.jobs) if found.jobs else None,
    )
    prediction = prediction_section(results, found.plan, view.points, view.unit)
    centre = centre_section(found.centre, results, view, tuple(drawn.files)) if found.centre else None
    files: dict[str, str | bytes] = {
        "scaling.md": markdown(view, usage, prediction, comparison),
        **proposal_files(view, prediction, rules_of(centre) if centre else None),
        "runs.csv": runs_table(view.runs),
        "scaling.csv": table(view.points),
        **{f"{name}.{kind}": content for name, plot in plots.items() for kind, content in plot.files.items()},
        "throughput.tikz": throughput_tikz(view.rungs, view.units),
        "efficiency.tikz": efficiency_tikz(view.rungs, view.thresholds),
        "attribution.tikz": attribution_tikz(shown),
        **comparison.files,
        **drawn.files,
    }
    if centre:
        files[centre.archive] = archive(results, files, case_of(results, view, ()))
    links = Links(results, tuple(files))
    files = {"index.html": page(view, inline, usage, prediction, comparison, links, centre), **files}
    make_directory(results / "report" / FOLDER)  # an output of Snakemake's rule, if only an empty one
    for name, content in files.items():
        write_atomically(results / "report" / name, content)
    return tuple(results / "report" / name for name in files)


def table(points: Sequence[ScalePoint]) -> str:
    """Return scaling.csv: one row per variant x mode x scale, columns csv_columns()."""
    keys = list(csv_columns())
    return csv_text(keys, ([getattr(point, key) for key in keys] for point in points))


def page(
    view: ReportView,
    inline: Mapping[str, str],
    usage: UsageSection,
    prediction: PredictionSection,
    comparison: ComparisonSection,
    links: Links,
    centre: CentreSection | None,
) -> str:
    """Return index.html. inline: the plots as SVG elements. Everything else is escaped."""
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
    script, scaling = (REPORT / "report.js").read_text(), scaling_section(view)
    return environment.get_template("index.html.j2").render(
        view=view,
        css=Markup((REPORT / "report.css").read_text()),
        script=Markup(script),
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        cards=gate_cards(view),
        recommendations=recommendations(scaling, prediction),
        folded_series=folded_series(view.series),
        tables_of_others=tables_of_others,
        contents=contents_of,
        files=links.groups,
        files_of=links.of_plot,
        files_of_run=links.of_run,
        usage=usage,
        attribution=attribution_section(view),
        comparison=comparison,
        attribution_caption=caption(view.first_scale),
        factor_mark=factor_mark,
        prediction=prediction,
        forecast_headings=FORECAST_HEADINGS,
        plots={name: Markup(svg) for name, svg in inline.items()},
        figures=figures_in("csv", "runs", first=view.first_scale),
        columns=columns,
        most_rows=MOST_ROWS,
        listed_runs=listed_runs(view.runs),
        not_sampled=not_sampled,
        host_words=host_words,
        gate_rows=gate_rows,
        kinds_found=kinds_found,
        row_name=row_name,
        preflight_headings=PREFLIGHT_HEADINGS,
        scaling=scaling,
        centre=centre,
    )


def contents_of(details: str) -> list[tuple[str, Markup]]:
    """Return id and heading of each section, which are escaped already."""
    return [(identifier, Markup(heading)) for identifier, heading in contents(details)]


def host_words(hosts: Sequence[str]) -> str:
    """Return ``a``, ``a, b`` or ``a to h (8)``."""
    return ", ".join(hosts) if len(hosts) < 3 else f"{hosts[0]} to {hosts[-1]} ({len(hosts)})"


def describe(view: ReportView, column: Column) -> str:
    """Return a plot in words, for screen readers."""
    measured = [point for point in view.rungs if point.samples_per_s is not None]
    figures = [f"{point.mode} {point.variant} {point.scale}: {column.shown(point)}" for point in measured]
    return f"{column.heading} by scale. {'; '.join(figures) or 'nothing measured yet'}."
