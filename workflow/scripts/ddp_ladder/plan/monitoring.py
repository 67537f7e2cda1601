"""The monitoring of a run: part of a job and not of its runs, so a change of it repeats none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field

from ddp_ladder.common.model import Model

if TYPE_CHECKING:  # an agent reads this, and no settings: their models take a tenth of a second
    from ddp_ladder.settings.keys import Monitor


LEAST_EVERY_S = 0.2


class MonitorWanted(Model):
    """How each node of a run is sampled: ``monitor`` of config.yaml."""

    every_s: float = Field(ge=LEAST_EVERY_S, le=60, description="Seconds from one sample to the next.")

    @classmethod
    def of(cls, keys: Monitor) -> Self | None:
        """Return what these settings ask for; None if nothing is sampled."""
        return cls(every_s=keys.every_s) if keys.enabled else None
