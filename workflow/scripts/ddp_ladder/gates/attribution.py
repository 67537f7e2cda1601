"""Where a scale's efficiency went, the evidence, and what to change. Pure but for ``measured_link``.

The ideal step takes the baseline's time for the same samples per rank, step time x efficiency. Its parts are the
baseline's, in the same proportion. What a part is longer than that is lost; the losses add up to step - ideal exactly.
A change's estimate is never more than what the figures give; where no figure says it, there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ddp_ladder.common.formats import count, milliseconds, percent, significant
from ddp_ladder.common.messages import leave_out
from ddp_ladder.gates.points import ScaleFinding, ScalePoint, StepFacts, other_processes
from ddp_ladder.nodes.critical_rank import LEAST_TIMED_STEPS
from ddp_ladder.nodes.usage import FindingKind
from ddp_ladder.preflight.result import PreflightResult, result_of

Cause = Literal["data", "communication", "imbalance", "computation", "rest", "others"]

WORTH_NAMING = 0.1  # part of the lost time: smaller losses are not named
REST_WORTH_NAMING = 0.25  # of the rest, where the errors of all other parts end up
LEAST_SHOWN = 0.005  # of the lost time: less does not show in the figures of a list
MOST_CHANGES = 3

_PARTS: dict[Cause, str] = {
    "data": "data_wait_s",
    "communication": "exposed_comm_s",
    "imbalance": "imbalance_s",
    "computation": "compute_s",
}
NAMES: dict[Cause, str] = {
    "data": "data wait",
    "communication": "exposed communication",
    "imbalance": "waiting for the slowest rank",
    "computation": "slower computation than at",  # the baseline
    "rest": "outside of all these (optimizer, copies, Python)",
    "others": "in smaller losses and gains together",
}
NOT_TOLD_APART = "communication or slower computation, which this training does not tell apart"
EXPLAINED_BY: Mapping[Cause, tuple[FindingKind, ...]] = {
    "data": ("CPUs full",),
    "communication": ("network full",),
    "imbalance": ("slow node",),
    "computation": ("slow node", "GPU throttled"),
}
"""The findings on usage that explain each cause, the most telling first."""
WORTH_CHANGING = 0.01  # of the step time: what saves less is not proposed
FULL = 0.55  # of the GPU's memory: a batch of twice the size may not fit
MOST_WORKERS = 64  # per rank: a loader that needs more is too slow for workers to help


@dataclass(frozen=True)
class Link:
    """An all-reduce of n bytes takes alpha_s + beta_s_per_byte x n. transport: what NCCL used; empty with Gloo."""

    alpha_s: float
    beta_s_per_byte: float
    transport: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: PreflightResult | None) -> Link | None:
        """Return the link of a preflight; None if it measured none."""
        if result is None or result.alpha_s is None or result.beta_s_per_byte is None:
            return None
        return cls(result.alpha_s, result.beta_s_per_byte, tuple(result.transport))

    def busbw_gb_per_s(self, ranks: int) -> float | None:
        """Return the bus bandwidth of long all-reduces as nccl-tests defines it; None if their size took no time."""
        return 2 * (ranks - 1) / ranks / self.beta_s_per_byte / 1e9 if self.beta_s_per_byte else None

    def latency_s(self, buckets: int) -> float:
        """Return the part of a step's all-reduces that does not depend on their size."""
        return self.alpha_s * buckets

    def all_reduces_s(self, gradient_bytes: int, buckets: int) -> float:
        """Return the time of a step's all-reduces."""
        return self.latency_s(buckets) + self.beta_s_per_byte * gradient_bytes


def measured_link(results: Path, scale: object) -> Link | None:
    """Return the link that the preflight of a scale measured; None if there is no preflight that can be believed."""
    try:
        return Link.of(result_of(results, scale))
    except (OSError, ValueError):
        return None


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
        percents = f"{100 * self.gain:.2g}" if self.gain < 0.995 else f"{100 * self.gain:,.0f}"
        return f"{'at most' if self.is_limit else 'about'} {percents} % more samples/s"

    @property
    def in_words(self) -> str:
        return self.what if self.gain is None else f"{self.what} ({self.gain_in_words})"


@dataclass(frozen=True)
class Loss:
    """What one cause costs. lost_s: seconds of each step; below 0, this part is shorter than the baseline's.

    efficiency: the same as a part of 1 (ideal). name: the cause in words.
    """

    cause: Cause
    name: str
    lost_s: float
    efficiency: float
    evidence: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """Return ``15 ms exposed communication (12 points of efficiency)``."""
        return f"{milliseconds(self.lost_s)} ms {self.name} ({significant(100 * self.efficiency)} points of efficiency)"


