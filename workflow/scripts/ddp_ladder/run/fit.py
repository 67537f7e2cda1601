"""The search for the batch per GPU, in the job of the first scale: each batch in a short run, of fresh processes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.files import RunDirectory, write_json, writing
from ddp_ladder.common.formats import count, duration
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, Words, cut, matches, read_lines
from ddp_ladder.measuring.fingerprint import batch_per_gpu_seen
from ddp_ladder.plan.fit import (
    Fit,
    Outcome,
    Trial,
    Trials,
    batch_range,
    choice,
    fit_file,
    kept_trials,
    search,
    search_key,
    trial_spec,
    trials_file,
    with_batch,
    workload_key,
)
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.record import LeftOut, Record, placed, write_record
from ddp_ladder.run.assembling import Assembly
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
    own = replace(context, results=context.results / place, console=_Console())
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
        why = f"{placed(failure.verdict, failure.place, failure.why)}: {failure.why}"
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


class _Console(RunConsole):
    """The progress of a trial: on a terminal alone, as its outcome follows."""

    def __init__(self) -> None:
        super().__init__(1)

    def _begin(self, spec: RunSpec) -> str:
        return f"{spec.stage} {spec.scale} batch {spec.batch_per_gpu} per GPU"

    def ended(self, record: Record) -> None:
        self.status("")
