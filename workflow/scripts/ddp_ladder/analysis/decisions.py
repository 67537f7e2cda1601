"""What a training costs at each scale, what to ask for, and FLOP/s. Pure, but for the table of peaks.

Hours are of the training's steps, without start-up, validation and checkpoints, unless they are called wall time. The
FLOPs per sample are counted at the first scale. They hold at every scale of the same variant and mode whose fingerprint
is the same: the batch does not change them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ddp_ladder.common.formats import full_stop, grouped, one_of, percent, share
from ddp_ladder.gates.gate import doubts_of_efficiency
from ddp_ladder.gates.points import Figures, Key, ScalePoint, Status
from ddp_ladder.plan.plan import Units
from ddp_ladder.records.record import Record
from ddp_ladder.settings.terms import REFERENCE_VARIANT

J_PER_KWH = 3.6e6
OF_RUNS: tuple[Key, ...] = ("samples_per_s_total", "samples_per_s_end_to_end", "energy_j_per_sample")


@dataclass(frozen=True)
class Work:
    """A whole training: samples, tokens, steps, or epochs of the data set's size. None: not known."""

    epochs: float | None = None
    samples: float | None = None
    dataset_size: int | None = None
    steps: int | None = None
    runs: int | None = None  # trainings that the project needs
    reserve: float = 0.1  # on their hours, a fraction
    tokens: float | None = None
    tokens_per_sample: int | None = None

    @classmethod
    def seen_in(cls, records: Sequence[Record], said: int | None, **asked: Any) -> Work:
        """Return a training on the data that good runs saw. said: tokens of a sample in the settings."""
        sizes = (record.fingerprint.dataset_size for record in records)
        tokens = one_of(record.fingerprint.tokens_per_sample for record in records) if said is None else said
        return cls(dataset_size=next(filter(None, sizes), None), tokens_per_sample=tokens, **asked)

    def total(self, global_batch: int) -> float | None:
        """Return the samples of the whole training at a scale of this global batch."""
        if self.samples is not None:
            return self.samples
        if self.steps is not None:
            return self.steps * global_batch
        if self.tokens is not None:
            return self.tokens / self.tokens_per_sample if self.tokens_per_sample else None
        return None if self.epochs is None or not self.dataset_size else self.epochs * self.dataset_size

    @property
    def in_words(self) -> str:
        """Return ``90 epochs``."""
        if self.steps is not None:
            return f"{self.steps:,} steps"
        if self.tokens is not None:
            return f"{self.tokens:,.0f} tokens"
        return f"{self.samples:,.0f} samples" if self.samples is not None else f"{self.epochs:g} epochs"

    @property
    def missing(self) -> str:
        """Return why a training that was asked for has no cost; empty if it has one, or none was asked for."""
        if (self.epochs is None and self.tokens is None) or self.total(1) is not None:
            return ""
        if self.tokens is not None:
            return (
                "the tokens of a sample are not known, so report.tokens has no effect: set workload.tokens_per_sample"
            )
        return "the size of the data set is not known, so report.epochs has no effect: set report.samples"


def kwh(joules: float | None) -> float | None:
    """Return an energy as centres count it."""
    return None if joules is None else joules / J_PER_KWH


def with_tokens(point: ScalePoint, said: int | None) -> ScalePoint:
    """Return the point with its tokens/s, if they are known. said: the tokens of a sample in the settings."""
    tokens = point.tokens_per_sample if said is None else said
    if tokens is None or point.rate is None:
        return point
    rate = tokens * point.rate
    figures: Figures = {"tokens_per_s": rate, "tokens_per_s_per_gpu": rate / point.world_size}
    return point.having(figures, tokens_per_sample=tokens)


def with_cost(points: Sequence[ScalePoint], work: Work, units: Units) -> tuple[ScalePoint, ...]:
    """Return the points with the cost of a million samples and of the whole training, as far as they are known."""
    return tuple(_with_solution(_in_hours(point, units), work.total(point.global_batch), units) for point in points)


def _in_hours(point: ScalePoint, units: Units) -> ScalePoint:
    hours = point.of("gpu_hours_per_million_samples")
    of_centre = hours and hours.alike(point.cost_per_million.of_centre(units.hours))
    return point.having({"centre_hours_per_million_samples": of_centre})


