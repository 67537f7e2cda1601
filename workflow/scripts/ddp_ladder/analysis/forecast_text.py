"""Forecasts and their errors in words, for the terminal and the report. Pure."""

from __future__ import annotations

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
    """Yield ``stage3 2x4: forecast 63,000 samples/s [58,000-66,000], 85 % efficiency, 0.40 GPU h``; one per series."""
    several = len({(run.variant, run.mode) for run in job.runs if not run.is_plain}) > 1
    for one in forecast.series:
        name = f"{job.stage} {forecast.scale}" + (f" {one.mode} {one.variant}" if several else "")
        text = f"{name}: forecast {_rate(one)}, {percent(one.efficiency)} efficiency"
        if one.run_s is not None:
            text += f", {hours(one.runs * one.run_s * forecast.gpus / HOUR_S, device)}"
        yield text.replace(NARROW_SPACE, " ")


def hours(value: float, device: str) -> str:
    """Return ``0.40 GPU h``; ``12 GPU s`` if that is too little."""
    return f"{significant(value)} {device} h" if value >= LEAST_HOURS else f"{value * HOUR_S:.0f} {device} s"


def _rate(one: SeriesForecast) -> str:
    low, high = significant(one.samples_per_s_low), significant(one.samples_per_s_high)
    return f"{significant(one.samples_per_s)} samples/s [{low}-{high}]"


@dataclass(frozen=True)
class ForecastError:
    """A forecast beside what was measured. error: forecast / measured - 1."""

    scale: str
    variant: str
    mode: str
    forecast: SeriesForecast
    samples_per_s: float
    is_inside: bool

    @property
    def error(self) -> float:
        return self.forecast.samples_per_s / self.samples_per_s - 1

    @property
    def in_words(self) -> str:
        """Return ``2.9 % too high, inside the interval``."""
        size = f"{100 * abs(self.error):.1f} % too {'high' if self.error >= 0 else 'low'}"
        return f"{size}, {'inside' if self.is_inside else 'OUTSIDE'} the interval"

    def cells(self, several: bool) -> tuple[str, ...]:
        """Return a row of HEADINGS."""
        place = f"{self.scale} {self.mode} {self.variant}" if several else self.scale
        one = self.forecast
        interval = f"{significant(one.samples_per_s_low)} to {significant(one.samples_per_s_high)}"
        made_from = ", ".join(one.measured)
        inside = "yes" if self.is_inside else "no"
        measured = significant(self.samples_per_s)
        return (
            place,
            significant(one.samples_per_s),
            interval,
            measured,
            f"{100 * self.error:+.1f} %",
            inside,
            made_from,
        )


HEADINGS = ("scale", "forecast (samples/s)", "interval", "measured", "error", "inside", "made from")


def forecast_errors(
    forecasts: Iterable[tuple[ScaleJob, ScaleForecast]], points: Sequence[ScalePoint]
) -> tuple[ForecastError, ...]:
    """Return the error of each forecast whose scale has been measured since, in the plan's order."""
    rates = {(point.scale, point.variant, point.mode): point.samples_per_s for point in points}
    found = []
    for _, scale in forecasts:
        for one in scale.series:
            rate = rates.get((Scale.parse(scale.scale), one.variant, one.mode))
            if rate:
                is_inside = one.samples_per_s_low <= rate <= one.samples_per_s_high
                found.append(ForecastError(scale.scale, one.variant, one.mode, one, rate, is_inside))
    return tuple(found)


def error_lines(errors: Sequence[ForecastError]) -> list[str]:
    """Return the lines below the final table."""
    several = len({(one.variant, one.mode) for one in errors}) > 1
    lines = []
    for one in errors:
        place = f"{one.scale} {one.mode} {one.variant}" if several else one.scale
        lines.append(f"forecast {place}: {_rate(one.forecast)}, {one.in_words}")
    return lines
