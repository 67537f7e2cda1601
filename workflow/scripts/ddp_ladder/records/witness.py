"""What a witness run has shown (results/witness/<variant>.json): of which runs, and what it shows of their counts.

A witness run follows each batch to the parameters (``ddp_ladder_instrument.witness``). It knows of each place in the
script that draws batches which share of their samples was trained on; other runs of the script draw at the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ddp_ladder_instrument.log import Log
from ddp_ladder_instrument.machine import judge
from ddp_ladder_instrument.testimony import CLOSURE, MIXED, NO_TENSORS, ROWS

from ddp_ladder.common.files import read_json, readable
from ddp_ladder.common.formats import count, in_short
from ddp_ladder.common.model import Count, Duration, Name, Version1
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.plan.short_runs import WitnessRun, has_witness, script_digest, witness_key, witness_runs
from ddp_ladder.records.raw_models import (
    DrawingPlace,
    Job,
    RankEnd,
    Witnessed,
    WitnessedPlace,
    WitnessStatus,
)
from ddp_ladder.records.steps import Steps
from ddp_ladder.settings.terms import Scale


class Witness(Witnessed):
    """A witness run."""

    key: str  # of what decides its result: plan.witness.witness_key
    variant: Name
    scale: str
    status: WitnessStatus
    steps: Count = 0  # of the training
    took_s: Duration
    torch: str | None = None  # version
    doubts: Mapping[str, Count] = {}
    not_followed: Mapping[str, Count] = {}
    retrained: Count = 0  # batches that an earlier step had trained on
    optimizers: Mapping[str, Count] = {}  # steps of each
    job: Job | None = None  # None: it was not started
    schema_version: Version1 = 1


class Witnesses:
    """The witness files of a results directory; each is read once."""

    def __init__(self, results: Path) -> None:
        self._results = results

    @cached_property
    def kept(self) -> dict[str, Witness]:
        """The witnesses by their keys."""
        files = sorted((self._results / "witness").glob("*.json"))
        return {witness.key: witness for witness in map(read_witness, files) if witness is not None}

    @cached_property
    def _is_off(self) -> bool:
        with suppress(OSError, ValueError, LookupError, TypeError):
            return read_json(self._results / "plan.json")["jobs"][0]["witness"] is None
        return False

    def of(self, spec: RunSpec) -> Witness | None:
        """Return the kept witness of a run of the script as it is now; None without one.

        It is that of every scale, mode, launcher and network.
        """
        script = script_digest(spec)
        first_sizes = {Scale.parse(witness.scale).world_size for witness in self.kept.values()}
        keys = (witness_key(spec, script, size) for size in first_sizes)
        return next((self.kept[key] for key in keys if key in self.kept), None)

    def told(self, spec: RunSpec) -> Witnessed | None:
        """Return what run.json of a run says of it; None for a run that can have none."""
        if not has_witness(spec):
            return None
        if witness := self.of(spec):
            return Witnessed(**{key: getattr(witness, key) for key in Witnessed.model_fields})
        if self._is_off:
            return Witnessed(status="off", why="measure.witness_steps is off")
        why = "no run of this script, with these arguments and this environment, has followed its batches"
        return Witnessed(status="not made", why=why)


def witness_file(results: Path, variant: str) -> Path:
    """Return the file of the witness run whose first variant this is."""
    return results / "witness" / f"{variant}.json"


def read_witness(path: Path) -> Witness | None:
    """Return a witness; None if it cannot be read: the next job makes it again."""
    return readable(Witness, path)


def missing_witnesses(plan: Plan, results: Path) -> tuple[WitnessRun, ...]:
    """Return the witness runs of a plan without a kept result; what was not followed is tried again."""
    kept = {witness.key for witness in Witnesses(results).kept.values() if witness.status != "not followed"}
    return tuple(run for run in witness_runs(plan) if run.key not in kept)


UNDECIDED = (MIXED, ROWS, NO_TENSORS, CLOSURE)
"""Doubts with which the witness's number is as uncertain as that of the rules."""
OTHER_SHARE = 0.1  # by which the share that the rules count may differ between a run and the witness's
NAMED = 3


class Verdict(NamedTuple):
    """What the witness's run shows of the rules. why: empty if they count as it saw. counted: samples, by place."""

    status: WitnessStatus
    why: str
    counted: tuple[int, ...]


