"""The comparison of variants: blocks of a document, a table as CSV, and the terminal's text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddp_ladder.analysis.comparison import (
    FASTER,
    HOW_TO_READ,
    REFERENCE,
    SLOWER,
    Compared,
    ComparedScale,
    Comparison,
    interval_text,
    number,
    sentences,
)
from ddp_ladder.common import formats
from ddp_ladder.common.messages import columns, fitted
from ddp_ladder.report.document import Block, Cell, Content, csv_text, in_words, table_block
from ddp_ladder.report.terminal import LONGEST, plain

HEADINGS = (
    "scale", "variant", "ratio", "95 % interval", "samples/s", "batch", "step (ms)", "MB", "headroom", "comm.", "found",
    "notes",
)  # fmt: skip
TERMINAL = ("scale", "variant", "ratio", "95 % interval", "MB", "comm.", "found")  # headroom: 80 columns are too few
RIGHT = ("ratio", "samples/s", "batch", "step (ms)", "MB", "headroom", "comm.")
STYLES = {FASTER: "ok", SLOWER: "failed"}


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the comparison as a section of a document."""
    yield Block(" ".join(sentences(comparison)))
    rows = [(panel.place, *_cells(row)) for panel in comparison.panels for row in panel.rows]
    yield table_block("Variants at each scale", HEADINGS, rows, "comparisons", "comparison")
    yield Block(items=(HOW_TO_READ,), style="notes")


def _cells(row: Compared) -> tuple[Content, ...]:
    return (
        row.name,
        number(row.ratio.value) if row.ratio else "1" if row.verdict == REFERENCE else formats.UNKNOWN,
        interval_text(row.ratio) if row.ratio else "",
        formats.significant(row.samples_per_s),
        row.batch,
        formats.milliseconds(row.step_time_s),
        formats.megabytes(row.peak_memory_bytes),
        formats.share(row.memory_headroom_fraction),
        formats.share(row.exposed_comm_fraction),
        Cell(row.verdict, style=STYLES.get(row.verdict, "")),
        "; ".join(notes_of(row)),
    )


def notes_of(row: Compared) -> tuple[str, ...]:
    """Return in what a row is not alike, its notes, and else what the terminal has no room for."""
    notes = dict.fromkeys((f"differs in {'; '.join(row.unlike)}" if row.unlike else "", *row.notes))
    is_cut = row.ratio is None and _short(row) != row.verdict and not row.notes
    return tuple(filter(None, (*notes, row.verdict * is_cut)))


def _short(row: Compared) -> str:
    return row.verdict.partition(":")[0]


# --- The table as a file.


def comparison_csv(comparison: Comparison) -> str:
    """Return comparison.csv: a row for each variant at each mode and scale."""
    return csv_text(_csv_row(panel, row) for panel in comparison.panels for row in panel.rows)


def _csv_row(panel: ComparedScale, row: Compared) -> dict[str, object]:
    ratio = row.ratio
    same = (
        "repeats", "samples_per_s", "reference_samples_per_s", "batch", "step_time_s", "peak_memory_bytes",
        "memory_headroom_fraction", "exposed_comm_fraction",
    )  # fmt: skip
    return {
        "mode": panel.mode,
        "nodes": panel.scale.nodes,
        "gpus_per_node": panel.scale.gpus_per_node,
        "variant": row.name,
        "found": row.verdict,
        "ratio": ratio and ratio.value,
        "ratio_low": ratio and ratio.low,
        "ratio_high": ratio and ratio.high,
        **{name: getattr(row, name) for name in same},
        "notes": "; ".join(notes_of(row)),
    }


# --- The terminal.


def terminal_text(comparison: Comparison, file: Path) -> str:
    """Return what the command prints, without a final newline. file: the one that it has written."""
    lines = [fitted(sentence, columns(), then="") for sentence in sentences(comparison)]
    rows = [(panel.place, *_texts(row)) for panel in comparison.panels for row in panel.rows]
    lines += ["", *formats.text_table(TERMINAL, rows, RIGHT)]
    every = (row for panel in comparison.panels for row in panel.rows)
    notes = dict.fromkeys(f"{row.name}: {note}" for row in every for note in notes_of(row))
    lines += [fitted(note, columns(), first="  ") for note in notes]
    lines += ["", fitted(HOW_TO_READ, columns(), then=""), "", f"written  {file}"]
    return plain("\n".join(lines))


def _texts(row: Compared) -> Iterator[str]:
    _, ratio, interval, _, _, _, memory, _, exposed, _, _ = _cells(row)
    yield from map(in_words, (formats.shortened(row.name, LONGEST, "…"), ratio, interval, memory, exposed, _short(row)))