@dataclass(frozen=True)
class Attribution:
    """The losses of a scale, the largest first, and what would help most. unknown: what is not recorded, in words."""

    step_s: float
    ideal_s: float
    losses: tuple[Loss, ...]
    changes: tuple[Change, ...]
    unknown: tuple[str, ...]

    @property
    def named(self) -> tuple[Loss, ...]:
        """Return the losses that are worth naming."""
        return _worth_naming(self.losses, self.step_s - self.ideal_s)

    @property
    def listed(self) -> tuple[Loss, ...]:
        """Return the named losses and the remainder, which add up to the time that is lost."""
        lost_s, named = self.step_s - self.ideal_s, self.named
        others_s = lost_s - sum(loss.lost_s for loss in named)
        if abs(others_s) < LEAST_SHOWN * lost_s:
            return named
        return (*named, Loss("others", NAMES["others"], others_s, others_s / self.step_s))

    @property
    def in_words(self) -> str:
        """Return ``of a step's 50 ms, 20 ms are lost: 15 ms exposed communication, 5 ms data wait``."""
        parts = ", ".join(f"{milliseconds(loss.lost_s)} ms {loss.name}" for loss in self.listed)
        lost_s = self.step_s - self.ideal_s
        return f"of a step's {milliseconds(self.step_s)} ms, {milliseconds(lost_s)} ms are lost: {parts}"

    @property
    def lost_in_words(self) -> str:
        """Return ``20 ms of each step are lost, 40 points of efficiency``."""
        lost_s = self.step_s - self.ideal_s
        return (
            f"{milliseconds(lost_s)} ms of each step are lost, {significant(100 * lost_s / self.step_s)} points of "
            "efficiency"
        )

    @property
    def next(self) -> str:
        """Return what to do about the largest loss, and what else would help most."""
        return "; or ".join(change.in_words for change in self.changes[:2])


def baseline_of(point: ScalePoint, points: Sequence[ScalePoint]) -> ScalePoint | None:
    """Return the point that the efficiency relates to; None if it is not in the plan."""
    series = point.variant, point.mode
    return next(
        (each for each in points if (each.variant, each.mode) == series and str(each.scale) == point.baseline), None
    )


def attribution(point: ScalePoint, baseline: ScalePoint | None, link: Link | None = None) -> Attribution | None:
    """Return where the efficiency of a scale went; None if nothing is lost, or it is not known.

    link: what the scale's preflight measured.
    """
    if baseline is None or not point.step_time_s or not baseline.step_time_s or point.efficiency is None:
        return None
    if point.efficiency >= 1 or point.scale == baseline.scale:
        return None
    ideal_s = point.efficiency * point.step_time_s
    found = sorted(_losses(point, baseline, ideal_s), key=lambda loss: -loss.lost_s)
    losses = tuple(replace(loss, evidence=_evidence(loss.cause, point, baseline, link)) for loss in found)
    worth = _worth_naming(losses, point.step_time_s - ideal_s)
    unknown = _unknown(point, baseline)
    untimed = next((each for each in (point, baseline) if each.exposed_comm_s is None), None)
    every = [change for loss in worth for change in _changes_for(loss.cause, loss.lost_s, untimed, point, link)]
    changes = [*_most_likely(every)]
    if disturbed := other_processes(point, baseline):
        changes = [Change(f"{disturbed.next} ({disturbed.in_words})"), *changes[: MOST_CHANGES - 1]]
    return Attribution(point.step_time_s, ideal_s, losses, tuple(changes), unknown)


def _worth_naming(losses: Sequence[Loss], lost_s: float) -> tuple[Loss, ...]:
    least = {"rest": REST_WORTH_NAMING * lost_s}
    return tuple(
        loss for loss in losses if loss.lost_s > 0 and loss.lost_s >= least.get(loss.cause, WORTH_NAMING * lost_s)
    )


def _losses(point: ScalePoint, baseline: ScalePoint, ideal_s: float) -> list[Loss]:
    """Return the losses; a part that one of both sides does not know is in the rest."""
    assert point.step_time_s
    assert baseline.step_time_s
    step_s, share = point.step_time_s, ideal_s / baseline.step_time_s
    lost_s: dict[Cause, float] = {}
    for cause, part in _PARTS.items():
        here, there = getattr(point, part), getattr(baseline, part)
        if here is not None and there is not None:
            lost_s[cause] = here - share * there
    rest_s = step_s - ideal_s - sum(lost_s.values())
    names = {**NAMES, "computation": f"{NAMES['computation']} {baseline.scale}"}
    if "communication" not in lost_s:
        names["rest"] = NOT_TOLD_APART
    elif "computation" not in lost_s:
        names["rest"] = names["computation"]
    lost_s["rest"] = rest_s
    return [Loss(_cause(cause, names), names[cause], s, s / step_s) for cause, s in lost_s.items()]


