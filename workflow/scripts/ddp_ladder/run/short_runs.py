"""Short runs in the job of the first scale, before its others: they search the batch, and follow each batch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_ladder_instrument.contract import WITNESS, WITNESS_PASSES
from ddp_ladder_instrument.log import read_log
from ddp_ladder_instrument.testimony import in_words

from ddp_ladder.assembly.assemble import Assembly
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.files import RunDirectory, read_json, write_json, writing
from ddp_ladder.common.formats import count, duration
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, Words, cut, matches, read_lines
from ddp_ladder.measuring.fingerprint import batch_per_gpu_seen
from ddp_ladder.plan.plan import Plan, RunSpec, WitnessLimits
from ddp_ladder.plan.short_runs import (
    LONGEST,
    SLOWER,
    Fit,
    Outcome,
    Trial,
    Trials,
    WitnessRun,
    batch_range,
    choice,
    fit_file,
    kept_trials,
    longest_s,
    place_of,
    search,
    search_key,
    trial_spec,
    trials_file,
    with_batch,
    workload_key,
)
from ddp_ladder.records.raw_files import RawRun, read_raw_run
from ddp_ladder.records.raw_models import Flops, Tokens, WitnessedPlace
from ddp_ladder.records.record import LeftOut, Record, write_record
from ddp_ladder.records.witness import Witness, compared, missing_witnesses, witness_file
from ddp_ladder.run.job import LONGER, Context, RunsSoFar, failed_preflight, leave_out_run, run_on_free_port
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.settings.keys import Preflight
from ddp_ladder.settings.terms import runtime_key


class NoBatch(UserError):
    """No batch can be chosen. kind, why, next_step: as of a run's failure."""

    def __init__(self, context: Context, why: str, next_step: str, kind: LeftOut = "no batch") -> None:
        self.kind, self.why, self.next_step = kind, why, next_step
        where = f"{context.label}, workload.batch_per_gpu" if kind == "no batch" else context.label
        super().__init__(Problem(where, why, next=next_step))


def fitted(context: Context, plan: Plan) -> tuple[Context, Plan]:
    """Choose the batch, write the choice and the plan with it, and return them, with the preflight done.

    Raises NoBatch and Interrupted.
    """
    if failed := failed_preflight(context):
        raise NoBatch(context, failed.why, failed.next, "preflight failed")
    chosen = with_batch(plan, choose_batch(context, plan).chosen)
    write_json(context.results / "plan.json", chosen.to_json())
    chosen = as_made(chosen, RunRecords(context.results))
    return replace(context, job=replace(chosen.job(context.job.scale), preflight=Preflight(enabled=False))), chosen


def choose_batch(context: Context, plan: Plan) -> Fit:
    """Try batches, each in results/fit/<batch>/, and write the choice. Raises NoBatch and Interrupted.

    A search that an earlier job did not end goes on from its trials.
    """
    wanted, trials, key = batch_range(plan), list[Trial](), search_key(plan)
    directory, file = context.results / "fit", trials_file(context.results)
    kept = {trial.batch_per_gpu: trial for trial in kept_trials(context.results, key)}
    if not kept:
        with writing(directory):
            shutil.rmtree(directory, ignore_errors=True)
    longest_s = 0.0

    def fits(batch: int) -> bool:
        nonlocal longest_s
        if batch in kept:
            trials.append(kept[batch])
            return trials[-1].fits
        before_s = context.left_s
        if before_s < LONGER * longest_s:
            why = f"the search needs more time: a trial takes {duration(longest_s)}, {duration(before_s)} are left"
            best = choice(trials, wanted.headroom_percent)
            take = "" if best is None else f"; or take the best so far, workload.batch_per_gpu: {best}"
            advice = f"raise {runtime_key(context.job.stage)} and start snakemake again: the trials are kept{take}"
            raise NoBatch(context, why, advice)
        trials.append(_tried(context, plan, batch, trials))
        write_json(file, Trials(key=key, trials=tuple(trials)).model_dump())
        longest_s = max(longest_s, before_s - context.left_s)
        return trials[-1].fits

    again = f", with {count(len(kept), 'trial')} of an earlier job" if kept else ""
    context.console.say(f"{context.label}: searching the batch per GPU from {wanted.least} to {wanted.most}{again}")
    search(wanted.least, wanted.most, fits)
    if not trials[0].fits:
        why = f"no batch fits: {trials[0].batch_per_gpu}, the smallest that was tried: {trials[0].why}"
        raise NoBatch(
            context, why, "lower `from` of workload.batch_per_gpu, or let the script use less memory or more data"
        )
    batch = choice(trials, wanted.headroom_percent)
    if batch is None:
        why = f"no batch from {wanted.least} on leaves {wanted.headroom_percent:g} % of the memory free"
        raise NoBatch(context, why, "lower `from` or `headroom_percent` of workload.batch_per_gpu")
    fit = Fit(
        key=key,
        workload=workload_key(plan),
        scale=str(context.job.scale),
        headroom_percent=wanted.headroom_percent,
        trials=tuple(sorted(trials, key=lambda trial: trial.batch_per_gpu)),
        chosen=batch,
        schema_version=1,
    )
    write_json(fit_file(context.results, context.job.scale), fit.model_dump())
    file.unlink(missing_ok=True)
    context.console.say(f"{context.label}: {fit.rule}")
    return fit


