"""Plausibility of a run's times and steps: impossible ones reveal files that were mixed up, copied or edited."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.agreement import ANOTHER_RUN, NAMED, who
from ddp_ladder.records.diagnosis import Diagnosis
from ddp_ladder.records.raw_files import RankFiles, RawRun, Steps
from ddp_ladder.records.raw_models import AgentEnd, RankEnd, RunEnd
from ddp_ladder.records.record import Check, Failure

CLOCKS_APART_S = 60.0  # between two hosts: more than NTP leaves, less than Slurm's credentials tolerate
READINGS_APART_S = 1.0  # between readings of one host's clock, which NTP may adjust meanwhile
DRIFT = 1e-3  # between the wall clock and the clocks that time steps, the GPU's included
STARTUP_PARTS = ("spawn", "import_torch", "process_group")

Rows = NDArray[np.complex128]

SAME_ROWS = {"cpu": 0.05, "cuda": 0.9}
"""Largest fraction of equal rows of two ranks. A CPU's times differ in nanoseconds; a GPU's clock is coarser."""
FEW_TIMES = 32  # a CPU's clock gives more distinct times than that
MOST_OF_ONE = 0.95  # largest fraction of rows with the same time; even coarse clocks give several times
SAMPLED = 200  # rows of each rank that are compared with those of all others
CHANCE_BITS = 40  # a repetition counts if its probability by chance is below 2^-40
LEAST_BITS = 2.0  # per row: below it, times are too coarse to distinguish repetition from chance
USUAL_BITS = 12.0  # per row, if hardly two are equal and there are too few rows to estimate it


def diagnoses(spec: RunSpec, raw: RawRun) -> tuple[Diagnosis, ...]:
    """Compare times with those of the job, then steps with each other."""
    seen = bool(raw.ranks)
    return (
        _diagnosis("times", seen, "within those of the job", "times that cannot be", [*_times(raw)]),
        _diagnosis("own steps", seen, "each step once", "steps that are there twice", [*_copies(spec, raw)]),
    )


def _diagnosis(name: str, seen: bool, good: str, verdict: str, wrong: Sequence[str]) -> Diagnosis:
    words = "; ".join(wrong[:NAMED]) + (f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
    clocks = " (compare the clocks of the nodes where it happens again)" if name == "times" else ""
    return Diagnosis(
        Check(
            name=name,
            ok=seen and not wrong,
            measured=words or (good if seen else "nothing"),
            wanted=f"{good}, on every rank and node",
        ),
        Failure(verdict=verdict, why=words, next=ANOTHER_RUN + clocks),
    )


# Times


def _times(raw: RawRun) -> Iterator[str]:
    if raw.ended is None:
        return
    for agent, end in raw.agents.items():
        name = f"{agent} ({end.host})"
        if end.ended_at_s < end.launched_at_s - READINGS_APART_S:
            yield f"{name} ended {end.launched_at_s - end.ended_at_s:.1f} s before it was started"
        yield from _outside(name, "was started", end.launched_at_s, end.host, raw.ended)
        yield from _outside(name, "ended", end.ended_at_s, end.host, raw.ended)
    for _, rank in sorted(raw.ranks.items()):
        yield from _of_rank(rank, raw.ended, list(raw.agents.values()))


def _outside(name: str, what: str, at_s: float, host: str, ended: RunEnd) -> Iterator[str]:
    slack_s = READINGS_APART_S if host == ended.host else CLOCKS_APART_S
    if at_s < ended.started_at_s - slack_s:
        yield f"{name} {what} {ended.started_at_s - at_s:.1f} s before the run began (ended.json)"
    if at_s > ended.ended_at_s + slack_s:
        yield f"{name} {what} {at_s - ended.ended_at_s:.1f} s after the run had ended (ended.json)"


def _of_rank(rank: RankFiles, ended: RunEnd, agents: Sequence[AgentEnd]) -> Iterator[str]:
    end, name, steps = rank.end, who(rank.end), rank.steps
    here = [agent for agent in agents if agent.host == end.host]  # empty for a container with its own host name
    ended_at_s = end.ended_at_s
    yield from _outside(name, "ended", ended_at_s, end.host, ended)
    began_s = ended.started_at_s - CLOCKS_APART_S
    if here:
        began_s = min(agent.launched_at_s for agent in here)
        last_s = max(agent.ended_at_s for agent in here)
        if not began_s - READINGS_APART_S <= ended_at_s <= last_s + READINGS_APART_S:
            yield f"{name} ended at another time than its node's launcher ran"
            return
    yield from _too_long(name, _at_most(ended_at_s - began_s), end, steps)


def _too_long(name: str, most_s: float, end: RankEnd, steps: Steps) -> Iterator[str]:
    """Yield what took longer than the rank ran; start-up and training follow each other and are added."""
    startup, training_s = end.startup_s, end.training_s or 0.0
    total_s = startup.get("total") or 0.0
    lengths = {
        "start-up and training": total_s + training_s,
        f"{len(steps)} steps": float(steps.step_time_s.sum()),
        "waits for data": float(steps.data_wait_s.sum()),
        "communication of one step": (end.ddp and end.ddp.exposed_comm_s) or 0.0,
    }
    for what, seconds in lengths.items():
        if seconds > most_s:
            yield f"{name}: {what} of {seconds:.1f} s, though it ran for at most {most_s:.1f} s"
            return
    if startup.get("total") is not None:
        for part in STARTUP_PARTS:
            if (startup.get(part) or 0.0) > _at_most(total_s):
                yield f"{name}: {part} of {startup[part]:.1f} s in a start-up of {total_s:.1f} s"
    # On a GPU the host finishes before the device: its training_s does not limit the device's times.
    after_first_s = float(steps.step_time_s[1:].sum())
    if training_s and end.device.kind == "cpu" and after_first_s > _at_most(training_s):
        yield f"{name}: steps of {after_first_s:.1f} s in a training of {training_s:.1f} s"


def _at_most(seconds: float) -> float:
    return seconds * (1 + DRIFT) + READINGS_APART_S


# Repeated steps


def _copies(spec: RunSpec, raw: RawRun) -> Iterator[str]:
    """Yield repeated steps. Times that a program reports itself may be rounded: they are not compared."""
    timed = [rank for _, rank in sorted(raw.ranks.items()) if rank.end.source != "metrics"]
    timed = [rank for rank in timed if len(rank.steps) >= spec.min_steps]
    rows = [_rows(rank.steps) for rank in timed]
    for rank, own in zip(timed, rows, strict=True):
        if wrong := repeated(own, rank.end.device.kind):
            yield f"{who(rank.end)}: {wrong}"
    if len(timed) > 1:
        yield from _shared([rank.end for rank in timed], rows)


def _rows(steps: Steps) -> Rows:
    """Return time and wait of each step as one complex value, so that rows can be compared."""
    return steps.step_time_s + 1j * np.where(np.isnan(steps.data_wait_s), 0.0, steps.data_wait_s)  # nan: not known


def _shared(ends: Sequence[RankEnd], rows: Sequence[Rows]) -> Iterator[str]:
    length = min(len(own) for own in rows)
    sampled = np.stack([own[_sampled_places(length)] for own in rows])
    most = SAME_ROWS.get(ends[0].device.kind, 1.0)
    for first in range(len(ends) - 1):
        alike = np.count_nonzero(sampled[first + 1 :] == sampled[first], axis=1) / sampled.shape[1]
        for other in np.flatnonzero(alike > most).tolist():
            pair = f"{who(ends[first])} and {who(ends[first + 1 + other])}"
            yield f"{pair} have {100 * alike[other]:.0f} % of their steps in common"


@lru_cache
def _sampled_places(length: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, length - 1, SAMPLED).astype(np.intp))


def repeated(rows: Rows, kind: str) -> str:
    """Return the repetition in one rank's steps that cannot be chance, in words; empty if there is none.

    kind: the rank's device, whose clock was used.
    """
    if 1 < len(rows) == len(set(rows.tolist())):
        return ""  # no two rows are equal
    _, ids, counts = np.unique(rows, return_inverse=True, return_counts=True)
    if kind == "cpu" and len(counts) < min(len(rows) / 2, FEW_TIMES):
        return f"{len(rows)} steps took only {len(counts)} different times"
    if counts.max() > MOST_OF_ONE * len(rows):
        return f"{counts.max()} of {len(rows)} steps took the same time, to the nanosecond"
    bits = -math.log2(float(np.sum((counts / len(rows)) ** 2)))  # per row: collision entropy
    if bits < LEAST_BITS:
        return ""
    if bits > math.log2(len(rows)) - 2:
        bits = max(bits, USUAL_BITS)
    length = math.ceil((2 * math.log2(len(rows)) + CHANCE_BITS) / bits)
    place = _first_repeated(ids.reshape(-1).astype(np.uint64), length)
    if place is None:
        return ""
    earlier, later = place
    return f"steps {later + 1} to {later + length} repeat steps {earlier + 1} to {earlier + length}"


def _first_repeated(ids: NDArray[np.uint64], length: int) -> tuple[int, int] | None:
    """Return where a stretch of ``length`` rows occurs first and again (earlier, later); None if none is repeated."""
    windows = len(ids) - length + 1
    if windows < 2:
        return None
    digest = np.zeros(windows, dtype=np.uint64)
    for offset in range(length):
        digest = digest * np.uint64(0x9E3779B97F4A7C15) + ids[offset : offset + windows]  # wraps around
    changes = np.concatenate([[0], np.cumsum(ids[1:] != ids[:-1])])
    lively = changes[length - 1 : length - 1 + windows] - changes[:windows] >= length // 2  # not one value repeated
    order = np.argsort(digest, kind="stable")
    same = (digest[order][1:] == digest[order][:-1]) & lively[order][1:]
    if not same.any():
        return None
    first = int(np.argmin(np.where(same, order[1:], windows)))
    return int(order[first]), int(order[first + 1])
