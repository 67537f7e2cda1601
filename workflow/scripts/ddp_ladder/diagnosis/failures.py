"""The failure of a run: the first row of one ordered table that explains it. Pure.

Causes come before consequences: a rank that lost another one is never the cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ddp_ladder_instrument.contract import HOOK

from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.common.formats import count, duration, in_short
from ddp_ladder.common.messages import numbered
from ddp_ladder.diagnosis import agent_failures as agents
from ddp_ladder.diagnosis import rank_failures as ranks
from ddp_ladder.diagnosis.case import (
    Case,
    by_end,
    caught,
    ended_by_scheduler,
    failure_of,
    root,
    root_match,
    root_raised,
    symptom,
    where_raised,
)
from ddp_ladder.diagnosis.correctness import NAMED, Diagnosis
from ddp_ladder.diagnosis.hangs import hang_failure, hung, kept_waiting, with_threads
from ddp_ladder.diagnosis.rank_failures import LONG_BEFORE_S, TERMINATED, of_rank, where_each_stood
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, Words, cut, is_consequence, matches
from ddp_ladder.measuring.fingerprint import OWN_DIRECTORY_ADVICE
from ddp_ladder.node.launch import training_python
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.terms import runtime_key

STARTING_MIN = 2  # between the start of a job and that of its runs

# Ended on purpose, or not set up

_NOT_SET = re.compile(
    r"environment variable \w+ expected, but not set|KeyError: '(?:\w+_)?(?:RANK|WORLD_SIZE|ADDR|PORT)'"
)


def without_launcher(case: Case) -> Failure | None:
    """Return the failure of a plain baseline whose script asks for what a launcher sets."""
    end = next((end for end in case.own if case.raw.spec.is_plain and _NOT_SET.search(end.exception or "")), None)
    if end is None:
        return None
    return Failure(
        verdict="the script needs a launcher",
        why=f"the script needs a launcher ({end.exception}), so there is no baseline without DDP",
        next="nothing has to be done; `plain_baseline: false` below measure in config.yaml leaves it out",
        **of_rank(end),
    )


def time_limit(case: Case) -> Failure | None:
    """Return the failure of a run that the end of its job cut short."""
    ended, spec, looks = case.raw.ended, case.raw.spec, case.raw.stalls
    if ended is None or ended.outcome != "time limit":
        return None
    key, asked = runtime_key(spec.stage), ended.asked_min
    why, longer = f"the job of scale {spec.scale} reached its {key}", f"raise {key}"
    if asked is None:  # made by an earlier version
        why, longer = f"{why}, or the end of its allocation", f"{longer} or ask for a longer allocation"
    elif ended.slurm_s is not None and ended.slurm_s < 60 * (asked - STARTING_MIN):
        left = f"when the job of scale {spec.scale} began, Slurm had left it {duration(ended.slurm_s)}"
        why, longer = f"{left}, less than its {key} ({asked} min)", "ask for a longer allocation"
    else:
        why, longer = f"{why} ({asked} min)", f"{longer} (now {asked})"
    made = max((end.steps.count for end in case.raw.ends), default=None)
    why += f"; the run had made {count(made, 'step')}" if made is not None else ""
    hang = with_threads(case, hang_failure(looks, "")) if len(looks) == len(case.raw.run.all_agents) else None
    return Failure(
        kind="time limit",
        verdict="time limit",
        why=why + (f"; before that it stood still: {hang.why}" if hang else ""),
        next=(f"if it hung, {hang.next.splitlines()[0]}; else " if hang else "") + longer + _shorter(spec, made),
        evidence=hang.evidence if hang else next((lines for _, lines in where_each_stood(case).values()), ()),
    )


def _shorter(spec: RunSpec, made: int | None) -> str:
    """Return how to shorten a run that made so many steps (None: not known); nothing if it needs more than these."""
    if made is not None and made > spec.warmup_steps + spec.min_steps:
        return f", or set measure.max_steps below {made}"
    return ", or shorten the run with measure.max_steps or measure.max_seconds" if made is None else ""


def not_written(case: Case) -> Failure | None:
    """Return the failure of a run whose records could not be written; its training may have succeeded."""
    if not case.raw.unwritten and case.outcome != "not written":
        return None
    path = case.raw.directory.path
    why = case.raw.unwritten or (f"an agent could not write below {path}: see its message in the log",)
    return Failure(
        verdict="the records could not be written",
        why=in_short([cut(text, LONGEST_OF_SEVERAL) for text in why], NAMED, "; "),
        next=f"check space, quota and permissions of {path} (df -h {path}), and {case.again}",
    )


def no_gpu(case: Case) -> Failure | None:
    """Return the failure of a run on GPUs in which a rank saw none; None if every rank saw one or did not report."""
    without = [(end, end.gpus_seen) for end in case.raw.ends if end.gpus_seen and end.gpus_seen.count == 0]
    accelerator = ACCELERATORS[case.raw.spec.device]
    if not accelerator.is_gpu or not without:
        return None
    end, seen = without[0]
    agents = [agent for agent in case.raw.agents.values() if agent.host == end.host]
    python = next((training_python(agent.argv) for agent in agents if agent.argv), "the training Python")
    gpus = [gpu for agent in agents for gpu in agent.gpus]
    shown = f"{len(gpus)} x {gpus[0].name}, driver {gpus[0].driver}" if gpus else "no GPU"
    name, built = accelerator.title, seen.built_for or f"no {accelerator.title}"
    rocm = built.startswith("ROCm")  # of whose driver nothing is known here
    built = f"{name} {built}" if built[0].isdigit() else built
    said = next(matches([Words("rank", end.rank, end.host, (seen.why,))], "root"), None)
    if seen.built_for is None:
        next_step = f"install for {python} a torch that is built for a {name} of the node's driver (pytorch.org)"
    elif said is not None:
        next_step = numbered(said.next(python=python))
    else:
        limits = seen.visible or "the variables that limit the visible GPUs"
        next_step = (
            "check node.gres and slurm.partition in cluster.yaml, and that workload.env and software.setup leave "
            f"{limits} alone; else try it on that node: srun --pty {python} -c 'import torch; "
            f"torch.{accelerator.name}.init()'"
        )
    return Failure(
        verdict="torch sees no GPU",
        why=f"rank {end.rank}: torch {end.fingerprint.torch} of {python} is built for {built} and says: {seen.why}"
        + ("" if rocm else f"; {accelerator.program} shows {shown}")
        + f"; limited by {seen.visible or 'no variable'}",
        next=next_step if "start snakemake" in next_step else f"{next_step}; then start snakemake again",
        rank=end.rank,
        node=end.host,
    )


WANTS_GPU = {"cuda_no_driver", "cuda_driver", "cuda_invalid_ordinal", "cuda_not_compiled"}  # ids of signatures


def without_gpus(case: Case) -> Failure | None:
    """Return the failure of a script that wants a GPU on a site without."""
    match, device = root_match(case), case.raw.spec.device
    if match is None or match.signature.id not in WANTS_GPU or ACCELERATORS[device].is_gpu:
        return None
    return failure_of(case, match).replace(
        verdict="the script wants a GPU",
        why=f"it asks torch for a GPU, and node.device in cluster.yaml is {device}",
        next="let the script take the device that there is (torch.cuda.is_available()), or choose the CPU in "
        f"workload.args; if the nodes have GPUs, set node.device in cluster.yaml; then {case.again}",
    )


# All processes ended well: what was measured is not what was wanted


def handled_and_exited(case: Case) -> Failure | None:
    """Return the failure of a rank that made too few steps and exited, well, in an ``except``; None if none did."""
    few = next((check for check in case.failed_checks if check.finding.kind == "enough steps"), None)
    ends = (end for end in sorted(case.raw.ends, key=by_end) if end.handled and not is_consequence(end.handled))
    end = next(ends, None)
    if few is None or end is None:
        return None
    return Failure(
        verdict="the script raised an exception",
        why=f"rank {end.rank}: {end.handled}, for which it ended with exit code {end.exit_code}; {few.failure.why}",
        next=f"fix the cause, and {case.again}; if this is the script's usual end, {few.failure.next}",
        evidence=where_raised(case, end.rank, str(end.handled)),
        **of_rank(end),
    )


def nothing_seen(case: Case) -> Failure | None:
    """Return the failure of a run that ended well but made no measurable step; None if one was seen."""
    raw = case.raw
    if raw.reads_log or not raw.has_all_ranks or any(rank.steps.count for rank in raw.ranks.values()):
        return None
    reasons = [reason for end in raw.ends for reason in end.not_measured]
    unhooked = [f"; {reason.partition(': ')[2]}" for reason in reasons if reason.startswith(("steps: ", HOOK))]
    return Failure(
        kind="too few steps",
        verdict="no training step was seen",
        why="the script ended well, but on no rank did a torch optimizer step in the process that the launcher started"
        f"{''.join(unhooked[:1])}",
        next="let a torch.optim optimizer (torch 2.4 or newer) make the steps in the processes that the launcher "
        "started, with rank and world size from the environment; a program without one can write its steps to the file "
        f"that DDP_LADDER_METRICS names, or set workload.throughput_regex\n{OWN_DIRECTORY_ADVICE}",
        evidence=caught(case),
    )


def failed_check(case: Case) -> Failure:
    """Return the failure behind the first sanity check that did not pass."""
    failed = case.failed_checks
    # Ranks of a group of their own write over each other's files, which are then missing.
    is_alone = any(end.world_size != case.raw.spec.world_size for end in case.raw.ends)
    first = next((check for check in failed if is_alone and check.finding.kind == "world size"), failed[0])
    if first.finding.kind == "enough steps" and (printed := caught(case)):
        fix = f"if the script ended early for the exception that it printed, fix its cause, and {case.again}; else"
        return first.failure.replace(evidence=printed, next=f"{fix} {first.failure.next}")
    return first.failure if first.failure.next else first.failure.replace(next=case.look)


# The table

Explanation = Callable[[Case], Failure | None]

ROWS: tuple[Explanation, ...] = (
    # Named causes.
    without_launcher,
    agents.not_set_up,  # the other nodes wait for this one, and end with errors of their own
    no_gpu,
    without_gpus,
    ranks.different_calls,
    root,
    # The scheduler.
    ended_by_scheduler,
    agents.silent_agent,  # the ladder ended these on purpose
    agents.lost_daemon,
    agents.lost_srun,
    agents.lost_agent,
    agents.ended_from_outside,
    hung,
    # Ranks that died or left, before the time limit that the others then reached.
    ranks.killed_first,
    agents.told_to_end,
    ranks.left_early,
    ranks.saved_state,
    time_limit,
    agents.lost_job,
    # The first failure that is no consequence of another.
    ranks.own_failure,
    not_written,
    kept_waiting,
    ranks.failed_silently,
    ranks.aborted_or_told_to_end,
    agents.lost_launcher,
    # Only consequences are known.
    symptom,
    agents.lost,
    agents.launcher_failed,
    # All processes ended well.
    handled_and_exited,
    nothing_seen,
    failed_check,
)
"""The first row that returns a failure explains the run. What only reports the loss of another rank is in no row but
those near the end, and torchrun's own "root cause", the first end that it saw, is in none."""


