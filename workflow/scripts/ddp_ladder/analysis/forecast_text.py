"""Forecasts and their errors in words, for the terminal and the report. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddp_ladder.analysis.forecast_file import ScaleForecast, SeriesForecast
from ddp_ladder.common.formats import NARROW_SPACE, percent, significant
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.plan.plan import Plan, ScaleJob
from ddp_ladder.settings.terms import Scale

HOUR_S = 3600.0
LEAST_HOURS = 0.01  # below, seconds are shown


def device_of(plan: Plan) -> str:
    """Return ``GPU``, or ``process`` for a site without."""
    return "GPU" if any(run.device == "cuda" for run in plan.runs) else "process"


def forecast_lines(job: ScaleJob, forecast: ScaleForecast, device: str) -> Iterator[str]:
    """Yield ``stage3 2x4: forecast 63,000 samples/s [58,000-66,000], 85 % efficiency, 0.40 GPU h``; one per series.

    Otherwise ``stage2 1x2: at most 4,000 samples/s (upper bound: only 1x1 was measured), at least 12 GPU s``.
    """
    several = len({(run.variant, run.mode) for run in job.runs if not run.is_plain}) > 1
    for one in forecast.series:
        name = f"{job.stage} {forecast.scale}" + (f" {one.mode} {one.variant}" if several else "")
        least, what = ("at least ", "") if one.samples_per_s is None else ("", "forecast ")
        text = f"{name}: {what}{_rate(one)}"
        text += f", {percent(one.efficiency)} efficiency" if one.efficiency is not None else ""
        if one.run_s is not None:
            gpu_hours = one.runs * one.run_s * forecast.gpus / HOUR_S
            if job.is_adaptive:
                text += f", {job.at_least} to {job.at_most} repeats"
            text += f", {least}{hours(gpu_hours, device, gpu_hours * job.at_most / job.at_least)}"
            text += " in each job" if job.jobs > 1 else ""
        yield text.replace(NARROW_SPACE, " ")


def hours(value: float, device: str, at_most: float | None = None) -> str:
    """Return ``0.40 GPU h``; ``12 GPU s`` if that is too little; ``0.40 to 1.1 GPU h`` with a larger ``at_most``."""
    ends = list(dict.fromkeys((value, value if at_most is None else at_most)))
    if ends[-1] >= LEAST_HOURS:
        return f"{' to '.join(map(significant, ends))} {device} h"
    return f"{' to '.join(f'{end * HOUR_S:.0f}' for end in ends)} {device} s"


def _rate(one: SeriesForecast) -> str:
    if one.samples_per_s is None:
        why = f"only {one.measured[0]} was measured" if len(one.measured) == 1 else "too far from what was measured"
        return f"at most {significant(one.samples_per_s_bound)} samples/s (upper bound: {why})"
    return f"{significant(one.samples_per_s)} samples/s [{_interval(one, '-')}]"


def _interval(one: SeriesForecast, to: str) -> str:
    return f"{significant(one.samples_per_s_low)}{to}{significant(one.samples_per_s_high)}"


@dataclass(frozen=True)
class ForecastError:
    """A forecast, or an upper bound, beside what was measured since."""

    scale: str
    variant: str
    mode: str
    forecast: SeriesForecast
    samples_per_s: float

    @property
    def is_inside(self) -> bool | None:
        """Return whether the interval holds what was measured; None for an upper bound."""
        low, high = self.forecast.samples_per_s_low, self.forecast.samples_per_s_high
        return None if low is None or high is None else low <= self.samples_per_s <= high

    @property
    def difference(self) -> float:
        """Return measured / forecast - 1, or of an upper bound measured / bound - 1."""
        one = self.forecast
        return self.samples_per_s / (one.samples_per_s or one.samples_per_s_bound or math.inf) - 1

    @property
    def in_words(self) -> str:
        """Return ``measured 23,071, 3.7 % more, inside the interval``; of a bound ``measured 22,934, 55 % of it``."""
        words = f"measured {significant(self.samples_per_s)}, "
        if self.is_inside is None:
            return words + f"{percent(1 + self.difference)} of it".replace(NARROW_SPACE, " ")
        words += f"{100 * abs(self.difference):.1f} % {'more' if self.difference >= 0 else 'less'}, "
        if self.is_inside:
            return words + "inside the interval"
        side = "above" if self.difference >= 0 else "below"
        return words + f"{side} the interval, which about one in ten is outside of"

    def cells(self, several: bool) -> tuple[str, ...]:
        """Return a row of HEADINGS."""
        one = self.forecast
        rate, inside = significant(one.samples_per_s), "yes" if self.is_inside else "no"
        interval, difference = _interval(one, " to "), f"{100 * self.difference:+.1f} %"
        if self.is_inside is None:
            rate, interval, inside = f"at most {significant(one.samples_per_s_bound)}", "upper bound", ""
            difference = f"{percent(1 + self.difference)} of it"
        return (
            f"{self.scale} {self.mode} {self.variant}" if several else self.scale,
            rate,
            interval,
            significant(self.samples_per_s),
            difference,
            inside,
            ", ".join(one.measured),
        )


HEADINGS = (
    "scale",
    "forecast (samples/s)",
    "90 % interval",
    "measured",
    "measured against forecast",
    "inside",
    "made from",
)


def forecast_errors(
    forecasts: Iterable[tuple[ScaleJob, ScaleForecast]], points: Sequence[ScalePoint]
) -> tuple[ForecastError, ...]:
    """Return each forecast whose scale has been measured since, in the plan's order."""
    rates = {(point.scale, point.variant, point.mode): point.samples_per_s for point in points}
    found = []
    for _, scale in forecasts:
        for one in scale.series:
            rate = rates.get((Scale.parse(scale.scale), one.variant, one.mode))
            if rate:
                found.append(ForecastError(scale.scale, one.variant, one.mode, one, rate))
    return tuple(found)


def error_lines(errors: Sequence[ForecastError]) -> list[str]:
    """Return the lines below the final table."""
    several = len({(one.variant, one.mode) for one in errors}) > 1
    lines = []
    for one in errors:
        place = f"{one.scale} {one.mode} {one.variant}" if several else one.scale
        lines.append(f"forecast {place}: {_rate(one.forecast)}; {one.in_words}")
    return lines
