"""The rate at a scale that was not measured, with a 90 % interval, or None where nothing is known. Pure.

The figure is the time that one GPU spends on each of its samples; its growth is the loss. A step from the nearest
smaller measured scale over d doublings of the GPUs loses, as a logarithm,

    d (usual + kept x what each doubling before it lost)

``usual`` and ``kept``, and the quantiles of what published tables lost more or less than that, are in calibration.json,
by kind of step; benchmarks/prediction.py writes it, and docs/prediction.md shows how well it holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from ddp_ladder.analysis.measured import Measured, Series, doublings
from ddp_ladder.settings.terms import Scale

CALIBRATION = Path(__file__).with_name("calibration.json")
MOST_FACTOR = 4.0
"""An interval whose upper end is more than this many times its lower end says nothing."""

Kind = Literal[
    "between measured scales",
    "inside a node, after the step from one GPU",
    "inside a node",
    "first of several nodes",
    "first of several nodes, with more GPUs in each",
    "second of several nodes",
    "more nodes",
]

MOST_INSIDE = 0.1
"""What a doubling inside a node lost says something of the network between nodes up to here; in published tables, a
larger loss says no more."""
FULLER: Kind = "first of several nodes, with more GPUs in each"


@dataclass(frozen=True)
class Step:
    """A step from a measured scale to a larger one.

    doublings: of GPUs, nodes or GPUs per node, whichever is most. lost_before: what each doubling of the GPUs lost
    from the next smaller measured scale to this one, or from this one to the next larger if there is one (difference of
    logarithms; at least 0). before: how many doublings that were.
    """

    kind: Kind
    anchor: Measured
    doublings: float
    lost_before: float
    before: float

    @property
    def unit(self) -> float:
        """Return the size that the difference between loss and expectation is measured in."""
        return math.sqrt(self.doublings) * (0.1 + self.lost_before)


@dataclass(frozen=True)
class Losses:
    """What steps of one kind lose.

    slower >= 0 >= faster: quantiles of the loss beyond what is expected, in Step.unit.
    most_doublings: the farthest step that enough published tables made. tables, sources: how many it is made from.
    """

    usual: float
    kept: float
    slower: float
    faster: float
    most_doublings: float
    tables: int
    sources: int

    def of(self, step: Step) -> float:
        """Return the expected loss of a step."""
        return step.doublings * (self.usual + self.kept * step.lost_before)


Calibration = Mapping[Kind, Losses]


@dataclass(frozen=True)
class Estimate:
    """Samples per second of all GPUs. low and high: None for a measured scale whose noise is not known."""

    samples_per_s: float
    low: float | None
    high: float | None


@cache
def shipped() -> Calibration:
    """Return the calibration on all published tables."""
    found = json.loads(CALIBRATION.read_text(encoding="utf-8"))
    return {kind: Losses(**found[kind]) for kind in get_args(Kind)}


def estimate(series: Series, at: Scale, calibration: Calibration | None = None) -> Estimate | None:
    """Return the estimate for a scale; a measured scale's own rate; None if it is not known.

    Not known: from one measured scale, below the smallest one, farther than published tables tell, or with an interval
    wider than ``MOST_FACTOR``.
    """
    if measured := series.at(at):
        noise = series.noise_of(measured)
        rate = measured.samples_per_s
        return Estimate(rate, rate * math.exp(-noise), rate * math.exp(noise)) if noise else Estimate(rate, None, None)
    step = step_to(series, at)
    if step is None:
        return None
    losses = (calibration or shipped())[step.kind]
    loss = losses.of(step)
    # The measured scales' own noise: of the anchor, and of the loss before it, which both scales bear.
    share = losses.kept * step.doublings / step.before
    noise = series.noise_of(step.anchor) * math.hypot(1 + share, share)
    slower = math.hypot(losses.slower * step.unit, noise)
    faster = math.hypot(losses.faster * step.unit, noise)
    if step.doublings > losses.most_doublings or slower + faster > math.log(MOST_FACTOR):
        return None
    rate = at.world_size / step.anchor.gpu_s_per_sample * math.exp(-loss)
    return Estimate(rate, rate * math.exp(-slower), rate * math.exp(faster))


def upper_bound(series: Series, at: Scale) -> float:
    """Return the samples/s of a scale if nothing is lost beyond the largest measured scale below it."""
    below = [point for point in series.points if point.scale.world_size <= at.world_size]
    return at.world_size / (below[-1] if below else series.smallest).gpu_s_per_sample


def step_to(series: Series, at: Scale) -> Step | None:
    """Return the step from the nearest smaller measured scale; None if no loss beside it was measured."""
    below = [point for point in series.points if point.scale.world_size <= at.world_size]
    above = [point for point in series.points if point.scale.world_size > at.world_size]
    if not below:
        return None
    # Of 1x2 and 2x1, the one with as many nodes as 1x4 or 4x1 has.
    anchor = max(below, key=lambda p: (p.scale.world_size, -abs(p.scale.nodes - at.nodes)))
    smaller = [point for point in below if point.scale.world_size < anchor.scale.world_size]
    beside = above[0] if above else smaller[-1] if smaller else None
    most_per_node = max(point.scale.gpus_per_node for point in series.points)
    if beside is None or (anchor.scale.nodes > 1 and at.gpus_per_node > most_per_node):
        return None
    before = abs(doublings(beside.scale, anchor.scale))
    lost = math.log(anchor.gpu_s_per_sample / beside.gpu_s_per_sample) * (-1 if above else 1)
    kinds: tuple[tuple[bool, Kind], ...] = (
        (bool(above), "between measured scales"),
        (at.nodes == 1 and beside.scale.world_size == 1, "inside a node, after the step from one GPU"),
        (at.nodes == 1, "inside a node"),
        (anchor.scale.nodes == 1 and at.gpus_per_node > anchor.scale.gpus_per_node, FULLER),
        (anchor.scale.nodes == 1, "first of several nodes"),
        (beside.scale.nodes == 1, "second of several nodes"),
        (True, "more nodes"),
    )
    sizes = (at.world_size / anchor.scale.world_size, at.nodes / anchor.scale.nodes)
    ratios = (*sizes, at.gpus_per_node / anchor.scale.gpus_per_node)
    kind = next(kind for holds, kind in kinds if holds)
    lost_before = max(0.0, lost / before)
    if series.mode == "strong" and not above:
        lost_before *= 2  # the batch of a GPU halves, and what is communicated does not
    if kind.startswith("first"):
        lost_before = min(lost_before, MOST_INSIDE)
    return Step(kind, anchor, max(abs(math.log2(ratio)) for ratio in ratios), lost_before, before)
