"""Where a scale's efficiency went, the evidence, and what to change. Pure but for ``measured_preflight``.

The ideal step takes the baseline's time for the same samples per rank, step time x efficiency. Its parts are the
baseline's, in the same proportion. What a part is longer than that is lost; the losses add up to step - ideal exactly.
A change's estimate is never more than what the figures give; where no figure says it, there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ddp_ladder_instrument.contract import BUFFERS, SYNC_BATCH_NORM
from ddp_ladder_instrument.slow_settings import REMOVE, effects

from ddp_ladder.common.findings import Finding, UsageKind
from ddp_ladder.common.formats import count, milliseconds, significant
from ddp_ladder.common.messages import leave_out
from ddp_ladder.gates.points import Key, ScalePoint, StepFacts, other_processes
from ddp_ladder.nodes.critical_rank import LEAST_TIMED_STEPS, MORE_WORKERS, Exchange, is_beside_passes
from ddp_ladder.preflight.result import PreflightResult, result_of
from ddp_ladder.settings.terms import Transport

Cause = Literal["data", "communication", "imbalance", "computation", "rest", "others"]

WORTH_NAMING = 0.1  # part of the lost time: smaller losses are not named
REST_WORTH_NAMING = 0.25  # of the rest, where the errors of all other parts end up
LEAST_SHOWN = 0.005  # of the lost time: less does not show in the figures of a list
LEAST_SAVED = 0.001  # of a step: less is a rounding error of a loss that another change has
MOST_CHANGES = 3

_PARTS: dict[Cause, Key] = {
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
EXPLAINED_BY: Mapping[Cause, tuple[UsageKind, ...]] = {
    "data": ("CPUs full",),
    "communication": ("network full",),
    "imbalance": ("too many threads", "slow node"),
    "computation": ("too many threads", "slow node", "GPU throttled"),
    "rest": ("too many threads",),
}
"""The findings on usage that explain each cause, the most telling first."""
FULL = 0.55  # of the GPU's memory: a batch of twice the size may not fit
MOST_WORKERS = 64  # per rank: a loader that needs more is too slow for workers to help


def measured_preflight(results: Path, scale: object) -> PreflightResult | None:
    """Return the preflight of a scale; None if there is none that can be believed."""
    try:
        return result_of(results, scale)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Change:
    """What to change."""

    what: str
    gain: float | None = None  # more samples/s, a fraction; None: no figure says it
    is_limit: bool = True  # it is not more than that

    @property
    def gain_in_words(self) -> str:
        if self.gain is None:
            return "not estimated"
        percents = f"{100 * self.gain:.2g}" if self.gain < 0.995 else f"{100 * self.gain:,.0f}"
        return f"{'at most' if self.is_limit else 'about'} {percents} % more samples/s"

    @property
    def in_words(self) -> str:
        return self.what if self.gain is None else f"{self.what} ({self.gain_in_words})"


@dataclass(frozen=True)
class Loss:
    """What one cause costs."""

    cause: Cause
    name: str  # the cause in words
    lost_s: float  # of each step; below 0: this part is shorter than the baseline's
    efficiency: float  # the same as a part of 1, the ideal
    evidence: str = ""  # the figures that show it

    @property
    def in_words(self) -> str:
        """Return ``15 ms exposed communication (12 points of efficiency)``."""
        return f"{milliseconds(self.lost_s)} ms {self.name} ({significant(100 * self.efficiency)} points of efficiency)"


@dataclass(frozen=True)
class Attribution:
    """Where the efficiency of a scale went, and what would help most."""

    step_s: float
    ideal_s: float
    losses: tuple[Loss, ...]  # the largest first
    unknown: str  # what the split lacks, in words
    changes: tuple[Change, ...] = ()  # the best first

    @property
    def lost_s(self) -> float:
        return self.step_s - self.ideal_s

    @property
    def named(self) -> tuple[Loss, ...]:
        shares = {loss: REST_WORTH_NAMING if loss.cause == "rest" else WORTH_NAMING for loss in self.losses}
        return tuple(loss for loss, share in shares.items() if loss.lost_s > 0 and loss.lost_s >= share * self.lost_s)

    @property
    def listed(self) -> tuple[Loss, ...]:
        """Return the named losses and the remainder, which add up to the time that is lost."""
        others_s = self.lost_s - sum(loss.lost_s for loss in self.named)
        if abs(others_s) < LEAST_SHOWN * self.lost_s:
            return self.named
        return (*self.named, Loss("others", NAMES["others"], others_s, others_s / self.step_s))

    @property
    def in_words(self) -> str:
        """Return ``of a step's 50 ms, 20 ms are lost: 15 ms exposed communication, 5 ms data wait``."""
        parts = ", ".join(f"{milliseconds(loss.lost_s)} ms {loss.name}" for loss in self.listed)
        return f"of a step's {milliseconds(self.step_s)} ms, {milliseconds(self.lost_s)} ms are lost: {parts}"

    @property
    def lost_in_words(self) -> str:
        """Return ``20 ms of each step are lost, 40 points of efficiency``."""
        points = significant(100 * self.lost_s / self.step_s)
        return f"{milliseconds(self.lost_s)} ms of each step are lost, {points} points of efficiency"

    @property
    def next(self) -> str:
        """Return what to do about the largest loss, and what else would help most."""
        return "; or ".join(change.in_words for change in self.changes[:2])


