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

from ddp_ladder.common.formats import count, milliseconds, significant
from ddp_ladder.common.messages import leave_out
from ddp_ladder.gates.points import ScaleFinding, ScalePoint, StepFacts, other_processes
from ddp_ladder.nodes.critical_rank import LEAST_TIMED_STEPS, Exchange
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
    """What to change. gain: more samples/s, a fraction; None: no figure says it. is_limit: it is not more than that."""

    what: str
    gain: float | None = None
    is_limit: bool = True

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

    efficiency: the same as a part of 1 (ideal). name: the cause in words. evidence: the figures that show it.
    """

    cause: Cause
    name: str
    lost_s: float
    efficiency: float
    evidence: str = ""

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
    unknown: str

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


def attribution(
    point: ScalePoint, baseline: ScalePoint | None, preflight: PreflightResult | None = None
) -> Attribution | None:
    """Return where the efficiency of a scale went; None if nothing is lost, or it is not known.

    preflight: that of the scale.
    """
    if baseline is None or not point.step_time_s or not baseline.step_time_s or point.efficiency is None:
        return None
    if point.efficiency >= 1 or point.scale == baseline.scale:
        return None
    ideal_s = point.efficiency * point.step_time_s
    found = sorted(_losses(point, baseline, ideal_s), key=lambda loss: -loss.lost_s)
    losses = tuple(replace(loss, evidence=_evidence(loss.cause, point, baseline, preflight)) for loss in found)
    worth = _worth_naming(losses, point.step_time_s - ideal_s)
    untimed = next((each for each in (point, baseline) if each.exposed_comm_s is None), None)
    every = [change for loss in worth for change in _changes_for(loss, untimed, point, preflight)]
    unique = [*{change.what: change for change in reversed(every)}.values()][::-1]
    changes = sorted(unique, key=lambda change: -(change.gain or 0.0))  # of equal ones, those for the largest loss
    if disturbed := other_processes(point, baseline):
        changes.insert(0, Change(f"{disturbed.next} ({disturbed.in_words})"))
    return Attribution(point.step_time_s, ideal_s, losses, tuple(changes[:MOST_CHANGES]), _unknown(point, baseline))


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


def _unknown(point: ScalePoint, baseline: ScalePoint) -> str:
    """Return what the split lacks, and why; empty if it lacks nothing."""
    for each in (point, baseline):
        if each.exposed_comm_s is None or each.compute_s is None:
            timed = each.step.timed_steps if each.step else None
            why = f"DDP reported no times at {each.scale}"
            if timed:
                why = f"DDP timed {count(timed, 'step')} at {each.scale}, and {LEAST_TIMED_STEPS} are needed"
            communication = "communication, " if each.exposed_comm_s is None else ""
            return f"{why}: {communication}computation and the rest are not told apart"
    if point.data_wait_s is None or baseline.data_wait_s is None:
        return "the wait for data was not measured"
    return ""


def _changes_for(
    loss: Loss, untimed: ScalePoint | None, point: ScalePoint, preflight: PreflightResult | None
) -> Iterator[Change]:
    """Yield the changes that may make a loss smaller, the likeliest first.

    untimed: the scale where communication and computation are not told apart.
    """
    cause, facts = loss.cause, point.step or StepFacts()
    untold = cause == "computation" and untimed is not None
    if found := _finding_that_explains(cause, untold, point):
        yield _saving(f"{found.next} ({found.in_words})", loss.lost_s, point)
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
        yield _saving(_for_imbalance(facts), loss.lost_s, point, is_limit=False)
    elif cause == "computation" and point.simulated:
        yield Change("measure on real nodes: these share the cores of one machine")
    elif cause == "computation":
        what = (
            f"see whether the ranks share what {point.baseline_in_words} had alone: raise node.cpus for more cores per "
            "rank (OMP_NUM_THREADS follows it), and look at the GPUs' clocks under load"
        )
        yield _saving(what, loss.lost_s, point)
    else:
        what = (
            "look at what the script does in each step outside of forward and backward pass: optimizer, copies to the "
            "GPU, logging, .item()"
        )
        yield _saving(what, loss.lost_s, point)


def _finding_that_explains(cause: Cause, untold: bool, point: ScalePoint) -> ScaleFinding | None:
    """Return the finding on the runs' usage that explains a loss best."""
    if cause == "computation" and point.simulated and not untold:
        return None
    if cause == "imbalance" and not (point.step and point.step.imbalance_kind == "persistent"):
        return None
    kinds = (*EXPLAINED_BY.get(cause, ()), *(("network full",) if untold else ()))
    return next((each for kind in kinds for each in point.findings if each.kind == kind), None)


def _saving(what: str, saved_s: float, point: ScalePoint, is_limit: bool = True) -> Change:
    step_s = point.step_time_s or 0.0
    gain = saved_s / (step_s - saved_s) if 0 < saved_s < step_s else None
    return Change(what, gain, is_limit)


def _for_data(point: ScalePoint, facts: StepFacts) -> Change:
    wait_s, step_s = point.data_wait_s or 0.0, point.step_time_s or 0.0
    workers, more = facts.workers, "more loader workers"
    # Workers that cannot keep up deliver a batch in each step; without workers, the wait is the time of loading one.
    if workers is not None and 0 < wait_s < step_s:
        needed = math.ceil((workers * step_s if workers else wait_s) / (step_s - wait_s))
        if needed <= MOST_WORKERS:
            more = f"{needed} loader workers per rank instead of {workers}"
    what = f"give the script {more} (workload.args), as node.cpus allows, or put workload.data_dir on faster storage"
    return _saving(what, wait_s, point, is_limit=False)


