"""The files of a comparison: CSV, Markdown and the forest plot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddp_ladder.analysis.comparison import (
    Compared,
    Comparison,
    how_to_read,
    interval_text,
    number,
    rate_text,
    sentences,
    step_text,
)
from ddp_ladder.common import formats
from ddp_ladder.common.files import write_atomically
from ddp_ladder.report.comparison_plot import comparison_figure
from ddp_ladder.report.comparison_text import notes_of
from ddp_ladder.report.csv_text import csv_text
from ddp_ladder.report.escape import markdown_table
from ddp_ladder.report.escape import markdown_text as escaped
from ddp_ladder.report.svg import Drawing

VARIANTS, RESULTS = "comparison", "comparison_of_results"
"""Stems of the files: of the variants of one ladder, and of two folders of results."""
FILES = tuple(f"{VARIANTS}.{kind}" for kind in ("md", "csv", "svg", "png"))
"""Of the variants of one ladder."""
COLUMNS = (
    "mode", "nodes", "gpus_per_node", "variant", "rank", "found", "ratio", "ratio_low", "ratio_high",
    "repeats", "samples_per_s", "reference_samples_per_s", "step_time_s", "changes", "differs_in", "note",
)  # fmt: skip
"""Of the CSV file."""


def comparison_texts(comparison: Comparison) -> dict[str, str | bytes]:
    """Return the text files by name."""
    return {f"{_stem(comparison)}.md": _markdown(comparison), f"{_stem(comparison)}.csv": _csv(comparison)}


def write_comparison(directory: Path, comparison: Comparison) -> tuple[Path, ...]:
    """Write all files into a directory, which is made, and return them. Raises OSError (disk full)."""
    pictures = Drawing(comparison_figure(comparison)).files
    files = {
        **comparison_texts(comparison),
        **{f"{_stem(comparison)}.{kind}": content for kind, content in pictures.items()},
    }
    for name, content in files.items():
        write_atomically(directory / name, content)
    return tuple(directory / name for name in files)


def _stem(comparison: Comparison) -> str:
    return VARIANTS if comparison.is_paired else RESULTS


def _csv(comparison: Comparison) -> str:
    """Return one row per mode, scale and variant , the fastest first within its mode and scale."""
    return csv_text(COLUMNS, (_csv_row(row) for panel in comparison.panels for row in panel.rows))


def _csv_row(row: Compared) -> tuple[object, ...]:
    ratio = row.ratio
    return (
        row.mode,
        row.scale.nodes,
        row.scale.gpus_per_node,
        row.name,
        row.rank,
        row.found,
        ratio and ratio.value,
        ratio and ratio.low,
        ratio and ratio.high,
        ratio.repeats if ratio else row.repeats,
        row.samples_per_s,
        row.reference_samples_per_s,
        row.step_time_s,
        "; ".join(row.changes),
        "; ".join(row.unlike),
        "; ".join(row.notes),
    )


def _markdown(comparison: Comparison) -> str:
    title = "Comparison of the variants" if comparison.is_paired else f"Comparison with {escaped(comparison.reference)}"
    parts = [f"# {title}", "\n".join(f"- {escaped(line)}" for line in sentences(comparison))]
    parts.append(f"![Ratios with their 95 % intervals]({_stem(comparison)}.png)")
    for panel in comparison.panels:
        header = ("rank", "variant", "ratio", "95 % interval", "samples/s", "step (ms)", "found", "notes")
        parts += [f"## {panel.place} scaling", markdown_table(header, [tuple(_md_cells(row)) for row in panel.rows])]
    if comparison.missing:
        parts.append("\n".join(f"- {escaped(line)}" for line in comparison.missing))
    parts.append(escaped(how_to_read(comparison)))
    if comparison.warnings:
        parts += ["## Left out", "\n".join(f"- {escaped(line)}" for line in comparison.warnings)]
    return "\n\n".join(parts) + "\n"


def _md_cells(row: Compared) -> Iterator[str]:
    yield str(row.rank or "")
    yield row.name
    yield number(row.ratio.value) if row.ratio else "1" if row.is_reference else formats.UNKNOWN
    yield interval_text(row.ratio) if row.ratio else ""
    yield rate_text(row)
    yield step_text(row)
    yield row.found
    yield "; ".join(notes_of(row))
