"""Rates of counters. Pure."""

from __future__ import annotations

SHORTEST_S = 0.1  # counters of CPU time have steps of 10 ms


class Rates:
    """Rates per second of counters that only grow, from one sample to the next. Unknown values are None."""

    def __init__(self) -> None:
        self._last: dict[str, float | None] = {}
        self._last_s: float | None = None

    def of(self, counters: dict[str, float | None], now_s: float) -> dict[str, float | None]:
        """Return the rate of each counter since the call before.

        now_s: on the monotonic clock. A rate is None in the first call, after less than SHORTEST_S, if the counter is
        not known now or was not then, and if it was set back.
        """
        elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s
        rates = {name: rate(self._last.get(name), value, elapsed_s) for name, value in counters.items()}
        self._last, self._last_s = counters, now_s
        return rates


def rate(before: float | None, now: float | None, elapsed_s: float) -> float | None:
    """Return the growth per second; None if it is not known."""
    if before is None or now is None or elapsed_s < SHORTEST_S or now < before:
        return None
    return (now - before) / elapsed_s
