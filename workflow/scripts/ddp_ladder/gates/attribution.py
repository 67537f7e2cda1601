"""Where a scale's efficiency went: the parts of its step against those of the baseline's. Pure.

The ideal step takes the baseline's time for the same samples per rank, step time x efficiency. Its parts are the
baseline's, in the same proportion. What a part is longer than that is lost; the losses add up to step - ideal exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_ladder.common.formats import count, milliseconds, significant
from ddp_ladder.gates.across_scales import other_processes
from ddp_ladder.gates.changes import Cause, Change, changes_for
from ddp_ladder.gates.evidence import evidence
from ddp_ladder.gates.link import Link
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.usage.critical_rank import LEAST_TIMED_STEPS

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
    losses = tuple(replace(loss, evidence=evidence(loss.cause, point, baseline, link)) for loss in found)
    worth = _worth_naming(losses, point.step_time_s - ideal_s)
    unknown = _unknown(point, baseline)
    untimed = next((each for each in (point, baseline) if each.exposed_comm_s is None), None)
    every = [change for loss in worth for change in changes_for(loss.cause, loss.lost_s, untimed, point, link)]
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
