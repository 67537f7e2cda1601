"""Comparisons of variants, and of ladders over time: blocks of a document, tables as CSV, and the terminal's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_ladder.analysis.comparison import (
    FASTER,
    HOW_TO_READ,
    REFERENCE,
    SLOWER,
    Compared,
    ComparedScale,
    Comparison,
    Entry,
    History,
    interval_text,
    number,
    sentences,
)
from ddp_ladder.common import formats
from ddp_ladder.common.formats import UNKNOWN, significant, text_table
from ddp_ladder.common.messages import columns, fitted
from ddp_ladder.gates.figures import EFFICIENCY, EXPOSED_COMM, HEADROOM, PEAK_MEMORY, SAMPLES_PER_S, STEP_TIME
from ddp_ladder.report.document import Block, Cell, Content, csv_text, in_words, table_block
from ddp_ladder.report.terminal import LONGEST, plain

HEADINGS = (
    "scale", "variant", "ratio", "95 % interval", "samples/s", "batch", "step (ms)", "MB", "headroom", "comm.", "found",
    "notes",
)  # fmt: skip
TERMINAL = ("scale", "variant", "ratio", "95 % interval", "MB", "comm.", "found")  # headroom: 80 columns are too few
RIGHT = ("ratio", "samples/s", "batch", "step (ms)", "MB", "headroom", "comm.")
OF_HISTORY = ("scale", "measured", "site", "samples/s", "efficiency", "ratio", "verdict", "changed")
HOW_TO_READ_HISTORY = (
    "Each ladder is compared with the one before it that measured the scale. The ratio is that of the samples/s; its "
    "95 % interval\nholds what separate jobs usually differ by; if it holds 1, there is no change beyond chance."
)
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
        row.shown(SAMPLES_PER_S),
        row.batch,
        *map(row.shown, (STEP_TIME, PEAK_MEMORY, HEADROOM, EXPOSED_COMM)),
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
    return {
        "mode": panel.mode,
        "nodes": panel.scale.nodes,
        "gpus_per_node": panel.scale.gpus_per_node,
        "variant": row.name,
        "found": row.verdict,
        "ratio": ratio and ratio.value,
        "ratio_low": ratio and ratio.low,
        "ratio_high": ratio and ratio.high,
        "repeats": row.repeats,
        "samples_per_s": row["samples_per_s"],
        "reference_samples_per_s": row.reference_samples_per_s,
        "batch": row.batch,
        **{
            column.key: row.point and column.value(row.point)
            for column in (STEP_TIME, PEAK_MEMORY, HEADROOM, EXPOSED_COMM)
        },
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


# --- The history of a workload: a table for the terminal, and history.csv.


def history_text(histories: Sequence[History]) -> str:
    """Return the table, and how to read it."""
    rows = [_of_ladder(history, entry) for history in histories for entry in history.entries]
    return "\n".join([*text_table(OF_HISTORY, rows, OF_HISTORY[3:5], "changed"), "", HOW_TO_READ_HISTORY])


def _of_ladder(history: History, entry: Entry) -> tuple[str, ...]:
    point, ratio = entry.point, entry.ratio
    return (
        f"{history.scale} {history.mode}",
        entry.ladder.on or "not known",
        entry.ladder.site,
        f"{SAMPLES_PER_S.shown(point)} ({significant(entry.per_gpu)} per GPU)",
        EFFICIENCY.shown(point),
        f"{number(ratio.value)} {interval_text(ratio)}".rstrip() if ratio else UNKNOWN,
        entry.verdict.partition(":")[0],
        "; ".join(f"{name}: {then} → {now}" for name, then, now in entry.changed),
    )


def history_csv(histories: Sequence[History]) -> str:
    """Return history.csv: a row for each mode, scale and ladder."""
    return csv_text(_history_rows(histories))


def _history_rows(histories: Sequence[History]) -> Iterator[dict[str, object]]:
    for history in histories:
        for entry in history.entries:
            point, ratio = entry.point, entry.ratio
            yield {
                "mode": history.mode,
                "scale": history.scale,
                "ladder": entry.ladder.name,
                "measured": entry.ladder.on,
                "site": entry.ladder.site,
                "repeats": point.repeats,
                "samples_per_s": point["samples_per_s"],
                "samples_per_s_low": point.rate and point.rate.low,
                "samples_per_s_high": point.rate and point.rate.high,
                "samples_per_s_per_gpu": entry.per_gpu,
                "efficiency": point["efficiency"],
                "ratio": ratio and ratio.value,
                "ratio_low": ratio and ratio.low,
                "ratio_high": ratio and ratio.high,
                "verdict": entry.verdict,
                "found": entry.found,
                "changed": "; ".join(f"{name}: {then} -> {now}" for name, then, now in entry.changed),
            }
