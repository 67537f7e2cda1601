"""How far the training will scale, from what was measured: where to stop, and the laws of scaling. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_ladder.analysis.largest import Largest, largest_scale
from ddp_ladder.analysis.laws import Law, laws
from ddp_ladder.analysis.measured import series_of
from ddp_ladder.analysis.prediction import Prediction, predict
from ddp_ladder.common.formats import NARROW_SPACE, percent
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.plan.plan import Plan
from ddp_ladder.settings.terms import PLAIN_VARIANT, REFERENCE_VARIANT, Mode, Scale

LEAST_SCALES = 3
"""With two points every law fits, and says nothing."""


@dataclass(frozen=True)
class Outlook:
    """What is known of the scales above the measured ones. largest: None if the gates ask for no efficiency.

    first: the scale that the ladder starts at; measured holds the scales that compare, and may lack it.
    at: the prediction for twice the largest measured number of nodes, or for the next larger planned scale; of the
    largest measured one if no larger one is possible.
    """

    mode: Mode
    variant: str
    first: str
    measured: tuple[str, ...]
    largest: Largest | None
    at: Prediction
    laws: tuple[Law, ...]

    @property
    def in_words(self) -> str:
        """Return ``weak scaling: at least 70 % efficiency is expected up to 8x4``, and more."""
        if self.largest is None:
            return ""
        wanted = f"{percent(self.largest.min_efficiency)} efficiency"
        if self.at.baseline != self.first:
            wanted += f" against {self.at.baseline} (the scales from there on do not compare with {self.first})"
        if self.largest.scale is None:
            text = f"{self.mode} scaling: no scale is expected to reach {wanted}"
        else:
            whole, expected = self.largest.interval_scale, self.largest.scale
            text = f"{self.mode} scaling: at least {wanted} is expected up to {expected}"
            if whole != expected:
                text += f"; the whole interval lies above it {f'up to {whole}' if whole else 'at no scale'}"
            text += "" if self.largest.note.startswith("stop at") else f"; {self.largest.note}"
            text += f"; {self.largest.dips}" if self.largest.dips else ""
        return text.replace(NARROW_SPACE, " ")

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of LAW_HEADINGS for each law."""
        return [
            (
                law.name,
                law.formula,
                ", ".join(f"{name} {value:.3g}" for name, value in law.parameters.items()),
                f"{100 * law.residual:.1f} %",
            )
            for law in self.laws
        ]


LAW_HEADINGS = ("law", "time per sample of a GPU", "parameters", "largest difference from a measured scale")


def outlooks(plan: Plan, points: Sequence[ScalePoint]) -> tuple[Outlook, ...]:
    """Return the outlook of the reference variant in each mode of which enough scales were measured."""
    modes: dict[Mode, None] = dict.fromkeys(run.mode for run in plan.runs)
    names = list(dict.fromkeys(run.variant for run in plan.runs if run.variant != PLAIN_VARIANT))
    variant = REFERENCE_VARIANT if REFERENCE_VARIANT in names or not names else names[0]
    found = []
    for mode in modes:
        series = series_of(points, variant, mode)
        if len(series.points) < LEAST_SCALES:
            continue
        scales = [point.scale for point in series.points]
        least = _least_efficiency(plan, scales)
        # In strong mode the global batch is the same everywhere: each GPU needs a sample of it.
        most = next(run.global_batch for run in plan.runs if run.mode == mode) if mode == "strong" else None
        found.append(
            Outlook(
                mode,
                variant,
                str(plan.first_scale),
                tuple(map(str, scales)),
                None if least is None else largest_scale(series, least, most_gpus=most),
                predict(series, _next_scale(plan, series.largest.scale, most)),
                laws(series.points),
            )
        )
    return tuple(found)


def _least_efficiency(plan: Plan, measured: Sequence[Scale]) -> float | None:
    """Return the efficiency that the gate of the first stage that is not measured asks for, or else the last one."""
    done = [job.stage for job in plan.jobs if job.scale in measured]
    above = [stage for stage in plan.stages if stage not in done] or list(plan.stages[-1:])
    return next((least for stage in above if (least := plan.gates[stage].min_efficiency) is not None), None)


def _next_scale(plan: Plan, largest: Scale, most_gpus: int | None) -> Scale:
    larger = [job.scale for job in plan.jobs if job.scale.world_size > largest.world_size]
    if larger:
        return min(larger, key=lambda scale: scale.world_size)
    nodes = 2 * largest.nodes
    if most_gpus is not None:
        nodes = max(largest.nodes, min(nodes, most_gpus // largest.gpus_per_node))
    return Scale(nodes, largest.gpus_per_node)
