"""The history of a workload: a table for the terminal, and history.csv."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.analysis.comparison import interval_text, number
from ddp_ladder.analysis.history import Entry, History
from ddp_ladder.common.formats import UNKNOWN, significant, text_table
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S
from ddp_ladder.report.document import csv_text

HEADINGS = ("scale", "measured", "site", "samples/s", "efficiency", "ratio", "verdict", "changed")
HOW_TO_READ = (
    "Each ladder is compared with the one before it that measured the scale. The ratio is that of the samples/s; its "
    "95 % interval\nholds what separate jobs usually differ by; if it holds 1, there is no change beyond chance."
)


def history_text(histories: Sequence[History]) -> str:
    """Return the table, and how to read it."""
    rows = [_cells(history, entry) for history in histories for entry in history.entries]
    return "\n".join([*text_table(HEADINGS, rows, HEADINGS[3:5], "changed"), "", HOW_TO_READ])


def _cells(history: History, entry: Entry) -> tuple[str, ...]:
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
    return csv_text(_csv_rows(histories))


def _csv_rows(histories: Sequence[History]) -> Iterator[dict[str, object]]:
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
