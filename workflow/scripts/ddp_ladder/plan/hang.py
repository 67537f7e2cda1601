"""The bounds of the hang watch: part of a job and not of its runs, so a change of them repeats none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field

from ddp_ladder.common.model import Model

if TYPE_CHECKING:  # an agent reads the bounds, and no settings: their models take a tenth of a second
    from ddp_ladder.settings.keys import Hang


class HangBounds(Model):
    """When a run in which no rank makes a step is ended: ``hang`` of config.yaml. Null: not at all."""

    times_median_step: float | None = Field(ge=2)
    at_least_s: float = Field(ge=1, description="Least bound in the training loop, in seconds.")
    first_step_s: float | None = Field(ge=1, description="Bound of the first step and of a pause, in seconds.")

    @classmethod
    def of(cls, hang: Hang) -> Self | None:
        """Return the bounds of these settings; None if nothing is bounded."""
        off = hang.times_median_step is None and hang.first_step_s is None
        return None if off else cls(**hang.model_dump())