def _with_solution(point: ScalePoint, samples: float | None, units: Units) -> ScalePoint:
    if samples is None or point.rate is None:
        return point
    hours, startup_s = samples / point.rate / 3600, point["startup_s"]
    of_steps, of_all, joules = (point[key] for key in OF_RUNS)
    wall_hours = None
    if of_steps and of_all and startup_s is not None:
        # In the proportion of the measured runs, whatever the statistic of the steps; all of a run takes no less.
        wall_hours = startup_s / 3600 + hours.value * max(1.0, of_steps / of_all)
    energy_kwh = None if joules is None else kwh(joules * samples)
    return point.having(
        {
            "hours_to_solution": hours,
            "wall_hours_to_solution": hours.alike(wall_hours),
            "gpu_hours_to_solution": point.world_size * hours,
            "centre_hours_to_solution": hours.alike(point.cost(hours.value).of_centre(units.hours)),
            "energy_kwh_to_solution": hours.alike(energy_kwh),
            "carbon_kg_to_solution": hours.alike(units.carbon_kg(energy_kwh)),
        }
    )


# --- What to ask for, decided once from the points: the recommended and the cheapest scale of each mode.
# Page, proposal, forms and watch only word it.


DEFAULT_EFFICIENCY = 0.75  # what centres ask for: CSC, NCI
USABLE: tuple[Status, ...] = ("ok", "incomplete")  # a suspect point, above the ideal, is not recommended


@dataclass(frozen=True)
class Decision:
    """What is decided of one mode."""

    mode: str
    points: tuple[ScalePoint, ...]  # the measured ones of the reference variant, or else of the first
    whole: bool  # hours are wall time, and otherwise of the steps
    recommended: ScalePoint | None = None  # None: nothing compares
    rule: str = ""  # why that scale
    doubt: str = ""  # a sentence on why it is not certain; empty if it is

    def hours(self, point: ScalePoint) -> float | None:
        """Return the hours of one training at a scale; None if they are not known."""
        return point["wall_hours_to_solution"] if self.whole else point["hours_to_solution"]

    def cheapest(self, per_node: bool) -> ScalePoint | None:
        """Return the scale of the fewest node hours, or else GPU hours, of one training; None if they are not known."""
        costs = [
            (hours * (point.nodes if per_node else point.world_size), point)
            for point in _usable(self.points)
            if (hours := self.hours(point)) is not None
        ]
        return min(costs, key=lambda cost: cost[0])[1] if costs else None


def decide(points: Sequence[ScalePoint], thresholds: Mapping[str, float | None]) -> tuple[Decision, ...]:
    """Return a decision for each mode that was measured. thresholds: what each stage's gate asks for.

    Hours are wall time if it is known at every usable scale of every mode: one table compares all of them.
    """
    every = reference_series(points)
    whole = all(point["wall_hours_to_solution"] is not None for series in every for point in _usable(series))
    return tuple(_decided(series, thresholds, whole) for series in every)


def _usable(series: Sequence[ScalePoint]) -> list[ScalePoint]:
    return [point for point in series if point.status in USABLE]


def reference_series(points: Sequence[ScalePoint]) -> list[tuple[ScalePoint, ...]]:
    """Return the measured points of each mode, of the reference variant or else of the first."""
    series, known = [], (point for point in points if point["samples_per_s"] is not None and not point.is_plain)
    for measured in grouped((point.mode, point) for point in known).values():
        is_reference = any(point.variant == REFERENCE_VARIANT for point in measured)
        variant = REFERENCE_VARIANT if is_reference else measured[0].variant
        series.append(tuple(point for point in measured if point.variant == variant))
    return series


def _is_faster(point: ScalePoint, other: ScalePoint) -> bool:
    """Return True if the interval of their ratio shows it, in whatever jobs; of single repeats, the estimate's."""
    ratio = point.rate.over(other.rate) if point.rate and other.rate else None
    if ratio is None or ratio.log is None:
        return False
    low, _ = ratio.log.of_estimate.interval_of_any_job(ratio.value)
    return low is not None and low > 1