def baseline_of(point: ScalePoint, points: Sequence[ScalePoint]) -> ScalePoint | None:
    """Return the point that the efficiency relates to; None if it is not in the plan."""
    key = (point.variant, point.mode, point.baseline)
    return next((other for other in points if (other.variant, other.mode, str(other.scale)) == key), None)


def attribution(
    point: ScalePoint,
    baseline: ScalePoint | None,
    preflight: PreflightResult | None = None,
    transport: Transport = "any",
) -> Attribution | None:
    """Return where the efficiency of a scale went; None if nothing is lost, or it is not known.

    preflight: that of the scale. transport: network.transport of its site.
    """
    if baseline is None or not point["step_time_s"] or not baseline["step_time_s"] or point["efficiency"] is None:
        return None
    if point["efficiency"] >= 1 or point.scale == baseline.scale:
        return None
    ideal_s = point["efficiency"] * point["step_time_s"]
    losses = sorted(_losses(point, baseline, ideal_s, point["step_time_s"]), key=lambda loss: -loss.lost_s)
    shown = tuple(replace(loss, evidence=_evidence(loss.cause, point, baseline, preflight)) for loss in losses)
    lost = Attribution(point["step_time_s"], ideal_s, shown, _unknown(point, baseline))
    is_timed = point["exposed_comm_s"] is not None and baseline["exposed_comm_s"] is not None
    every = [change for loss in _to_save(lost, point) for change in _changes_for(loss, is_timed, point, preflight)]
    unique = [*{change.what: change for change in reversed(every)}.values()][::-1]
    changes = sorted(unique, key=lambda change: -(change.gain or 0.0))  # of equal ones, those for the largest loss
    facts = point.step or StepFacts()
    if slow := effects(facts.slow_settings, facts.on_gpu, transport):
        changes.insert(0, Change(f"{REMOVE}: {', '.join(slow)}"))
    if disturbed := other_processes(point, baseline):
        changes.insert(0, Change(f"{disturbed.next} ({disturbed.in_words})"))
    return replace(lost, changes=tuple(changes[:MOST_CHANGES]))


def _to_save(lost: Attribution, point: ScalePoint) -> Iterator[Loss]:
    """Yield what the changes for each named loss may save: no more than is lost, and no wait for data twice."""
    of_data = point.step.imbalance_data_s or 0.0 if point.step else 0.0
    for loss in lost.named:
        is_told = loss.cause == "imbalance" and any(other.cause == "data" for other in lost.named)
        yield replace(loss, lost_s=min(loss.lost_s - (of_data if is_told else 0.0), lost.lost_s))


def _losses(point: ScalePoint, baseline: ScalePoint, ideal_s: float, step_s: float) -> Iterator[Loss]:
    """Yield the losses; a part that one of both sides does not know is in the rest."""
    share, lost_s = ideal_s / (baseline["step_time_s"] or math.inf), dict[Cause, float]()
    for cause, part in _PARTS.items():
        part_s, base_s = point[part], baseline[part]
        if part_s is not None and base_s is not None:
            lost_s[cause] = part_s - share * base_s
    is_timed = "communication" in lost_s
    rest: Cause = "rest" if is_timed and "computation" in lost_s else "computation"
    lost_s[rest] = lost_s.get(rest, 0.0) + step_s - ideal_s - sum(lost_s.values())
    names = {**NAMES, "computation": f"{NAMES['computation']} {baseline.scale}" if is_timed else NOT_TOLD_APART}
    for cause, value_s in _by_owner(lost_s, point.step or StepFacts()).items():
        yield Loss(cause, names[cause], value_s, value_s / step_s)