def _cause(cause: Cause, names: dict[Cause, str]) -> Cause:
    """Return computation for the rest if that is what it holds."""
    return "computation" if names[cause] in (names["computation"], NOT_TOLD_APART) else cause


def _unknown(point: ScalePoint, baseline: ScalePoint) -> tuple[str, ...]:
    """Return what the split lacks, and why."""
    found = []
    if point.exposed_comm_s is None:
        found.append(
            f"{_untimed(point, 'this scale')}: communication and computation are not told apart, and the wait for "
            "slower ranks is only seen where their step times differ"
        )
    elif point.compute_s is None or baseline.compute_s is None:
        where = baseline if baseline.compute_s is None else point
        found.append(f"{_untimed(where, where.scale)}: computation and the rest of the step are not told apart")
    if point.data_wait_s is None or baseline.data_wait_s is None:
        found.append("the wait for data was not measured")
    return tuple(found)


def _untimed(point: ScalePoint, place: object) -> str:
    """Return why DDP's times of a scale are not known."""
    facts = point.step
    if facts is None or not facts.steps_needed:
        return f"DDP reported no times at {place}"
    return (
        f"DDP timed only {count(facts.timed_steps or 0, 'step')} at {place}, and {LEAST_TIMED_STEPS} are needed "
        f"(measure.max_steps: {facts.steps_needed}, if the script trains that long)"
    )


def _most_likely(every: list[Change]) -> list[Change]:
    """Return the changes with the largest gains; of equal ones, those for the largest loss first."""
    unique = [*{change.what: change for change in reversed(every)}.values()][::-1]
    return sorted(unique, key=lambda change: -(change.gain or 0.0))[:MOST_CHANGES]


def _changes_for(
    cause: Cause, lost_s: float, untimed: ScalePoint | None, point: ScalePoint, link: Link | None
) -> Iterator[Change]:
    """Yield the changes that may make a loss smaller, the likeliest first.

    lost_s: in seconds per step. untimed: the scale where communication and computation are not told apart.
    """
    untold = cause == "computation" and untimed is not None
    found = _finding_that_explains(cause, untold, point)
    if found:
        why = "the time that this part of the step lost against the baseline"
        yield _saving(f"{found.next} ({found.in_words})", lost_s, point, why, is_limit=True)
    if untold and untimed is not None:
        yield Change(_to_tell(untimed))
    elif cause == "data":
        yield _for_data(point)
    elif cause == "communication":
        yield from _for_communication(point, point.step or StepFacts(), link)
    elif cause == "imbalance":
        what, why = _for_imbalance(point.step or StepFacts(), lost_s)
        yield _saving(what, lost_s, point, f"steps in which {why}")
    elif cause == "computation" and point.simulated:
        yield Change("measure on real nodes: these share the cores of one machine")
    elif cause == "computation":
        what = (
            f"see whether the ranks share what {point.baseline_in_words} had alone: raise node.cpus for more cores per "
            "rank (OMP_NUM_THREADS follows it), and look at the GPUs' clocks under load"
        )
        yield _saving(what, lost_s, point, "computation as fast as at the baseline", is_limit=True)
    else:
        what = (
            "look at what the script does in each step outside of forward and backward pass: optimizer, copies to the "
            "GPU, logging, .item()"
        )
        yield _saving(what, lost_s, point, "the rest of the step as short as at the baseline", is_limit=True)


def _finding_that_explains(cause: Cause, untold: bool, point: ScalePoint) -> ScaleFinding | None:
    """Return the finding on the runs' usage that explains a loss best."""
    if cause == "computation" and point.simulated and not untold:
        return None
    if cause == "imbalance" and not (point.step and point.step.imbalance_kind == "persistent"):
        return None
    kinds = (*EXPLAINED_BY.get(cause, ()), *(("network full",) if untold else ()))
    return next((each for kind in kinds for each in point.findings if each.kind == kind), None)


def _saving(what: str, saved_s: float, point: ScalePoint, why: str, is_limit: bool = False) -> Change:
    step_s = point.step_time_s or 0.0
    gain = saved_s / (step_s - saved_s) if 0 < saved_s < step_s else None
    return Change(what, gain, is_limit, why)


def _for_data(point: ScalePoint) -> Change:
    wait_s, step_s = point.data_wait_s or 0.0, point.step_time_s or 0.0
    workers = point.step.workers if point.step else None
    why, more = "steps without the wait for data", "more loader workers"
    # Workers that cannot keep up deliver a batch in each step; without workers, the wait is the time of loading one.
    if workers is not None and 0 < wait_s < step_s:
        needed = math.ceil((workers * step_s if workers else wait_s) / (step_s - wait_s))
        if needed <= MOST_WORKERS:
            more = f"{needed} loader workers per rank instead of {workers}"
            why += f"; {needed} workers deliver a batch as fast as it is trained on"
    what = f"give the script {more} (workload.args), as node.cpus allows, or put workload.data_dir on faster storage"
    return _saving(what, wait_s, point, why)


