"""The efficiency factors of POP (Performance Optimisation and Productivity), defined for a step of DDP. Pure.

A rank's useful time is its own work in a step: the step without its wait for the exchange of gradients. So the wait
for data counts as computation, as POP counts whatever is outside of communication. Their definitions are in
gates/figures and docs/attribution.md.
"""

from __future__ import annotations

from dataclasses import replace

from ddp_ladder.gates.scale_point import ScalePoint

USUAL_MARK = 0.8  # POP: below, a factor deserves attention


def with_pop_factors(point: ScalePoint, baseline: ScalePoint | None) -> ScalePoint:
    """Return the point with the factors; those that relate to the baseline only if there is an efficiency.

    baseline: with figures of its own; it may be the point itself.
    """
    own, step_s = _own_work(point), point.step_time_s
    if own is None or not step_s:
        return point
    mean_s, max_s = own
    point = replace(
        point,
        load_balance=mean_s / max_s,
        communication_efficiency=max_s / step_s,
        parallel_efficiency=mean_s / step_s,
    )
    first = _own_work(baseline) if baseline else None
    if baseline is None or first is None or point.efficiency is None:
        return point
    scaling = _own_work_per_sample(baseline, first[0]) / _own_work_per_sample(point, mean_s)
    return replace(point, computation_scaling=scaling, global_efficiency=scaling * mean_s / step_s)


def _own_work(point: ScalePoint) -> tuple[float, float] | None:
    """Return mean and maximum over the ranks, in seconds per step; None if they are not known."""
    if point.step is None or not point.step.own_mean_s or not point.step.own_max_s:
        return None
    return point.step.own_mean_s, point.step.own_max_s


def _own_work_per_sample(point: ScalePoint, mean_s: float) -> float:
    """Return the seconds of all ranks: by the samples that a step really had, as its last batch may be a short one."""
    assert point.samples_per_s
    assert point.step_time_s
    return mean_s * point.world_size / (point.samples_per_s * point.step_time_s)