def _decided(series: tuple[ScalePoint, ...], thresholds: Mapping[str, float | None], whole: bool) -> Decision:
    """Recommend the largest scale that is as efficient as its gate, or most centres, ask for, and the fastest so far.

    A gate may ask for so little that a larger scale is no faster than a smaller one, or that nothing shows that it is.
    """
    chosen, smaller, no_faster = None, list[ScalePoint](), False

    def asked(point: ScalePoint) -> float:
        wanted = thresholds.get(point.stage)
        return DEFAULT_EFFICIENCY if wanted is None else wanted

    for point in sorted(_usable(series), key=lambda point: (point.world_size, point.nodes)):
        if point["efficiency"] is None or point["samples_per_s"] is None:
            continue
        if point["efficiency"] >= asked(point):
            no_faster = not all(_is_faster(point, other) for other in smaller)
            chosen = chosen if no_faster else point
        smaller.append(point)
    if chosen is None:
        return Decision(series[0].mode, series, whole)
    source = "most centres ask for" if thresholds.get(chosen.stage) is None else f"the gate of {chosen.stage} asks for"
    least = percent(asked(chosen))
    rule = f"the largest scale whose efficiency against {chosen.baseline} is at least {least}, as {source}"
    rule += ", and that its interval shows to be faster than all smaller ones" * no_faster
    doubts = doubts_of_efficiency(asked(chosen), chosen)
    what = f"Whether the efficiency of {chosen.scale} ({chosen.mode} scaling) is at least {least} is uncertain"
    doubt = f"{what}: {full_stop(doubts)}" if doubts else ""
    return Decision(chosen.mode, series, whole, chosen, rule, doubt)


Rates = Mapping[str, float]  # TFLOP/s by precision


def with_flops(points: Sequence[ScalePoint], matrix_rates: Mapping[str, Rates]) -> tuple[ScalePoint, ...]:
    """Return the points with their FLOP/s, as far as they are known. matrix_rates: those measured, by scale."""
    counted = {(point.mode, point.variant): point for point in points if point.is_baseline}
    return tuple(_with(point, counted.get((point.mode, point.variant)), matrix_rates) for point in points)


def _with(point: ScalePoint, baseline: ScalePoint | None, matrix_rates: Mapping[str, Rates]) -> ScalePoint:
    flops = baseline.flops if baseline else None
    if flops and flops.why:
        return replace(point, flops_not_counted=flops.why)
    per_sample = baseline["model_flops_per_sample"] if baseline else None
    if baseline is None or flops is None or per_sample is None or point.rate is None:
        return point
    if point.differing:
        return point.having({"model_flops_per_sample": None})
    achieved = per_sample * point.rate / point.world_size / 1e12
    measured = rate_of(flops.precisions, matrix_rates.get(str(point.scale), {}))
    peak = rate_of(flops.precisions, peaks(point.gpu))
    figures: Figures = {
        "model_flops_per_sample": per_sample,
        "tflop_per_s_per_gpu": achieved,
        # The matrix rate was measured under load if it is smaller.
        "fraction_of_matrix_rate": achieved / measured if measured and achieved.value <= measured else None,
        "fraction_of_peak": achieved / peak if peak else None,
    }
    return point.having(figures, flops_precision=in_words(flops.precisions))


def rate_of(precisions: Mapping[str, float], rates: Rates) -> float | None:
    """Return the rate of work whose parts have these precisions, done one after another; None if one is not known."""
    if not precisions or any(not rates.get(name) for name in precisions):
        return None
    return 1 / sum(part / rates[name] for name, part in precisions.items())


def in_words(precisions: Mapping[str, float]) -> str:
    """Return ``bf16``, or of several ``98 % tf32, 2.0 % fp32``."""
    names = sorted(precisions, key=lambda name: -precisions[name])
    return names[0] if len(names) == 1 else ", ".join(f"{share(precisions[name])} {name}" for name in names)


def peaks(gpu: str | None) -> Rates:
    """Return the data sheet's peaks of a GPU; empty if it is not known, or a part of one."""
    if gpu is None or "MIG" in gpu:
        return {}
    return next((row["tflop_per_s"] for row in _table() if re.search(row["name"], gpu)), {})


@cache
def _table() -> list[dict[str, Any]]:
    return list(tomllib.loads(Path(__file__).with_name("gpu_peaks.toml").read_text(encoding="utf-8"))["gpu"])
