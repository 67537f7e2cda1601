"""Figures of columns of samples. Unknown values (nan) are left out; figures are the same on every machine. Pure."""

from __future__ import annotations

import numpy as np

from ddp_ladder.usage.models import Rate
from ddp_ladder.usage.samples import Values

SIGNIFICANT_DIGITS = 6  # sums may differ in the last digits of a float from one machine to another


def rounded(value: float) -> float:
    """Return a value with six significant digits."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def known(values: Values) -> Values:
    """Return the values that are known."""
    return values[~np.isnan(values)]


def mean(values: Values) -> float | None:
    """Return the mean; None if no value is known."""
    values = known(values)
    return rounded(float(values.mean())) if len(values) else None


def median(values: Values) -> float | None:
    """Return the median; None if no value is known."""
    values = known(values)
    return rounded(float(np.median(values))) if len(values) else None


def highest(values: Values) -> float | None:
    """Return the highest value; None if none is known."""
    values = known(values)
    return rounded(float(values.max())) if len(values) else None


def most(values: Values) -> int | None:
    """Return the highest of whole numbers; None if none is known."""
    values = known(values)
    return int(values.max()) if len(values) else None


def rate(values: Values) -> Rate | None:
    """Return mean and highest value of a rate; None if no value is known."""
    values = known(values)
    if not len(values):
        return None
    return Rate(mean=rounded(float(values.mean())), max=rounded(float(values.max())))