def _by_owner(lost_s: Mapping[Cause, float], facts: StepFacts) -> Mapping[Cause, float]:
    """Return the losses without the imbalance that the baseline has, too.

    What the slowest rank does beyond the typical one, and the baseline's rank does as well, is imbalance here, and a
    gain of the typical rank in the part that it is of there.
    """
    imbalance_s, data_s, compute_s = lost_s.get("imbalance"), facts.imbalance_data_s, facts.imbalance_compute_s
    if imbalance_s is None or data_s is None or compute_s is None:
        return lost_s
    owned, parts_s = dict(lost_s), {"data": data_s, "computation": compute_s, "rest": imbalance_s - data_s - compute_s}
    for cause, part_s in parts_s.items():
        if cause in owned:
            both_s = max(0.0, min(part_s, -owned[cause], owned["imbalance"]))
            owned[cause] += both_s
            owned["imbalance"] -= both_s
    return owned


def _unknown(point: ScalePoint, baseline: ScalePoint) -> str:
    """Return what the split lacks, and why; empty if it lacks nothing."""
    for side in (point, baseline):
        if side["exposed_comm_s"] is None or side["compute_s"] is None:
            why = f"DDP reported no times at {side.scale}"
            if side.step and side.step.timed_steps:
                steps = count(side.step.timed_steps, "step")
                why = f"DDP timed {steps} at {side.scale}, and {LEAST_TIMED_STEPS} are needed"
            communication = "communication, " if side["exposed_comm_s"] is None else ""
            return f"{why}: {communication}computation and the rest are not told apart"
    return ""


def _changes_for(loss: Loss, is_timed: bool, point: ScalePoint, preflight: PreflightResult | None) -> Iterator[Change]:
    """Yield the changes that may make a loss smaller, the likeliest first.

    is_timed: whether communication and computation are told apart, here and at the baseline.
    """
    cause, facts = loss.cause, point.step or StepFacts()
    untold = cause == "computation" and not is_timed
    if finding := _finding_that_explains(cause, untold, point):
        yield _saving(f"{finding.next} ({finding.in_words})", 0.0 if finding.uncertain else loss.lost_s, point)
        if cause != "communication" and not untold:
            return  # what else may take these milliseconds is not the cause
    if untold:
        yield Change(
            "let DDP time enough steps, with DistributedDataParallel and a larger measure.max_steps, to tell "
            f"communication from computation; raise {_batch_key(point)}, which makes communication a smaller part"
        )
    elif cause == "data":
        yield _for_data(point, facts)
    elif cause == "communication":
        yield from _for_communication(point, facts, preflight)
    elif cause == "imbalance":
        yield _saving(_for_imbalance(point, facts), loss.lost_s, point, is_limit=False)
    elif cause == "computation" and point.simulated:
        yield Change("measure on real nodes: these share the cores of one machine")
    elif cause == "computation":
        what = (
            f"see whether the ranks share what a rank of {point.baseline} had alone: raise node.cpus for more cores "
            f"per rank (OMP_NUM_THREADS follows it), and look at the clocks of the {'GPUs' if point.gpu else 'CPUs'}"
        )
        yield _saving(what, loss.lost_s, point)
    else:
        what = (
            "look at what the script does in each step outside of forward and backward pass: optimizer, "
            f"{'copies to the GPU, ' if point.gpu else ''}logging, .item()"
        )
        yield _saving(what, loss.lost_s, point)


def _finding_that_explains(cause: Cause, untold: bool, point: ScalePoint) -> Finding | None:
    kinds = (*EXPLAINED_BY.get(cause, ()), *(("network full",) if untold else ()))
    varies = cause == "imbalance" and not (point.step and point.step.imbalance_kind == "persistent")
    if varies or (cause == "computation" and point.simulated and not untold):
        kinds = kinds[:1]  # no node is the cause
    return next((finding for kind in kinds for finding in point.findings if finding.kind == kind), None)


def _saving(what: str, saved_s: float, point: ScalePoint, is_limit: bool = True) -> Change:
    step_s = point["step_time_s"] or 0.0
    gain = saved_s / (step_s - saved_s) if LEAST_SAVED * step_s < saved_s < step_s else None
    return Change(what, gain, is_limit)


