"""Figures as text for people: significant digits, units, a dash for an unknown value; and values in groups."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

DASH = "\u2013"  # en dash: between the ends of a range, and for an unknown value
UNKNOWN = DASH
TERMINAL, LEAST_WRAPPED = 80, 16  # columns
NARROW_SPACE = "\u00a0"  # no break between a figure and its unit


def significant(value: float | None) -> str:
    """Return three significant digits, thousands separated: ``1,240``, ``85.3``, ``1.71``, ``0.0123``."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995 or size == 0:
        return f"{value:.2f}"
    return f"{value:#.3g}"


def whole(value: int | None) -> str:
    """Return a count: ``3``, ``4096``."""
    return UNKNOWN if value is None else str(value)


def factor(value: float | None) -> str:
    """Return a speed-up: ``1.71``, ``27.4``."""
    return UNKNOWN if value is None else f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def percent(value: float | None) -> str:
    """Return an efficiency, 1 being 100 %, as a whole percentage."""
    return UNKNOWN if value is None else f"{100 * value:.0f}{NARROW_SPACE}%"


def tenths_of_percent(value: float | None) -> str:
    """Return an efficiency with one decimal, where a rule of a centre asks for it: ``84.8 %``."""
    return UNKNOWN if value is None else f"{100 * value:.1f}{NARROW_SPACE}%"


def share(value: float | None) -> str:
    """Return a share of the step time in percent, below 10 % with one decimal."""
    if value is None:
        return UNKNOWN
    return percent(value) if value >= 0.0995 else f"{100 * value:.1f}{NARROW_SPACE}%"


def milliseconds(value_s: float | None) -> str:
    """Return milliseconds in three significant digits, without the unit."""
    return UNKNOWN if value_s is None else significant(1000 * value_s)


def seconds(value_s: float | None) -> str:
    """Return seconds with two decimals, without the unit, so that parts and their sum can be compared."""
    return UNKNOWN if value_s is None else f"{value_s:,.2f}"


def megabytes(value_bytes: float | None) -> str:
    """Return units of 1e6 bytes, without the unit."""
    return UNKNOWN if value_bytes is None else f"{value_bytes / 1e6:,.0f}"


def gigabytes(value_bytes: float | None) -> str:
    """Return units of 1e9 bytes in three significant digits, without the unit."""
    return UNKNOWN if value_bytes is None else significant(value_bytes / 1e9)


def interval(low: str, high: str) -> str:
    """Return ``[83-87 %]``, with an en dash, from two formatted figures; a common unit is written once."""
    unit = f"{NARROW_SPACE}%"
    if low.endswith(unit) and high.endswith(unit):
        low = low.removesuffix(unit)
    return f"[{low}{DASH}{high}]"


def stage_name(stage: str) -> str:
    """Return ``stage 2`` for ``stage2``."""
    return stage.replace("stage", "stage ")


def count(number: int, noun: str) -> str:
    """Return ``1 run``, ``3 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def capitalised(sentence: str) -> str:
    """Return the sentence with a capital first letter, the rest unchanged."""
    return sentence[:1].upper() + sentence[1:]


def full_stop(text: str) -> str:
    """Return the text with a full stop, unless it already ends in punctuation."""
    text = text.strip()
    return text if not text or text[-1] in ".!?:" else f"{text}."


def in_short(names: Sequence[str | int], most: int = 5, separator: str = ", ") -> str:
    """Return ``a, b, c``, and of numbers ``0-3, 8``; beyond ``most`` of these, ``a, b and 1,022 more``."""
    parts: list[tuple[str, int]] = []  # with how many names each stands for
    for run in _runs(names):
        parts += [(f"{run[0]}-{run[-1]}", len(run))] if len(run) > 2 else [(str(name), 1) for name in run]
    rest = sum(stands_for for _, stands_for in parts[most:])
    return separator.join(text for text, _ in parts[:most]) + (f" and {rest:,} more" if rest else "")


def _runs(names: Sequence[str | int]) -> list[list[str | int]]:
    """Return the names in their order, and those numbers together that follow one another."""
    runs: list[list[str | int]] = []
    for name in names:
        if runs and isinstance(name, int) and name - 1 == runs[-1][-1]:
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def hostlist(names: Iterable[str]) -> str:
    """Return names of nodes in Slurm's short form, each once, all of them: ``node[1-3,7],login``."""
    ranges: dict[tuple[str, bool], list[list[str]]] = {}  # first and last numbers, by what is before them
    for name in dict.fromkeys(names):
        prefix = name.rstrip("0123456789")
        number = name[len(prefix) :]
        known = ranges.setdefault((prefix, number != ""), [])
        if known and f"{int(known[-1][1]) + 1:0{len(known[-1][0])}d}" == number:
            known[-1][1] = number
        elif number:
            known.append([number, number])
    return ",".join(prefix + _in_brackets(known) for (prefix, _), known in ranges.items())