def leave_all_out(context: Context, reason: NoBatch) -> None:
    """Write a record of each run of the scale that says why there is no batch for it."""
    for spec in context.job.runs:
        directory = context.directory(spec)
        write_record(directory.record, leave_out_run(directory, spec, reason.kind, reason.why, reason.next_step))


def _tried(context: Context, plan: Plan, batch: int, before: Sequence[Trial]) -> Trial:
    """Run a batch; return the trial. Raises NoBatch for a failure that is not of its size."""
    place = f"fit/{batch}"
    spec = trial_spec(with_batch(plan, batch, f"{plan.results}/{place}"), before)
    own = replace(context, results=context.results / place, console=_TrialConsole(f"batch {batch} per GPU"))
    made = run_on_free_port(own, own.directory(spec), spec, RunsSoFar(own.console, {}, {}))
    record = made.record if isinstance(made, Assembly) else made
    trial = trial_of(record, context, own.directory(spec).path, before)
    context.console.say(f"{context.label}: batch {batch} per GPU: {_in_words(trial)}")
    return trial


def trial_of(record: Record, context: Context, directory: Path, before: Sequence[Trial]) -> Trial:
    """Return the trial that left a record. Raises NoBatch for a failure that is not of its size.

    before: the trials of other batches. One that fits shows that it is the size that a library's failure depends on.
    """
    batch, failure, seen = record.spec.batch_per_gpu, record.failure, batch_per_gpu_seen(record)
    if failure is not None:
        why = failure.in_words
        less_fits = any(trial.fits and trial.batch_per_gpu < batch for trial in before)
        if failure.kind in ("out of memory", "killed") or (failure.kind == "probably out of memory" and less_fits):
            # The batch is all that differs from the runs before.
            why += ", as by the kernel's out-of-memory killer" if failure.kind == "killed" else ""
            return Trial(batch_per_gpu=batch, outcome="out of memory", why=why)
        if failure.kind == "too few steps":
            return Trial(batch_per_gpu=batch, outcome="too little data", why=why)
        raise NoBatch(context, f"the trial of batch {batch} failed: {why} (see {directory})", failure.next)
    if seen < batch:
        outcome, why = _smaller(record, seen, RunDirectory(directory))
        return Trial(batch_per_gpu=batch, outcome=outcome, why=f"half of the steps had {seen} samples or fewer{why}")
    return Trial(
        batch_per_gpu=batch,
        outcome="fits",
        samples_per_s=record.throughput.samples_per_s if record.throughput else None,
        step_time_s=record.timing.step_time_s if record.timing else None,
        peak_memory_bytes=record.memory and record.memory.peak_bytes,
        memory_headroom_fraction=record.memory and record.memory.headroom_fraction,
    )


