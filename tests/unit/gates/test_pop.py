"""POP's factors of a point, from its own work and the samples that a step really had."""

from dataclasses import replace

import pytest
from ddp_ladder.gates.points import ScalePoint, StepFacts
from ddp_ladder.gates.scaling import with_pop_factors


def point(nodes: int, own_s: float, samples: int) -> ScalePoint:
    """A weak point with steps of 0.1 s, each of ``samples`` although the plan says 64 per GPU."""
    facts = StepFacts(own_mean_s=own_s, own_max_s=own_s)
    found = ScalePoint("default", "weak", "stage1", nodes, 1, nodes, 64, 64 * nodes, 3, step=facts)
    return replace(found, samples_per_s=samples / 0.1, step_time_s=0.1)


def test_the_global_factor_is_of_the_batches_that_were_trained() -> None:
    """The last batch of each epoch is a short one, and by another part at each scale."""
    base, top = point(1, 0.1, 60), replace(point(2, 0.08, 112), efficiency=112 / 120)
    assert with_pop_factors(top, base).global_efficiency == pytest.approx(top.efficiency)