def _in_brackets(ranges: Sequence[Sequence[str]]) -> str:
    inside = ",".join("-".join(dict.fromkeys(ends)) for ends in ranges)
    return f"[{inside}]" if "," in inside or "-" in inside else inside


def short_list(names: str, most: int = 80) -> str:
    """Return a list of names as it is shown: the end of a long one is left out, ``node[1,3,5,...]``."""
    if len(names) <= most:
        return names
    begin = names[:most].rpartition(",")[0] or names[:most]
    return f"{begin},...{']' if begin.count('[') > begin.count(']') else ''}"


def rank_numbers(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0-3, 8 and 1,022 more``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {in_short(ranks, 3)}"


LONGEST_TEXT = 1000  # characters of a text in a file of results


def shortened(text: str, most: int = LONGEST_TEXT, mark: str = "...") -> str:
    """Return the text, cut if it is longer. mark: its end then."""
    return text if len(text) <= most else f"{text[: most - len(mark)]}{mark}"


def duration(seconds: float) -> str:
    """Return ``45 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def signal_of(code: int) -> str | None:
    """Return the name of the signal behind an exit code: -n, or 128 + n as shells and container engines report it."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if code < 0 else None  # most real-time signals have no name


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), wrapped: str = ""
) -> list[str]:
    """Return the lines of a table. right: the headings of columns that are right-aligned.

    wrapped: of a column whose cells take several lines where the table would be wider than a terminal.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if wrapped:
        place = headings.index(wrapped)
        room = max(LEAST_WRAPPED, TERMINAL - sum(widths) - 2 * (len(widths) - 1) + widths[place])
        rows = [line for row in rows for line in _wrapped(row, place, room)]
        widths[place] = max(len(row[place]) for row in (headings, *rows))

    def line(texts: Sequence[str]) -> str:
        aligned = zip(texts, headings, widths, strict=True)
        return "  ".join(f"{text:{'>' if name in right else '<'}{width}}" for text, name, width in aligned).rstrip()

    return [line(headings), "  ".join("-" * width for width in widths), *map(line, rows)]


def _wrapped(row: Sequence[str], place: int, room: int) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a row, the cell at ``place`` in that many columns."""
    first, *more = textwrap.wrap(row[place], room, break_long_words=False, break_on_hyphens=False) or [""]
    yield (*row[:place], first, *row[place + 1 :])
    for text in more:
        yield tuple(text if k == place else "" for k in range(len(row)))


def fields(text: str) -> dict[str, str]:
    """Return the values of ``key : value`` lines, of several with the same key the first."""
    pairs = (line.partition(":") for line in reversed(text.splitlines()))
    return {key.strip(): value.strip() for key, _, value in pairs}


# --- Things that have something in common.


K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def one_of(values: Iterable[V | None]) -> V | None:
    """Return the value that all are; None if two differ, one is not known, or there is none."""
    different = {*values}
    return different.pop() if len(different) == 1 else None