def _smaller(record: Record, seen: int, directory: RunDirectory) -> tuple[Outcome, str]:
    """Return what became of a trial whose steps had fewer samples than wanted, and what shows it."""
    roots = matches([Words("agent", None, None, read_lines(directory.log))], "root")
    said = next(
        (root.line for root in roots if root.signature.kind in ("out of memory", "probably out of memory")), None
    )
    if said:
        return "out of memory", f", as the script went on with them after: {cut(said, LONGEST_OF_SEVERAL)}"
    spec, size = record.spec, record.fingerprint.dataset_size
    if size is None:
        return "too little data", ": the data set is smaller, or the script does not use {batch_per_gpu}"
    if size < spec.batch_per_gpu * spec.gpus:
        return "too little data", f": the data set has {size:,}"
    return "smaller batch", (
        f", although the data set has {size:,}: the script does not use {{batch_per_gpu}}, or makes its batch smaller "
        f"itself, as some do when memory runs out; see {directory.log}"
    )


def _in_words(trial: Trial) -> str:
    _, rate, step, memory, headroom, outcome = trial.cells
    if not trial.fits:
        return f"{outcome}: {trial.why}"
    return f"fits, {rate} samples/s, {step} ms per step, {memory} MB per GPU, headroom {headroom}"


class _TrialConsole(RunConsole):
    """The progress of a short run: on a terminal alone, as its outcome follows."""

    def __init__(self, name: str) -> None:
        super().__init__(1)
        self._name = name

    def _begin(self, spec: RunSpec) -> str:
        return f"{spec.stage} {spec.scale} {self._name}"

    def ended(self, record: Record) -> None:
        self.status("")


SHORTEST_S = 10.0  # in less no script starts and makes steps
Shown = Mapping[str, Any]  # fields of Witness


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
        context.console.say(f"{context.label}: {run.label}: {_witness_in_words(witness)}")


def _made(context: Context, run: WitnessRun, limits: WitnessLimits) -> Shown:
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
        console=_TrialConsole(run.label),
        is_witness=True,
    )
    with writing(own.results):
        shutil.rmtree(own.results, ignore_errors=True)
    spec = run.spec.replace(max_seconds=min(limits.seconds, most_s / LONGEST))
    directory = own.directory(spec)
    made = run_on_free_port(own, directory, spec, RunsSoFar(own.console, {}, {}))
    return outcome_of(made.record if isinstance(made, Assembly) else made, directory, most_s)


def outcome_of(record: Record, directory: RunDirectory, most_s: float) -> Shown:
    """Return what a witness run has shown that left this record. most_s: that it had."""
    of_run = {"job": record.job, "torch": record.fingerprint.torch}
    failure = record.failure
    if failure is not None:
        why = failure.in_words
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


def _seen(testimony: Mapping[str, Any], raw: RawRun) -> Shown:
    """Return what rank 0 has seen, compared with how the rules count its log. Raises errors of damaged files."""
    log = raw.content.read(raw.directory.ranks / "rank0.log", raw.run.all_agents[0])
    verdict = compared(testimony, read_log(log), raw.ranks[0].end.log or {})
    places = (
        WitnessedPlace.from_json({**place, "counted": counted})
        for place, counted in zip(testimony["places"], verdict.counted, strict=True)
    )
    of_all = {key: testimony[key] for key in ("steps", "doubts", "not_followed", "retrained", "optimizers")}
    return {
        "status": verdict.status,
        "why": verdict.why,
        **of_all,
        "places": tuple(places),
        "flops": Flops.from_json(testimony["flops"]),
        "tokens": Tokens.from_json(tokens) if (tokens := testimony.get("tokens")) else None,
    }


def _witness_in_words(witness: Witness) -> str:
    """Return ``witnessed, 46 steps in 9 s: train.py:88: 46 batches, ...``."""
    why = f" ({witness.why})" if witness.why else ""
    text = f"{witness.status}{why}"
    if witness.steps:
        text = f"{text}, {count(witness.steps, 'step')} in {duration(witness.took_s)}"
    places = "; ".join(in_words(place.model_dump()) for place in witness.places)
    return f"{text}: {places}" if places else text
