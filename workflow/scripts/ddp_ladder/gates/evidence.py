"""The figures that show a cause of lost efficiency, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_ladder.common.formats import count, milliseconds, percent, significant
from ddp_ladder.gates.changes import Cause, explaining
from ddp_ladder.gates.link import Link
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.gates.step_facts import StepFacts


def evidence(cause: Cause, point: ScalePoint, baseline: ScalePoint, link: Link | None) -> tuple[str, ...]:
    """Return what the runs' figures, their usage and the preflight (link) say about a cause."""
    if cause == "data":
        found = [*_of_data(point, baseline)]
    elif cause == "communication":
        found = [*_of_communication(point, link)]
    elif cause == "imbalance":
        found = [*_of_imbalance(point)]
    else:
        found = [*_of_computation(point, baseline)] if cause == "computation" else []
    return (*found, *explaining(cause, point))


def _of_data(point: ScalePoint, baseline: ScalePoint) -> Iterator[str]:
    yield f"data wait {_ms(point.data_wait_s)} in each step, {_ms(baseline.data_wait_s)} at {baseline.scale}"
    if point.step and point.step.workers is not None:
        yield f"loader workers per rank: {point.step.workers}"
    if point.step and point.step.loaders_slow:
        yield (
            "the loaders of most ranks take longer for a batch than the rest of the step: no rank is the cause, "
            "although the wait collects on one while the others wait for it"
        )


def _of_communication(point: ScalePoint, link: Link | None) -> Iterator[str]:
    facts = point.step or StepFacts()
    if facts.comm_s is not None and facts.overlap_s is not None:
        timed = f" ({facts.timed_steps} steps timed on each rank)" if facts.timed_steps else ""
        yield (
            f"DDP's exchange of gradients takes {_ms(facts.comm_s)} on the rank that waits for no other, of which the "
            f"backward pass hides {_ms(facts.overlap_s)}{timed}"
        )
    if not facts.gradient_bytes or not facts.buckets:
        return
    size = f"{facts.gradient_bytes / 1e6:.3g} MB of gradients in {count(facts.buckets, 'all-reduce')}"
    if link is None:
        yield f"{size}; no preflight measured how fast the network is"
        return
    all_s = link.all_reduces_s(facts.gradient_bytes, facts.buckets)
    busbw = link.busbw_gb_per_s(point.world_size)
    rate = f" ({significant(busbw)} GB/s bus bandwidth)" if busbw else ""
    yield (
        f"{size}: by the preflight's figures{rate}, with nothing else running, these take {_ms(all_s)}, of which "
        f"{_ms(link.latency_s(facts.buckets))} is latency"
    )


def _of_imbalance(point: ScalePoint) -> Iterator[str]:
    facts = point.step or StepFacts()
    if facts.imbalance_kind is None or point.imbalance_s is None or not point.step_time_s:
        return
    own_s = facts.own_max_s or point.step_time_s
    share = f"{percent(facts.slow_share)} of it" if facts.slow_share is not None else "it"
    works = (
        f"works {_ms(own_s)} in each step, the typical rank {_ms(own_s - point.imbalance_s)}: the others wait for it"
    )
    if facts.imbalance_kind == "persistent":
        yield f"persistent: {facts.slowest} {works}"
    elif facts.imbalance_kind == "occasional":
        steps = f"in {percent(facts.slow_steps)} of the steps" if facts.slow_steps is not None else "in some steps"
        yield f"occasional: {facts.slowest} holds up the others {steps}, which is {share}"
    else:
        yield (
            f"varying: the ranks' work varies from step to step; the slowest of a step {works.split(':')[0]}, and no "
            f"rank causes more than {share} in every repeat"
        )
    parts = {
        "a longer wait for data": facts.imbalance_data_s,
        "longer forward and backward passes": facts.imbalance_compute_s,
    }
    named = [f"{_ms(part)} {name}" for name, part in parts.items() if part and part > point.imbalance_s / 10]
    if named:
        yield f"of it are {', '.join(named)}"


def _of_computation(point: ScalePoint, baseline: ScalePoint) -> Iterator[str]:
    if point.compute_s is not None and baseline.compute_s is not None:
        share = point.global_batch / point.world_size * baseline.world_size / baseline.global_batch
        yield (
            f"forward and backward pass take {_ms(point.compute_s)}, and {_ms(share * baseline.compute_s)} for as many "
            f"samples at {baseline.scale}"
        )
    if point.cpu_fraction is not None and baseline.cpu_fraction is not None:
        yield f"CPUs busy: {percent(point.cpu_fraction)}, {percent(baseline.cpu_fraction)} at {baseline.scale}"


def _ms(value_s: float | None) -> str:
    return f"{milliseconds(value_s)} ms"