def explain(raw: RawRun, diagnoses: Sequence[Diagnosis]) -> Failure:
    """Return why a run failed. diagnoses: its sanity checks, of which one did not pass."""
    case = Case(raw, diagnoses)
    return next(failure for row in ROWS if (failure := row(case)) is not None)


# After a training that is complete


OF_PROCESSES: tuple[Explanation, ...] = (
    root_raised,
    hung,
    ranks.killed_first,
    ranks.own_failure,
    ranks.failed_silently,
    ranks.aborted_or_told_to_end,
    agents.lost,
)


MEASURED = ("max_steps", "max_seconds")  # what ended a rank whose script reached the limit


def is_complete(raw: RawRun) -> bool:
    """Return True if nothing that failed in this run came before the end of its training.

    Every rank left its end record, and its script ran through or reached the limit (max_steps, max_seconds). Who was
    told to end may have ended early, and well, and a launcher that fails without one of its ranks is not explained by
    it: these runs are not complete.
    """
    cut_short = any(end.failed and not end.after_training for end in raw.ends)
    if not raw.has_all_ranks or raw.ended is None or cut_short:
        return False
    last_s = max(end.ended_at_s for end in raw.ends)
    if all(end.ended_by in MEASURED for end in raw.ends):
        return True
    if raw.ended.outcome == "hang":
        return all(last_s < report.found_at_s for report in raw.stalls)
    if raw.ended.outcome != "finished":
        return last_s < raw.ended.ended_at_s - LONG_BEFORE_S
    bad = [end for end in raw.agents.values() if end.failed]
    own = [end for end in bad if end.signal not in TERMINATED]
    return not bad or (bool(own) and all(end.failed_ranks for end in own))


def after_training(raw: RawRun, diagnoses: Sequence[Diagnosis]) -> Iterator[Finding]:
    """Yield what failed after a complete training, with its cause; it spoils no figure."""
    case = Case(raw, diagnoses)
    if not is_complete(raw) or not case.ended_badly:
        return
    failure = next((failure for row in OF_PROCESSES if (failure := row(case))), None)
    ended = "its launchers were ended" if case.outcome == "finished" else f"the run's end was: {case.outcome}"
    cause = failure.in_words if failure else ended
    shown = f"; it printed: {failure.evidence[-1].line.strip()}" if failure and failure.evidence else ""
    if raw.spec.wrapper and not any(end.failed for end in raw.ends):
        shown += f"; the script itself ended with exit code 0, so that is of its wrapper, {raw.spec.wrapper[0]}"
    yield remark(
        "end",
        f"after its training, which is complete and counts, {cause}{shown}",
        "nothing has to be done for the figures; what a script does at its end (a last checkpoint, a summary) "
        f"may be missing: read {raw.directory.log}",
    )