def compared(testimony: Mapping[str, Any], log: Log, facts: Mapping[str, Any]) -> Verdict:
    """Return whether the rules count the witness's run as it saw it.

    testimony: of its rank 0. log, facts: of this rank; facts: ``log`` of its end record.
    """
    places = testimony["places"]
    number = {tuple(lines): k for k, lines in enumerate(facts["places"])}
    never = {number[tuple(place["lines"])] for place in places if not place["trained"]}
    judged = judge(log, facts["samples_per_step"], never)
    counted = tuple(judged.places.get(number[tuple(place["lines"])], (0, 0, 0))[2] for place in places)
    status, why = _status(testimony, sum(judged.table.samples), sum(judged.table.padding_samples))
    return Verdict(status, why, counted)


def _status(testimony: Mapping[str, Any], samples: int, padding: int) -> tuple[WitnessStatus, str]:
    """samples, padding: of all steps, as the rules count them. They may differ by those of a step: a log has ends."""
    if unseen := testimony["not_followed"]:
        return "not followed", "; ".join(unseen)
    seen = testimony["samples"]
    if not sum(seen):
        return "not followed", "; ".join(testimony["doubts"]) or "no batch of a loader reached the parameters"
    if doubts := [f"{text} ({testimony['doubts'][text]:,})" for text in UNDECIDED if text in testimony["doubts"]]:
        return "doubtful", "; ".join(doubts)
    if samples - max(seen) <= sum(seen) <= samples + padding + max(seen):
        return "witnessed", ""
    told = f"in {count(len(seen), 'step')} the witness saw {sum(seen):,} samples that were trained on"
    return "differs", f"{told}, where the rules count {samples:,}"


def share(place: WitnessedPlace) -> float:
    """Return the share of a place's samples that was trained on; more than 1: they were trained on more than once."""
    return place.samples_trained / place.samples if place.samples else 0.0


def factor(drawn: Sequence[DrawingPlace], witness: Witnessed) -> float:
    """Return the samples that were trained on, in those that the rules count, for a run that drew at these places.

    At places that the witness never met, the rules stand.
    """
    known = {place.lines: place for place in witness.places}
    counted = sum(place.trained for place in drawn)
    trained = sum(
        share(known[place.lines]) * place.samples if place.lines in known else place.trained for place in drawn
    )
    return trained / counted if counted else 1.0


def as_witnessed(end: RankEnd, steps: Steps, witness: Witnessed | None) -> tuple[RankEnd, Steps]:
    """Return a rank's files with the samples that its witness tells, where the rules would count others."""
    if witness is None or witness.status != "differs" or end.source not in ("counted", "guessed"):
        return end, steps
    times = factor(end.places, witness)
    samples, padding = (_scaled(column, times) for column in (steps.samples, steps.padding_samples))
    batch = end.fingerprint.batch_per_gpu
    fingerprint = end.fingerprint.replace(batch_per_gpu=batch and max(1, round(times * batch)))
    return end.replace(fingerprint=fingerprint), replace(steps, samples=samples, padding_samples=padding)


def _scaled(column: Any, times: float) -> Any:
    """Return whole numbers whose sums are those of a column, times a factor."""
    return np.diff(np.rint(times * np.cumsum(column)).astype(np.int64), prepend=0)


def doubt_on(ends: Sequence[RankEnd], witness: Witnessed) -> str:
    """Return why what the witness saw may not hold for a run; empty if it holds."""
    if witness.status == "doubtful":
        return f"the witness run saw {witness.why}"
    known = {place.lines: place for place in witness.places}
    others = {
        place.lines[0]: None for end in ends for place in end.places if place.trained and place.lines not in known
    }
    if others:
        return f"the witness run never came to {in_short([*others], NAMED)}, where batches were drawn"
    for end in ends:
        for place in end.places:
            seen = known.get(place.lines)
            if seen is None or not (place.samples and seen.samples):
                continue
            here, there = place.trained / place.samples, seen.counted / seen.samples
            if abs(here - there) > OTHER_SHARE:
                of = f"{100 * here:.0f} % of the samples that {place.lines[0]} draws are counted on rank {end.rank}"
                return f"{of}, and {100 * there:.0f} % in the witness run"
    return ""
