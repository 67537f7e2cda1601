"""The section "Prediction": forecasts beside what was measured, and the next larger scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.analysis.forecast import ForecastError, forecast_errors, forecast_lines, planned_forecasts
from ddp_ladder.analysis.prediction import Prediction, outlooks
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.plan.plan import Plan
from ddp_ladder.settings.terms import Scale

NOTE = (
    "A forecast is written when the gate below opens, before its scale is measured. Its interval is meant to hold nine "
    "of ten outcomes, so one in ten lies outside; from a single measured scale there is only an upper bound. "
    "docs/prediction.md says how it is made, and how well it held for published tables."
)


@dataclass(frozen=True)
class PredictionSection:
    """What the page and the Markdown show. ahead: forecasts of scales that are not measured yet, one line each."""

    errors: tuple[ForecastError, ...]
    ahead: tuple[str, ...]
    outlooks: tuple[Prediction, ...]
    note: str = NOTE

    @property
    def is_empty(self) -> bool:
        return not (self.errors or self.ahead or self.outlooks)

    @property
    def error_rows(self) -> tuple[tuple[str, ...], ...]:
        """Return the rows of the table of errors."""
        several = len({(one.variant, one.mode) for one in self.errors}) > 1
        return tuple(one.cells(several) for one in self.errors)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what is predicted for the next larger scale, in each mode."""
        return tuple(f"predicted, not measured: {one.in_words}" for one in self.outlooks if not one.is_measured)


def prediction_section(results: Path, plan: Plan, points: Sequence[ScalePoint], device: str) -> PredictionSection:
    """Return the section. device: ``GPU`` or ``process``."""
    forecasts = [*planned_forecasts(results, plan)]
    measured = {(point.scale, point.variant, point.mode) for point in points if point.samples_per_s}
    ahead: list[str] = []
    for job, forecast in forecasts:
        scale = Scale.parse(forecast.scale)
        due = tuple(one for one in forecast.series if (scale, one.variant, one.mode) not in measured)
        ahead += forecast_lines(job, forecast.replace(series=due), device) if due else []
    return PredictionSection(forecast_errors(forecasts, points), tuple(ahead), outlooks(plan, points))
