"""The runs that follow their batches, in the job of the first scale, before its others: untimed, and short."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddp_ladder_instrument.contract import WITNESS, WITNESS_PASSES
from ddp_ladder_instrument.log import read_log
from ddp_ladder_instrument.testimony import in_words

from ddp_ladder.common.files import RunDirectory, read_json, write_json, writing
from ddp_ladder.common.formats import count, duration
from ddp_ladder.plan.plan import Plan, RunSpec, WitnessLimits
from ddp_ladder.plan.witness import LONGEST, SLOWER, WitnessRun, longest_s, place_of
from ddp_ladder.records.raw_files import RawRun, read_raw_run
from ddp_ladder.records.raw_models import Flops, WitnessedPlace
from ddp_ladder.records.record import Record, placed
from ddp_ladder.records.witness import Witness, missing_witnesses, witness_file
from ddp_ladder.records.witnessed import compared
from ddp_ladder.run.assembling import Assembly
from ddp_ladder.run.job import Context, RunsSoFar, run_on_free_port
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.settings.terms import runtime_key

SHORTEST_S = 10.0  # in less no script starts and makes steps
Outcome = Mapping[str, Any]  # fields of Witness


def make_witnesses(context: Context, plan: Plan) -> None:
    """Make each witness run that has no kept result, and write what it shows. Raises Interrupted.

    Whatever comes of it is a result: it fails neither the job nor a variant.
    """
    limits = context.job.witness
    missing = missing_witnesses(plan, context.results) if limits else ()
    for run in missing:
        assert limits
        begun_s = time.monotonic()
        outcome = _made(context, run, limits)
        witness = Witness(
            key=run.key,
            variant=run.variants[0],
            scale=str(context.job.scale),
            took_s=time.monotonic() - begun_s,
            **outcome,
        )
        write_json(witness_file(context.results, run.variants[0]), witness.model_dump())
        context.console.say(f"{context.label}: {run.label}: {_in_words(witness)}")


def _made(context: Context, run: WitnessRun, limits: WitnessLimits) -> Outcome:
    """Make a witness run, in a results directory of its own, and return what it shows."""
    most_s = longest_s(limits, context.left_s)
    if most_s < SHORTEST_S:
        why = f"no time: the job had {duration(max(0.0, context.left_s))} left; raise {runtime_key(context.job.stage)}"
        return {"status": "not followed", "why": why}
    context.console.say(
        f"{context.label}: {run.label}: follows each batch to the parameters, for {count(limits.steps, 'step')} or "
        f"{WITNESS_PASSES} passes, at most {duration(most_s)}; steps are {SLOWER} slower, and nothing is timed"
    )
    own = replace(
        context,
        job=replace(context.job, monitor=None),
        results=context.results / place_of(run.variants[0]),
        deadline_s=time.monotonic() + most_s,
        console=_Console(run),
        is_witness=True,
    )
    with writing(own.results):
        shutil.rmtree(own.results, ignore_errors=True)
    spec = run.spec.replace(max_seconds=min(limits.seconds, most_s / LONGEST))
    directory = own.directory(spec)
    made = run_on_free_port(own, directory, spec, RunsSoFar(own.console, {}, {}))
    return outcome_of(made.record if isinstance(made, Assembly) else made, directory, most_s)


def outcome_of(record: Record, directory: RunDirectory, most_s: float) -> Outcome:
    """Return what a witness run has shown that left this record. most_s: that it had."""
    of_run = {"job": record.job, "torch": record.fingerprint.torch}
    failure = record.failure
    if failure is not None:
        why = f"{placed(failure.verdict, failure.place, failure.why)}: {failure.why}"
        if failure.kind == "time limit":
            why = f"it had not ended after {duration(most_s)}; raise measure.witness_s"
        return {**of_run, "status": "not followed", "why": why}
    try:
        return {**of_run, **_seen(read_json(directory.ranks / WITNESS.format(0)), read_raw_run(directory))}
    except FileNotFoundError:
        why = "rank 0 left no account of its batches: no optimizer of torch, or the instrument did not see its import"
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"what rank 0 has seen cannot be read: {error}"
    return {**of_run, "status": "not followed", "why": why}


def _seen(testimony: Mapping[str, Any], raw: RawRun) -> Outcome:
    """Return what rank 0 has seen, compared with how the rules count its log. Raises errors of damaged files."""
    log = raw.content.read(raw.directory.ranks / "rank0.log", raw.run.all_agents[0])
    verdict = compared(testimony, read_log(log), raw.ranks[0].end.log or {})
    known = WitnessedPlace.model_fields.keys() - {"counted"}
    places = (
        WitnessedPlace.from_json({**{key: place[key] for key in known}, "counted": counted})
        for place, counted in zip(testimony["places"], verdict.counted, strict=True)
    )
    of_all = {key: testimony[key] for key in ("steps", "doubts", "not_followed", "retrained", "optimizers")}
    return {
        "status": verdict.status,
        "why": verdict.why,
        **of_all,
        "places": tuple(places),
        "flops": Flops.from_json(testimony["flops"]),
    }


def _in_words(witness: Witness) -> str:
    """Return ``witnessed, 46 steps in 9 s: train.py:88: 46 batches, ...``."""
    why = f" ({witness.why})" if witness.why else ""
    text = f"{witness.status}{why}"
    if witness.steps:
        text = f"{text}, {count(witness.steps, 'step')} in {duration(witness.took_s)}"
    places = "; ".join(in_words(place.model_dump()) for place in witness.places)
    return f"{text}: {places}" if places else text


class _Console(RunConsole):
    """The progress of a witness run: on a terminal alone, as its outcome follows."""

    def __init__(self, run: WitnessRun) -> None:
        super().__init__(1)
        self._run = run

    def _begin(self, spec: RunSpec) -> str:
        return f"{spec.stage} {spec.scale} {self._run.label}"

    def ended(self, record: Record) -> None:
        self.status("")
