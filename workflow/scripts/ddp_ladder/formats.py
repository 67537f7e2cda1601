"""How figures are written for people: significant digits, units, a dash for what is not known."""

from __future__ import annotations

from collections.abc import Sequence

DASH = "\u2013"  # en dash: between the ends of a range, and for what is not known
UNKNOWN = DASH
NARROW_SPACE = "\u00a0"  # no break between a figure and its unit


def significant(value: float | None) -> str:
    """Three significant digits, thousands separated: ``1,240``, ``85.3``, ``1.71``, ``0.0123``."""
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


def factor(value: float | None) -> str:
    """A speed-up: ``1.71``, ``27.4``."""
    return UNKNOWN if value is None else f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def percent(value: float | None) -> str:
    """An efficiency, 1 being 100 %, to the percent."""
    return UNKNOWN if value is None else f"{100 * value:.0f}{NARROW_SPACE}%"


def share(value: float | None) -> str:
    """A share of the step time: to a tenth of a percent where it is small."""
    if value is None:
        return UNKNOWN
    return percent(value) if value >= 0.0995 else f"{100 * value:.1f}{NARROW_SPACE}%"


def milliseconds(value_s: float | None) -> str:
    """Three significant digits, without the unit."""
    return UNKNOWN if value_s is None else significant(1000 * value_s)


def seconds(value_s: float | None) -> str:
    """To a hundredth, without the unit, so that parts and their sum can be compared."""
    return UNKNOWN if value_s is None else f"{value_s:,.2f}"


def megabytes(value_bytes: float | None) -> str:
    """In units of 1e6 bytes, without the unit."""
    return UNKNOWN if value_bytes is None else f"{value_bytes / 1e6:,.0f}"


def interval(low: str, high: str) -> str:
    """``[83-87 %]``, with an en dash, from two written figures; their unit is written once."""
    unit = f"{NARROW_SPACE}%"
    if low.endswith(unit) and high.endswith(unit):
        low = low.removesuffix(unit)
    return f"[{low}{DASH}{high}]"


def stage_name(stage: str) -> str:
    """``stage 2`` for ``stage2``."""
    return stage.replace("stage", "stage ")


def count(number: int, noun: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def capitalised(sentence: str) -> str:
    """The first letter raised, the rest as it is."""
    return sentence[:1].upper() + sentence[1:]


def full_stop(text: str) -> str:
    """The text with a full stop, unless it ends in a mark of its own."""
    text = text.strip()
    return text if not text or text[-1] in ".!?:" else f"{text}."


def in_short(names: Sequence[str], most: int = 5) -> str:
    """``a, b, c``; of more than ``most`` the first ones and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