def _for_data(point: ScalePoint, facts: StepFacts) -> Change:
    wait_s, step_s = point["data_wait_s"] or 0.0, point["step_time_s"] or 0.0
    if point.against_waits != MORE_WORKERS:
        return _saving(point.against_waits, (facts.begin_wait_fraction or 0.0) * wait_s, point)
    workers, more = facts.workers, "more loader workers"
    # Workers that cannot keep up deliver a batch in each step; without workers, the wait is the time of loading one.
    if workers is not None and 0 < wait_s < step_s:
        needed = math.ceil((workers * step_s if workers else wait_s) / (step_s - wait_s))
        if needed <= MOST_WORKERS:
            more = f"{needed} loader workers per rank instead of {workers}"
    what = f"give the script {more} (workload.args), as node.cpus allows, or put workload.data_dir on faster storage"
    return _saving(what, wait_s, point, is_limit=False)


def _for_communication(point: ScalePoint, facts: StepFacts, preflight: PreflightResult | None) -> Iterator[Change]:
    exposed_s, exchanges = point["exposed_comm_s"] or 0.0, facts.exchanges or 1
    of_gradients_s = max(0.0, exposed_s - sum(other.seconds or 0.0 for other in facts.others))
    for other in facts.others:
        # Of unknown seconds, what is not in each step would be named whatever it costs.
        if other.is_usual if other.seconds is None else other.seconds >= WORTH_NAMING * exposed_s:
            yield _saving(_without(other), other.seconds or 0.0, point)
    if exchanges > 1:
        what = (
            f"send gradients once in a step instead of {exchanges} times: run all backward passes of a step but the "
            "last inside `with model.no_sync():`, their forward passes too"
        )
        yield _saving(what, of_gradients_s * (1 - 1 / exchanges), point, is_limit=False)
    if facts.memory_fraction is None or facts.memory_fraction < FULL:
        what = f"raise {_batch_key(point)}: with twice the batch, each exchange of gradients serves twice the samples"
        yield _saving(what, exposed_s / 2, point, is_limit=False)
    if facts.parameter_dtype == "float32" and not facts.comm_hook and facts.comm_s is not None:
        hook = "bf16_compress_hook" if facts.backend == "nccl" else "fp16_compress_hook"
        what = f"send gradients in two bytes instead of four: model.register_comm_hook(None, {hook})"
        yield _saving(what, min(of_gradients_s, facts.comm_s / 2), point)
    # A faster network would shorten the others, too, but what need not be sent comes first.
    what = "see whether network.interface is the fastest one (`snakemake preflight` measures it)"
    if preflight and any("socket" in name.lower() for name in preflight.transport):
        what = "let NCCL use the fast network instead of sockets (network.interface; `snakemake preflight` checks)"
    yield _saving(what, of_gradients_s, point)


def _without(other: Exchange) -> str:
    """Return how a step could do without these collectives."""
    calls = f"{other.calls:.3g} {'call' if round(other.calls, 2) == 1 else 'calls'}"
    when = f"in each step ({calls}" if other.is_usual else f"in some steps ({calls} a step"
    if other.name == BUFFERS:  # a step that accumulates has several forward passes
        return (
            f"{_mb(other.bytes / other.calls)} of buffers are sent before each forward pass: "
            "DistributedDataParallel(broadcast_buffers=False), if no BatchNorm needs them"
        )
    if other.name == SYNC_BATCH_NORM:
        return f"SyncBatchNorm exchanges its statistics in {calls} a step: use BatchNorm, or larger layers between them"
    if other.name in ("barrier", "monitored_barrier"):
        return f"all ranks wait at a barrier {when}): remove it from the loop"
    if "object" in other.name:
        return f"{other.name} pickles objects in {calls} a step: send tensors, or send them less often"
    what = f"{other.name} is called {when}, {_mb(other.bytes)})"
    return f"{what}: make one call of several, call it less often, or with async_op=True"


def _batch_key(point: ScalePoint) -> str:
    accumulates = point.global_batch > point.batch_per_gpu * point.world_size
    return "workload.global_batch" if accumulates else "workload.batch_per_gpu"