def _for_communication(point: ScalePoint, facts: StepFacts, preflight: PreflightResult | None) -> Iterator[Change]:
    exposed_s, exchanges = point.exposed_comm_s or 0.0, facts.exchanges or 1
    of_gradients_s = max(0.0, exposed_s - sum(each.seconds or 0.0 for each in facts.others))
    for each in facts.others:
        # Of unknown seconds, what is not in each step would be named whatever it costs.
        is_worth = each.is_usual if each.seconds is None else each.seconds >= WORTH_NAMING * exposed_s
        if is_worth:
            yield _saving(_without(each), each.seconds or 0.0, point)
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


def _without(each: Exchange) -> str:
    """Return how a step could do without these collectives."""
    calls, size = f"{each.calls:.3g} {'call' if round(each.calls, 2) == 1 else 'calls'}", f"{each.bytes / 1e6:.3g} MB"
    when = f"in each step ({calls}" if each.is_usual else f"in some steps ({calls} a step"
    if each.name == BUFFERS:  # a step that accumulates has several forward passes
        return (
            f"{each.bytes / each.calls / 1e6:.3g} MB of buffers are sent before each forward pass: "
            "DistributedDataParallel(broadcast_buffers=False), if no BatchNorm needs them"
        )
    if each.name == SYNC_BATCH_NORM:
        return f"SyncBatchNorm exchanges its statistics in {calls} a step: use BatchNorm, or larger layers between them"
    if each.name in ("barrier", "monitored_barrier"):
        return f"all ranks wait at a barrier {when}): remove it from the loop"
    if "object" in each.name:
        return f"{each.name} pickles objects in {calls} a step: send tensors, or send them less often"
    return f"{each.name} is called {when}, {size}): make one call of several, call it less often, or with async_op=True"


def _batch_key(point: ScalePoint) -> str:
    accumulates = point.global_batch > point.batch_per_gpu * point.world_size
    return "workload.global_batch" if accumulates else "workload.batch_per_gpu"


def _for_imbalance(facts: StepFacts) -> str:
    if facts.imbalance_kind == "persistent":
        return f"{leave_out()}, or give every rank the same work: {facts.slowest} is the slowest"
    if facts.imbalance_kind == "occasional":
        return f"look at what only {facts.slowest} does in some steps (checkpoints, logging), and do it less often"
    return (
        "even out the ranks' work, which varies from step to step: draw lengths or shapes together on all ranks, for "
        "example in buckets of like length"
    )


def _evidence(cause: Cause, point: ScalePoint, baseline: ScalePoint, preflight: PreflightResult | None) -> str:
    """Return what the runs' figures and the preflight say about a cause; empty if they say nothing."""
    if cause == "data":
        return f"data wait {_ms(point.data_wait_s)} in each step, {_ms(baseline.data_wait_s)} at {baseline.scale}"
    if cause == "communication":
        return _of_communication(point.step or StepFacts(), preflight)
    if cause == "imbalance":
        return _of_imbalance(point)
    if cause == "computation" and point.compute_s is not None and baseline.compute_s is not None:
        share = point.global_batch / point.world_size * baseline.world_size / baseline.global_batch
        return (
            f"forward and backward pass take {_ms(point.compute_s)}, and {_ms(share * baseline.compute_s)} for as many "
            f"samples at {baseline.scale}"
        )
    return ""


def _of_communication(facts: StepFacts, preflight: PreflightResult | None) -> str:
    others = [f"{each.name} {_ms(each.seconds)} ({each.bytes / 1e6:.3g} MB)" for each in facts.others if each.seconds]
    of_script = f"other collectives take {', '.join(others)} of a step" if others else ""
    if facts.comm_s is None or facts.overlap_s is None:
        return of_script
    words = f"DDP's exchange of gradients takes {_ms(facts.comm_s)}, of which the backward pass hides "
    words += _ms(facts.overlap_s)
    if facts.gradient_bytes and facts.buckets and preflight and preflight.alpha_s is not None:
        latency_s = preflight.alpha_s * facts.buckets
        all_s = latency_s + (preflight.beta_s_per_byte or 0.0) * facts.gradient_bytes
        words += (
            f"; by the preflight's figures, {facts.gradient_bytes / 1e6:.3g} MB in "
            f"{count(facts.buckets, 'all-reduce')} take {_ms(all_s)}, of which {_ms(latency_s)} is latency"
        )
    return f"{words}; {of_script}" if of_script else words


def _of_imbalance(point: ScalePoint) -> str:
    facts = point.step or StepFacts()
    if facts.imbalance_kind is None or point.imbalance_s is None or not point.step_time_s:
        return ""
    own_s = facts.own_max_s or point.step_time_s
    who = facts.slowest or "the slowest rank of each step"
    words = f"{facts.imbalance_kind}: {who} works {_ms(own_s)}, the typical rank {_ms(own_s - point.imbalance_s)}"
    parts = {
        "a longer wait for data": facts.imbalance_data_s,
        "longer forward and backward passes": facts.imbalance_compute_s,
    }
    named = [f"{_ms(part)} {name}" for name, part in parts.items() if part and part > point.imbalance_s / 10]
    return f"{words}; of it are {', '.join(named)}" if named else words


def _ms(value_s: float | None) -> str:
    return f"{milliseconds(value_s)} ms"
