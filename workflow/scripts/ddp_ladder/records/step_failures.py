"""Failures of a run whose processes ended well: what was measured is not what was wanted."""

from __future__ import annotations

from ddp_ladder.records import shared_directory
from ddp_ladder.records.case import Case
from ddp_ladder.records.quotes import with_caught
from ddp_ladder.records.record import Check, Failure
from ddp_ladder.records.sanity import SAMPLES_SEEN


def nothing_seen(case: Case) -> Failure | None:
    """Return the failure of a run that ended well but made no measurable step; None if one was seen."""
    ranks = case.raw.ranks
    if case.raw.reads_log or len(ranks) < case.spec.world_size or any(len(rank.steps) for rank in ranks.values()):
        return None
    own_processes = sum(rank.end.own_processes for rank in ranks.values())
    if own_processes:
        return Failure(
            verdict="the script starts its own ranks",
            why=f"it started {own_processes} processes with multiprocessing; no optimizer stepped outside them",
            next="let the launcher start the ranks: call the training function directly, with rank, local rank and "
            "world size from the environment (RANK, LOCAL_RANK, WORLD_SIZE)",
        )
    reasons = [reason for rank in ranks.values() for reason in rank.end.not_measured]
    unhooked = [reason.partition(": ")[2] for reason in reasons if reason.startswith("steps: ")]
    if unhooked:
        return Failure(
            verdict="the training could not be measured",
            why=unhooked[0],
            next="use torch 2.4 or newer, and import it before anything that puts import hooks on sys.meta_path; or "
            "let the script write its steps to the file that DDP_LADDER_METRICS names",
        )
    failure = Failure(
        verdict="no training step was seen",
        why="the script ended well, but on no rank did a torch optimizer step",
        next="let a torch.optim optimizer make the steps in the process that the launcher started; a program without "
        "one can write its steps to the file that DDP_LADDER_METRICS names, or set workload.throughput_regex",
    )
    return with_caught(_beside_files(failure, case), case.printed)


def failed_check(case: Case) -> Failure:
    """Return the failure behind the first sanity check that did not pass."""
    first = next(each for each in case.found if not each.check.ok)
    if first.check.name == "enough steps":
        return with_caught(_beside_files(_too_few_steps(case, first.check), case), case.printed)
    why = f"measured {first.check.measured}, wanted {first.check.wanted}"
    if first.check.name == SAMPLES_SEEN:
        return _no_samples(case, why)
    return first.failure or Failure(verdict=first.check.name, why=why, next=case.look)


def _too_few_steps(case: Case, check: Check) -> Failure:
    """Return the failure of a run that ended before enough steps were measured."""
    spec, ranks = case.spec, case.raw.ranks
    made = min(len(rank.steps) for rank in ranks.values())
    limits = {rank.end.ended_by for rank in ranks.values()} & {"max_steps", "max_seconds"}
    longer = f"raise measure.{limits.pop()}" if limits else "train longer (more epochs or data in workload.args)"
    lower = f"lower measure.min_steps to {made - spec.warmup_steps} or less"
    if made <= spec.warmup_steps:
        lower = f"lower measure.warmup_steps and measure.min_steps to {made} or less together"
    return Failure(
        verdict=check.name,
        why=f"measured {check.measured}, wanted {check.wanted}",
        next=f"{longer}, or {lower} in config.yaml, and start snakemake again",
    )


def _no_samples(case: Case, why: str) -> Failure:
    """Return the failure of a training whose batches did not come from a torch DataLoader."""
    imported = sorted({name for rank in case.raw.ranks.values() for name in rank.end.feeders})
    return Failure(
        verdict=SAMPLES_SEEN,
        why=why + (f"; imported, and no torch DataLoader: {', '.join(imported)}" if imported else ""),
        next="set workload.samples_per_step in config.yaml to the samples that one process takes in one optimizer "
        'step, such as "{batch_per_gpu}"; where they differ from step to step, let the script write its steps to the '
        "file that DDP_LADDER_METRICS names (config/README.md)",
    )


def _beside_files(failure: Failure, case: Case) -> Failure:
    """Return the failure with the files that the run found, if it may have resumed from another run's files."""
    found = shared_directory.files_found(case.raw.ended)
    if not found:
        return failure
    what = shared_directory.found_in_words(found)
    return Failure(
        verdict=failure.verdict,
        why=f"{failure.why}; it found {what} in the working directory, and may have gone on from it",
        next=f"{shared_directory.OWN_DIRECTORY_ADVICE}; else {failure.next}",
    )