def _for_communication(point: ScalePoint, facts: StepFacts, link: Link | None) -> Iterator[Change]:
    exposed_s, least_s = point.exposed_comm_s or 0.0, WORTH_CHANGING * (point.step_time_s or 0.0)
    if facts.memory_fraction is None or facts.memory_fraction < FULL:
        what = "raise workload.batch_per_gpu: with twice the batch, each exchange of gradients serves twice the samples"
        why = "half the exposed communication per sample; check learning rate and memory"
        yield _saving(what, exposed_s / 2, point, why)
    if facts.parameter_dtype == "float32" and not facts.comm_hook and facts.comm_s is not None:
        sent_s = facts.comm_s
        if link and facts.gradient_bytes and facts.buckets:  # latency does not depend on bytes
            all_s = link.all_reduces_s(facts.gradient_bytes, facts.buckets)
            sent_s *= 1 - link.latency_s(facts.buckets) / all_s if all_s else 1.0
        saved_s = min(exposed_s, sent_s / 2)
        if saved_s >= least_s:
            hook = "bf16_compress_hook" if facts.backend == "nccl" else "fp16_compress_hook"
            what = f"send gradients in two bytes instead of four: model.register_comm_hook(None, {hook})"
            yield _saving(what, saved_s, point, "half the bytes; check that the loss stays the same")
    if link and facts.buckets and facts.buckets >= 4:  # two are needed to overlap
        fewer = facts.buckets // 2
        saved_s = min(exposed_s, link.latency_s(facts.buckets - fewer))
        if saved_s >= least_s:
            what = f"double bucket_cap_mb of DistributedDataParallel: {fewer} buckets instead of {facts.buckets}"
            yield _saving(what, saved_s, point, f"an all-reduce has a latency of {1e3 * link.alpha_s:.3g} ms")
    interface = "see whether network.interface is the fastest one (`snakemake preflight` measures it)"
    if link and any("socket" in name.lower() for name in link.transport):
        interface = "let NCCL use the fast network instead of sockets (network.interface; `snakemake preflight` checks)"
    yield _saving(interface, exposed_s, point, "steps without exposed communication", is_limit=True)
    if facts.backend == "nccl" and facts.gradient_bytes:
        copied = f"spares the copy of {facts.gradient_bytes / 1e6:.3g} MB of gradients, whose time was not measured"
        yield Change("set gradient_as_bucket_view=True of DistributedDataParallel", why=copied)


def _for_imbalance(facts: StepFacts, lost_s: float) -> tuple[str, str]:
    """Return what to change, and in which steps the time is saved."""
    if facts.imbalance_kind == "persistent":
        what = f"{leave_out()}, or give every rank the same work: {facts.slowest} is the slowest"
        return what, "all ranks work as long as the typical one"
    if facts.imbalance_kind == "occasional":
        what = (
            f"look at what {facts.slowest} does in some steps and the others do not (checkpoints, logging): do it less "
            "often, or beside the training"
        )
        return what, "this rank works as long as the typical one"
    if facts.imbalance_data_s is not None and facts.imbalance_data_s > lost_s / 2:
        what = (
            "even out the time for a batch's data, which varies from step to step: loader workers with a larger "
            "prefetch_factor, or samples of like size together on all ranks"
        )
        return what, "every rank waits as long for its data as the mean of the ranks"
    what = (
        "even out the ranks' work, which varies from step to step: draw lengths or shapes together on all ranks, for "
        "example in buckets of like length"
    )
    return what, "every rank works as long as the mean of the ranks"


def _to_tell(untimed: ScalePoint) -> str:
    batch = "raise workload.batch_per_gpu, which makes communication a smaller part"
    if untimed.step and untimed.step.steps_needed:
        steps = untimed.step.steps_needed
        return f"set measure.max_steps: {steps} and let the script train so long: DDP then times enough steps; {batch}"
    return f"{batch}; let the training use DistributedDataParallel, whose exposed communication is measured"


def _evidence(cause: Cause, point: ScalePoint, baseline: ScalePoint, link: Link | None) -> tuple[str, ...]:
    """Return what the runs' figures, their usage and the preflight (link) say about a cause."""
    found: Iterable[str] = ()
    if cause == "data":
        found = _of_data(point, baseline)
    elif cause == "communication":
        found = _of_communication(point, link)
    elif cause == "imbalance":
        found = _of_imbalance(point)
    elif cause == "computation":
        found = _of_computation(point, baseline)
    kinds = EXPLAINED_BY.get(cause, ())
    return (*found, *(each.in_words for each in point.findings if each.kind in kinds))


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
