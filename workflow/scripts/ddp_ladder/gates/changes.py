"""What to change so that a step loses less, and how much that would gain by the scale's own figures. Pure.

An estimate is never more than what the figures give: the time that a change saves at most, or saves if the part of the
step that it is about behaves as its definition says. Where no figure says it, there is no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddp_ladder.common.messages import leave_out
from ddp_ladder.gates.link import Link
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.gates.step_facts import StepFacts
from ddp_ladder.usage.models import FindingKind

Cause = Literal["data", "communication", "imbalance", "computation", "rest", "others"]

WORTH_CHANGING = 0.01  # of the step time: what saves less is not proposed
FULL = 0.55  # of the GPU's memory: a batch of twice the size may not fit
MOST_WORKERS = 64  # per rank: a loader that needs more is too slow for workers to help


@dataclass(frozen=True)
class Change:
    """What to change. gain: more samples/s, a fraction; None: no figure says it. is_limit: it is not more than that.

    why: what the estimate comes from.
    """

    what: str
    gain: float | None = None
    is_limit: bool = False
    why: str = ""

    @property
    def gain_in_words(self) -> str:
        """Return ``about 12 % more samples/s``."""
        if self.gain is None:
            return "not estimated"
        about = "at most" if self.is_limit else "about"
        percents = 100 * self.gain
        return (
            f"{about} {percents:.2g} % more samples/s"
            if percents < 99.5
            else f"{about} {percents:,.0f} % more samples/s"
        )

    @property
    def in_words(self) -> str:
        return self.what if self.gain is None else f"{self.what} ({self.gain_in_words})"


def changes_for(
    cause: Cause, lost_s: float, untimed: ScalePoint | None, point: ScalePoint, link: Link | None
) -> list[Change]:
    """Return the changes that may make a loss smaller, the likeliest first.

    lost_s: in seconds per step. untimed: the scale where communication and computation are not told apart.
    """
    untold = cause == "computation" and untimed is not None
    found = [*_by_findings(cause, untold, lost_s, point)]
    if cause == "computation" and untimed is not None:
        return [*found, Change(_to_tell(untimed))]
    return [*found, *_GENERAL[cause](point, lost_s, link)]


def _by_findings(cause: Cause, untold: bool, lost_s: float, point: ScalePoint) -> Iterator[Change]:
    """Yield the change for the finding on the runs' usage that explains a loss best, if there is one."""
    kinds = _EXPLAINED_BY[cause] + (("network full",) if untold else ())
    if cause == "computation" and point.simulated and not untold:
        return
    if cause == "imbalance" and not (point.step and point.step.imbalance_kind == "persistent"):
        return
    found = next((each for kind in kinds for each in point.findings if each.kind == kind), None)
    if found:
        why = "the time that this part of the step lost against the baseline"
        yield _saving(f"{found.next} ({found.in_words})", lost_s, point, why, is_limit=True)


def _saving(what: str, saved_s: float, point: ScalePoint, why: str, is_limit: bool = False) -> Change:
    step_s = point.step_time_s or 0.0
    gain = saved_s / (step_s - saved_s) if 0 < saved_s < step_s else None
    return Change(what, gain, is_limit, why)


def _for_data(point: ScalePoint, _lost_s: float, _link: Link | None) -> Iterator[Change]:
    wait_s, step_s = point.data_wait_s or 0.0, point.step_time_s or 0.0
    workers = point.step.workers if point.step else None
    why = "steps without the wait for data"
    more = "more loader workers"
    # Workers that cannot keep up deliver a batch in each step; without workers, the wait is the time of loading one.
    if workers is not None and 0 < wait_s < step_s:
        needed = math.ceil((workers * step_s if workers else wait_s) / (step_s - wait_s))
        if needed <= MOST_WORKERS:
            more = f"{needed} loader workers per rank instead of {workers}"
            why += f"; {needed} workers deliver a batch as fast as it is trained on"
    yield _saving(
        f"give the script {more} (workload.args), as node.cpus allows, or put workload.data_dir on faster storage",
        wait_s,
        point,
        why,
    )


def _for_communication(point: ScalePoint, _lost_s: float, link: Link | None) -> Iterator[Change]:
    exposed_s, facts = point.exposed_comm_s or 0.0, point.step or StepFacts()
    if facts.memory_fraction is None or facts.memory_fraction < FULL:
        yield _saving(
            "raise workload.batch_per_gpu: with twice the batch, each exchange of gradients serves twice the samples",
            exposed_s / 2,
            point,
            "half the exposed communication per sample; check learning rate and memory",
        )
    yield from _smaller_gradients(point, facts, exposed_s, link)
    yield from _fewer_buckets(point, facts, exposed_s, link)
    why = "steps without exposed communication"
    interface = "see whether network.interface is the fastest one (`snakemake preflight` measures it)"
    if link and any("socket" in name.lower() for name in link.transport):
        interface = "let NCCL use the fast network instead of sockets (network.interface; `snakemake preflight` checks)"
    yield _saving(interface, exposed_s, point, why, is_limit=True)
    if facts.backend == "nccl" and facts.gradient_bytes:
        copied = f"spares the copy of {facts.gradient_bytes / 1e6:.3g} MB of gradients, whose time was not measured"
        yield Change("set gradient_as_bucket_view=True of DistributedDataParallel", why=copied)