def _for_imbalance(point: ScalePoint, facts: StepFacts) -> str:
    """Return what to do about ranks that work longer than others, by the part of the step that is longer."""
    compute_s, data_s = facts.imbalance_compute_s or 0.0, facts.imbalance_data_s or 0.0
    half_s, who = (point["imbalance_s"] or 0.0) / 2, facts.slowest
    if who is None:
        if data_s > half_s:
            return "make samples equally cheap to load, or load them ahead (loader workers, in workload.args)"
        if facts.imbalance_compute_s is not None and compute_s + data_s < half_s:
            return (
                "look at what interrupts the ranks between their passes, each at another step: Python's garbage "
                "collection (gc.freeze() after the set-up), logging, checkpoints; let all ranks do it in the same step"
            )
        return (
            "even out the ranks' work, which varies from step to step: draw lengths or shapes together on all ranks, "
            "for example in buckets of like length; if all samples are alike, look at what interrupts a rank: Python's "
            "garbage collection (gc.freeze() after the set-up), other processes"
        )
    if facts.imbalance_kind == "occasional":
        return f"look at what only {who} does in some steps (checkpoints, logging), and do it less often"
    leave = f"{leave_out(facts.slow_node)}, or " if facts.slow_node and not point.simulated else ""
    if data_s > half_s:
        return f"{leave}see why the data come later on {who}: its loader, its storage, its CPUs"
    if is_beside_passes(point["imbalance_s"] or 0.0, facts.imbalance_data_s, facts.imbalance_compute_s):
        return (
            f"look at what only {who} does in each step outside of its data, forward and backward pass "
            "(logging, metrics, saving), and do it less often"
        )
    return f"{leave}give every rank the same work: {who} is the slowest"


def _evidence(cause: Cause, point: ScalePoint, baseline: ScalePoint, preflight: PreflightResult | None) -> str:
    """Return what the runs' figures and the preflight say about a cause; empty if they say nothing."""
    if cause == "data":
        here, there = (_ms(side["data_wait_s"]) for side in (point, baseline))
        return f"data wait {here} in each step, {there} at {baseline.scale}"
    if cause == "communication":
        return _of_communication(point.step or StepFacts(), preflight)
    if cause == "imbalance":
        return _of_imbalance(point)
    own_s, base_s = point["compute_s"], baseline["compute_s"]
    if cause == "computation" and own_s is not None and base_s is not None:
        share = point.global_batch / point.world_size * baseline.world_size / baseline.global_batch
        return (
            f"forward and backward pass take {_ms(own_s)}, and {_ms(share * base_s)} for as many "
            f"samples at {baseline.scale}"
        )
    return ""


def _of_communication(facts: StepFacts, preflight: PreflightResult | None) -> str:
    others = [f"{other.name} {_ms(other.seconds)} ({_mb(other.bytes)})" for other in facts.others if other.seconds]
    of_script = f"other collectives take {', '.join(others)} of a step" if others else ""
    if facts.comm_s is None or facts.overlap_s is None:
        return of_script
    hidden = _ms(facts.overlap_s)
    words = f"DDP's exchange of gradients takes {_ms(facts.comm_s)}, of which the backward pass hides {hidden}"
    if facts.gradient_bytes and facts.buckets and preflight and preflight.alpha_s is not None:
        latency_s = preflight.alpha_s * facts.buckets
        all_s = latency_s + (preflight.beta_s_per_byte or 0.0) * facts.gradient_bytes
        words += (
            f"; by the preflight's figures, {_mb(facts.gradient_bytes)} in "
            f"{count(facts.buckets, 'all-reduce')} take {_ms(all_s)}, of which {_ms(latency_s)} is latency"
        )
    return f"{words}; {of_script}" if of_script else words


def _of_imbalance(point: ScalePoint) -> str:
    facts, imbalance_s, step_s = point.step or StepFacts(), point["imbalance_s"], point["step_time_s"]
    if facts.imbalance_kind is None or imbalance_s is None or not step_s:
        return ""
    own_s = facts.own_max_s or step_s
    who = facts.slowest or "the slowest rank of each step"
    words = f"{facts.imbalance_kind}: {who} works {_ms(own_s)}, the typical rank {_ms(own_s - imbalance_s)}"
    parts = {
        "a longer wait for data": facts.imbalance_data_s,
        "longer forward and backward passes": facts.imbalance_compute_s,
    }
    named = [f"{_ms(part)} {name}" for name, part in parts.items() if part and part > imbalance_s / 10]
    return f"{words}; of it are {', '.join(named)}" if named else words


def _ms(value_s: float | None) -> str:
    return f"{milliseconds(value_s)} ms"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.3g} MB"
