"""Host memory that grows steadily, as a leak does, and not once, as a cache does. Pure.

The slope is that of Theil and Sen, the median of the slopes between all pairs of samples, which a jump does not change.
"""

from __future__ import annotations

import numpy as np

from ddp_ladder.usage.figures import known, rounded
from ddp_ladder.usage.models import Memory
from ddp_ladder.usage.samples import Values

LEAST_SAMPLES = 9  # three in each third
LEAST_GROWTH_BYTES = 50e6  # allocators of a process keep or return some tens of MB at any time
LEAST_GROWTH_FRACTION = 0.01  # of the memory at the begin
EVEN_FRACTION = 1 / 3  # a leak grows in each half by at least this part of all its growth; a cache grows in the first
MOST_PAIRED = 400  # samples of which all pairs are compared


def memory_of(times_s: Values, private_bytes: Values, span_s: tuple[float, float]) -> Memory | None:
    """Return the memory of a node's training processes; None if it was not sampled.

    span_s: from the end of the warm-up to the last step, unix time.
    """
    if not len(known(private_bytes)):
        return None
    during = (times_s >= span_s[0]) & (times_s <= span_s[1]) & ~np.isnan(private_bytes)
    times_s, measured = times_s[during], private_bytes[during]
    first, _, last = _thirds(measured) if len(measured) >= 3 else (float(known(private_bytes)[-1]),) * 3
    return Memory(
        first_bytes=int(first),
        last_bytes=int(last),
        max_bytes=int(known(private_bytes).max()),
        growth_bytes_per_s=steady_growth(times_s, measured),
    )


def steady_growth(times_s: Values, values: Values) -> float | None:
    """Return bytes per second; None unless the memory grew from third to third, evenly and by more than noise."""
    if len(values) < LEAST_SAMPLES:
        return None
    first, middle, last = _thirds(values)
    grown = last - first
    if grown < max(LEAST_GROWTH_BYTES, LEAST_GROWTH_FRACTION * first):
        return None
    if min(middle - first, last - middle) < EVEN_FRACTION * grown:
        return None
    slope = theil_sen(times_s, values)
    return rounded(slope) if slope > 0 else None


def theil_sen(times_s: Values, values: Values) -> float:
    """Return the median slope between pairs of points; of a long series, of evenly chosen ones."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_PAIRED)).astype(int))
    times_s, values = times_s[chosen], values[chosen]
    i, j = np.triu_indices(len(values), 1)
    later = times_s[j] > times_s[i]
    return float(np.median((values[j] - values[i])[later] / (times_s[j] - times_s[i])[later]))


def _thirds(values: Values) -> tuple[float, float, float]:
    first, middle, last = (float(np.median(part)) for part in np.array_split(values, 3))
    return first, middle, last
