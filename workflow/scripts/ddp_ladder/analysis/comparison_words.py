"""What a comparison found, in sentences: the verdict first, then what to set, then what a reader should know. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.analysis.compared import (
    FASTER,
    NO_DIFFERENCE,
    PERHAPS_FASTER,
    PERHAPS_SLOWER,
    SLOWER,
    WITHHELD,
    Compared,
    Comparison,
    Panel,
)
from ddp_ladder.analysis.comparison import NOT_RUN
from ddp_ladder.analysis.ratio import Ratio
from ddp_ladder.common import formats

MOST_NAMED = 3
MOST_FIELDS = 6
MORE_REPEATS = "More repeats make the intervals narrower (repeats in config/config.yaml)"


def ratio_text(ratio: Ratio) -> str:
    """Return ``1.120 times [1.08-1.16]``."""
    return f"{number(ratio.value)} times {interval_text(ratio)}".rstrip()


def interval_text(ratio: Ratio) -> str:
    """Return ``[1.08-1.16]``; empty if it is withheld."""
    if ratio.low is None or ratio.high is None:
        return ""
    return formats.interval(number(ratio.low), number(ratio.high))


def number(value: float) -> str:
    """Return a ratio near 1 with three decimals, as 1 % matters there; a large or small one with three digits."""
    return f"{value:.3f}" if 0.1 <= value < 9.9995 else formats.significant(value)


def rate_text(row: Compared) -> str:
    """Return the throughput in samples/s."""
    return formats.significant(row.samples_per_s)


def step_text(row: Compared) -> str:
    """Return the step time in milliseconds."""
    return formats.milliseconds(row.step_time_s)


def sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return what was found at the largest compared scale of each mode."""
    found: list[str] = []
    for shown in decisive(comparison):
        found += _of_variants(shown, comparison) if comparison.is_paired else _of_results(shown, comparison)
    if not comparison.has_ratios:
        reasons = dict.fromkeys(row.found for panel in comparison.panels for row in panel.rows if row.obstacle)
        found.append(f"Nothing can be compared: {'; '.join(list(reasons)[:MOST_NAMED]) or 'no scale is in both'}.")
    begun = [each for each in comparison.panels if any(row.repeats for row in each.rows)]
    absent = [f"{row.label} at {each.place}" for each in begun for row in each.rows if row.obstacle == NOT_RUN]
    if absent:
        found.append(f"Not run: {formats.in_short(absent)}.")
    failed = [f"{row.label} at {each.place}" for each in comparison.panels for row in each.rows if _has_failed(row)]
    if failed:
        found.append(f"Failed runs: {formats.in_short(failed)}.")
    return tuple(found)


def decisive(comparison: Comparison) -> tuple[Panel, ...]:
    """Return the largest panel with ratios of each mode."""
    with_ratios = sorted(
        (each for each in comparison.panels if each.compared),
        key=lambda each: (each.scale.world_size, each.scale.nodes),
    )
    largest = {each.mode: each for each in with_ratios}
    return tuple(largest[mode] for mode in dict.fromkeys(each.mode for each in comparison.panels) if mode in largest)


def _has_failed(row: Compared) -> bool:
    return row.obstacle.startswith("failed") or any("repeats failed" in note for note in row.notes)


def _of(panel: Panel, *words: str) -> list[Compared]:
    return [row for row in panel.compared if row.found in words]


def _named(rows: Sequence[Compared]) -> str:
    words = [f"{row.label} {ratio_text(row.ratio)}" for row in rows if row.ratio]
    return formats.in_short(words, MOST_NAMED)


def _of_variants(panel: Panel, comparison: Comparison) -> Iterator[str]:
    place, reference = f"At {panel.place}", comparison.reference
    faster, slower = _of(panel, FASTER), _of(panel, SLOWER)[::-1]
    if faster:
        yield f"{place}, faster than {reference}: {_named(faster)}."
    elif _of(panel, WITHHELD):
        yield f"{place}, nothing can be said: one repeat shows no scatter. {MORE_REPEATS}."
    else:
        yield f"{place}, no variant is shown to be faster than {reference}."
    perhaps = _of(panel, PERHAPS_FASTER, PERHAPS_SLOWER)
    if perhaps:
        intervals = formats.count(len(panel.compared), "interval")
        yield f"Perhaps different: {_named(perhaps)}; of {intervals} one may miss 1 by chance. {MORE_REPEATS}."
    if slower:
        yield f"Slower: {_named(slower)}."
    alike = [row.label for row in _of(panel, NO_DIFFERENCE)]
    if alike:
        yield f"No difference shown: {formats.in_short(alike)}."
    if faster:
        yield from advice(faster[0], comparison)


def advice(row: Compared, comparison: Comparison) -> Iterator[str]:
    """Yield how to make a faster variant the default, and what to consider before."""
    if not row.alike_nodes:
        yield f"{row.name} was not measured on {comparison.reference}'s nodes in its job: measure both again first."
        return
    if any((change.key, change.value) == ("launcher", "python") for change in row.changes):
        yield f"{row.name} cannot become the default: with launcher python there is one process."
    elif row.changes:
        yield f"To make {row.name} the default: {', and '.join(change.to_set for change in row.changes)}."
    if row.unlike:
        fields = "; ".join(f"{each.in_words}: {each.meaning}" for each in row.unlike)
        yield f"Consider before: {fields}."
    others = [
        f"{each.place}, {ratio_text(other.ratio)}"
        for each in comparison.panels
        for other in each.compared
        if other.name == row.name and other.found == SLOWER and other.ratio
    ]
    if others:
        yield f"But {row.name} is slower at {formats.in_short(others)}."


def _of_results(panel: Panel, comparison: Comparison) -> Iterator[str]:
    place = f"At {panel.place}, against {comparison.reference}"
    words = {
        FASTER: f"{place}, faster",
        SLOWER: f"{place}, slower",
        PERHAPS_FASTER: "Perhaps faster",
        PERHAPS_SLOWER: "Perhaps slower",
        NO_DIFFERENCE: f"{place}, no difference shown",
        WITHHELD: f"{place}, no interval, as one repeat shows no scatter",
    }
    for found, text in words.items():
        if rows := _of(panel, found):
            yield f"{text}: {_named(rows)}."
    fields = list(dict.fromkeys(each.in_words for row in panel.compared for each in row.unlike))
    yield f"What differs: {formats.in_short(fields, MOST_FIELDS)}." if fields else "No recorded field differs."


def how_to_read(comparison: Comparison) -> str:
    """Return how ratios, intervals and verdicts are meant, in a few sentences."""
    kind = (
        "Ratios are of throughput, variant / default, of runs of the same repeat, which followed each other in one job "
        "on the same nodes; their geometric mean, with a 95 % interval (Student's t over the pairs)."
        if comparison.is_paired
        else f"Ratios are of throughput, over that in {comparison.reference}, of runs in other jobs; with a 95 % "
        "interval (Welch's, over repeats)."
    )
    return (
        f"{kind} Faster and slower hold for all rows of a mode and scale together (Holm, 5 %); “perhaps”: the interval "
        "misses 1, which among so many may be chance."
    )
