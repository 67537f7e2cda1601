"""Memory that grows while a link runs: whether it would fill a node or a GPU before the link ends. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ddp_ladder.common.formats import gigabytes
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.production.chain import clock

WINDOWS = 60  # that a trend is of: an hour
LEAST_WINDOWS = 20  # before them, caches and the allocator's pools fill
LEAST_GROWTH = 0.01  # of all memory, over these windows
STILL = 0.5  # the later half grows by so much of the earlier one's rate, or the growth is coming to its end


@dataclass
class Growth:
    """The memory of each place (a node, or a GPU of one), a value for each window."""

    _used: defaultdict[str, deque[tuple[float, float]]] = field(
        default_factory=partial(defaultdict, partial(deque, maxlen=WINDOWS))
    )
    _told: set[str] = field(default_factory=set)

    def add(self, at_s: float, memory: Mapping[str, tuple[float, float]], end_s: float) -> list[str]:
        """Add a window; return a line for each place that would be full before the link ends, once for each.

        at_s: unix time. memory: bytes that are used, and that there are. end_s: of the link, unix time.
        """
        found = []
        for place, (used, size) in memory.items():
            series = self._used[place]
            series.append((at_s, used))
            rate = growth_per_s(series, size)
            if rate and place not in self._told and (full_s := at_s + (size - used) / rate) < end_s:
                self._told.add(place)
                found.append(
                    f"the memory of {place} grows by {gigabytes(rate * HOUR_S)} GB an hour, and has "
                    f"{gigabytes(used)} of {gigabytes(size)} GB: full at {clock(full_s)}, before the link ends at "
                    f"{clock(end_s)}"
                )
        return found


def growth_per_s(series: Sequence[tuple[float, float]], size: float) -> float | None:
    """Return the rate at which memory grows, in bytes per second; None if it does not, or is coming to its end.

    series: unix times and used bytes of windows, in their order. size: of the memory, in bytes.
    """
    if len(series) < LEAST_WINDOWS:
        return None
    at_s, used = np.array(series).T
    half = len(at_s) // 2
    rate, earlier, later = (_slope(at_s[part], used[part]) for part in (slice(None), slice(half), slice(half, None)))
    goes_on = earlier > 0 and later > STILL * earlier
    return rate if goes_on and rate * (at_s[-1] - at_s[0]) > LEAST_GROWTH * size else None


def _slope(at_s: np.ndarray, values: np.ndarray) -> float:
    """Return the median slope of all pairs: single windows, such as of a save, do not move it (Theil and Sen)."""
    one, other = np.triu_indices(len(at_s), k=1)
    return float(np.median((values[other] - values[one]) / (at_s[other] - at_s[one])))