def _smaller_gradients(point: ScalePoint, facts: StepFacts, exposed_s: float, link: Link | None) -> Iterator[Change]:
    """Yield the change to gradients of two bytes if they have four, and are sent as they are."""
    if facts.parameter_dtype != "float32" or facts.comm_hook or facts.comm_s is None:
        return
    sent_s = facts.comm_s
    if link and facts.gradient_bytes and facts.buckets:  # latency does not depend on bytes
        all_s = link.all_reduces_s(facts.gradient_bytes, facts.buckets)
        sent_s *= 1 - link.latency_s(facts.buckets) / all_s if all_s else 1.0
    saved_s = min(exposed_s, sent_s / 2)
    if saved_s < WORTH_CHANGING * (point.step_time_s or 0.0):
        return
    hook = "bf16_compress_hook" if facts.backend == "nccl" else "fp16_compress_hook"
    what = f"send gradients in two bytes instead of four: model.register_comm_hook(None, {hook})"
    yield _saving(what, saved_s, point, "half the bytes; check that the loss stays the same")


def _fewer_buckets(point: ScalePoint, facts: StepFacts, exposed_s: float, link: Link | None) -> Iterator[Change]:
    """Yield the change to larger buckets if the latency of many is worth it; two are needed to overlap."""
    if link is None or not facts.buckets or facts.buckets < 4:
        return
    fewer = facts.buckets // 2
    saved_s = min(exposed_s, link.latency_s(facts.buckets - fewer))
    if saved_s >= WORTH_CHANGING * (point.step_time_s or 0.0):
        what = f"double bucket_cap_mb of DistributedDataParallel: {fewer} buckets instead of {facts.buckets}"
        yield _saving(what, saved_s, point, f"an all-reduce has a latency of {1e3 * link.alpha_s:.3g} ms")


def _for_imbalance(point: ScalePoint, lost_s: float, _link: Link | None) -> Iterator[Change]:
    facts = point.step or StepFacts()
    of_data = facts.imbalance_data_s is not None and facts.imbalance_data_s > lost_s / 2
    if facts.imbalance_kind == "persistent":
        what = f"{leave_out()}, or give every rank the same work: {facts.slowest} is the slowest"
        why = "steps in which all ranks work as long as the typical one"
    elif facts.imbalance_kind == "occasional":
        what = (
            f"look at what {facts.slowest} does in some steps and the others do not (checkpoints, logging): do it less "
            "often, or beside the training"
        )
        why = "steps in which this rank works as long as the typical one"
    elif of_data:
        what = (
            "even out the time for a batch's data, which varies from step to step: loader workers with a larger "
            "prefetch_factor, or samples of like size together on all ranks"
        )
        why = "steps in which every rank waits as long for its data as the mean of the ranks"
    else:
        what = (
            "even out the ranks' work, which varies from step to step: draw lengths or shapes together on all ranks, "
            "for example in buckets of like length"
        )
        why = "steps in which every rank works as long as the mean of the ranks"
    yield _saving(what, lost_s, point, why)


def _for_computation(point: ScalePoint, lost_s: float, _link: Link | None) -> Iterator[Change]:
    if point.simulated:
        yield Change("measure on real nodes: these share the cores of one machine")
        return
    yield _saving(
        f"see whether the ranks share what {point.baseline_in_words} had alone: raise node.cpus for more cores per "
        "rank (OMP_NUM_THREADS follows it), and look at the GPUs' clocks under load",
        lost_s,
        point,
        "computation as fast as at the baseline",
        is_limit=True,
    )


def _for_rest(point: ScalePoint, lost_s: float, _link: Link | None) -> Iterator[Change]:
    yield _saving(
        "look at what the script does in each step outside of forward and backward pass: optimizer, copies to the GPU, "
        "logging, .item()",
        lost_s,
        point,
        "the rest of the step as short as at the baseline",
        is_limit=True,
    )


def _to_tell(untimed: ScalePoint) -> str:
    batch = "raise workload.batch_per_gpu, which makes communication a smaller part"
    if untimed.step and untimed.step.steps_needed:
        steps = untimed.step.steps_needed
        return f"set measure.max_steps: {steps} and let the script train so long: DDP then times enough steps; {batch}"
    return f"{batch}; let the training use DistributedDataParallel, whose exposed communication is measured"


_GENERAL = {
    "data": _for_data,
    "communication": _for_communication,
    "imbalance": _for_imbalance,
    "computation": _for_computation,
    "rest": _for_rest,
}
_COMPUTING: tuple[FindingKind, ...] = (
    "slow node",
    "GPU throttled",
    "GPU power limit",
    "too many threads",
    "CPU binding",
    "NUMA",
)
_EXPLAINED_BY: Mapping[Cause, tuple[FindingKind, ...]] = {
    "data": ("CPUs full",),
    "communication": ("network full",),
    "imbalance": ("slow node",),
    "computation": _COMPUTING,
    "rest": (),
    "others": (),
}
"""The findings that explain each cause, the most telling first."""


def explaining(cause: Cause, point: ScalePoint) -> list[str]:
    """Return the findings on the runs' usage that explain a cause, in words."""
    kinds = _EXPLAINED_BY[cause]
    return [each.in_words for each in point.findings if each.kind in kinds]
