"""What figures are said in beside samples and GPU hours: tokens, the hours and the carbon of the centre. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.common.formats import significant
from ddp_ladder.common.model import Model, Positive
from ddp_ladder.settings.keys import Carbon, CentreHours, Settings


class Units(Model):
    """Those of the settings. None: not said. They are part of no run."""

    tokens_per_sample: Positive | None = None
    hours: CentreHours | None = None
    carbon: Carbon | None = None

    @classmethod
    def of(cls, settings: Settings) -> Units:
        site, workload = settings.site, settings.experiment.workload
        return cls(tokens_per_sample=workload.tokens_per_sample, hours=site.hours, carbon=site.carbon)

    def carbon_kg(self, energy_kwh: float | None) -> float | None:
        """Return the CO2 of an energy in kg; None unless both are known."""
        return None if energy_kwh is None or self.carbon is None else energy_kwh * self.carbon.grams_co2_per_kwh / 1000

    def carbon_in_words(self, energy_kwh: float | None) -> str:
        """Return ``1.25 kg of CO2 at 250 g per kWh (grid, 2025)``; empty unless both are known."""
        if energy_kwh is None or self.carbon is None:
            return ""
        of = f"{self.carbon.grams_co2_per_kwh:g} g per kWh ({self.carbon.source})"
        return f"{significant(self.carbon_kg(energy_kwh))} kg of CO2 at {of}"


@dataclass(frozen=True)
class Hours:
    """Hours of an allocation, as centres count them: those of an application, and those that were used."""

    gpus: float = 0.0  # of processes on a site without GPUs
    nodes: float = 0.0

    @classmethod
    def held(cls, wall_hours: float, nodes: int, gpus: int) -> Hours:
        """Return those of jobs that hold so many nodes and GPUs."""
        return cls(gpus * wall_hours, nodes * wall_hours)

    def asked(self, runs: int | None, reserve: float) -> Hours:
        """Return what is asked for so many trainings of these hours, with the reserve. None: not said, one."""
        factor = (runs or 1) * (1 + reserve)
        return Hours(factor * self.gpus, factor * self.nodes)

    def of_centre(self, centre: CentreHours | None) -> float | None:
        """Return them in the hours of the centre; None if it has none of its own."""
        return None if centre is None else centre.of(self.gpus, self.nodes)

    def __add__(self, other: Hours) -> Hours:
        return Hours(self.gpus + other.gpus, self.nodes + other.nodes)


@dataclass(frozen=True)
class HourUnit:
    """In which hours costs are said."""

    device: str  # GPU, or process on a site without
    centre: CentreHours | None

    @property
    def devices(self) -> str:
        return {"GPU": "GPUs", "process": "processes"}[self.device]

    def of_device(self, text: str) -> str:
        """Return a text on GPUs in the words of this site: on processes if it has none."""
        return text.replace("GPUs", self.devices).replace("GPU", self.device)

    def in_words(self, cost: Hours) -> str:
        """Return ``4.20 GPU h``, or ``4.20 GPU h (8.40 normalised GPU h)``."""
        return f"{significant(cost.gpus)} {self.device} h{self.beside(cost)}"

    def of(self, used: Hours, most: Hours) -> str:
        """Return ``812 of 2,000 GPU h``, or ``812 of 2,000 GPU h (1,624 of 4,000 normalised GPU h)``."""
        shown = f"{significant(used.gpus)} of {significant(most.gpus)} {self.device} h"
        if self.centre is None:
            return shown
        both = " of ".join(significant(cost.of_centre(self.centre)) for cost in (used, most))
        return f"{shown} ({both} {self.centre.name})"

    def beside(self, cost: Hours) -> str:
        """Return `` (8.40 normalised GPU h)``; empty for a centre without hours of its own."""
        return "" if self.centre is None else f" ({significant(cost.of_centre(self.centre))} {self.centre.name})"
