"""The failure of a run: the first row of one ordered table that explains it. Pure.

Causes come before consequences: a rank that lost another one is never the cause.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from ddp_ladder_instrument.contract import HOOK

from ddp_ladder.common.files import file_text
from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.common.formats import count, duration, in_short, rank_numbers
from ddp_ladder.common.messages import leave_out, numbered
from ddp_ladder.common.process import SIGNALS
from ddp_ladder.diagnosis import rank_failures as ranks
from ddp_ladder.diagnosis.case import (
    Case,
    by_end,
    caught,
    ended_by_scheduler,
    failure_of,
    root,
    root_at_end,
    root_match,
    root_raised,
    symptom,
    where_raised,
)
from ddp_ladder.diagnosis.correctness import NAMED, Diagnosis
from ddp_ladder.diagnosis.hangs import TIMED_OUT, hang_failure, hung, kept_waiting, with_threads
from ddp_ladder.diagnosis.rank_failures import (
    LONG_BEFORE_S,
    TERMINATED,
    kind_of_signal,
    last_words,
    of_rank,
    saved_state,
    signal_advice,
    where_each_stood,
)
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, Words, cut, is_consequence, matches
from ddp_ladder.measuring.fingerprint import OWN_DIRECTORY_ADVICE
from ddp_ladder.node.launch import training_python
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, SilentAgent
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.terms import runtime_key
from ddp_ladder.slurm.jobs import slurms_words

STARTING_MIN = 2  # between the start of a job and that of its runs
ENDING = tuple(signum.name for signum in SIGNALS)
ROUNDED_S = 1.0  # torchrun reports ends in whole seconds

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


# Agents and launchers that could not start, died or fell silent, and nodes that were lost


def _of_node(end: AgentEnd) -> dict[str, Any]:
    return {"node": end.host, "at_s": end.ended_at_s}


def not_set_up(case: Case) -> Failure | None:
    """Return the failure of a node whose processes could not be started."""
    end = min((end for end in case.raw.agents.values() if end.error), key=by_end, default=None)
    if end is None:
        return None
    key = str(end.error).partition(":")[0]
    of_workload = key.startswith("workload.")
    where = "config.yaml" if of_workload else "cluster.yaml or in the variant"
    secret = "; a secret has to be in the settings files, or exported before the start" if key == "workload.env" else ""
    return Failure(
        verdict=f"{'the workload' if of_workload else 'software or network'} could not be set up",
        why=f"{end.agent} ({end.host}): {end.error}",
        next=f"correct {key} in {where}, and start snakemake again{secret}",
        **_of_node(end),
    )


def silent_agent(case: Case) -> Failure | None:
    """Return the failure of a run that its job ended because an agent gave no sign of life."""
    ended = case.raw.ended
    if ended is None or not ended.silent or ended.found_at_s is None:
        return None
    first, nodes = ended.silent[0], case.raw.run.nodes
    if case.own_at_s < ended.found_at_s - first.silent_s:
        return None
    node = None if _on_all_nodes(ended.silent, nodes) else nodes[first.node_rank]
    look = f"see on {node} what stopped or slowed it (a signal SIGSTOP, memory, the node's own log, the file system of "
    look += f"the results); if the node is broken, {leave_out()}; then start snakemake again"
    shared = f"see whether the nodes can write below {case.raw.directory.path}; then start snakemake again"
    return Failure(
        verdict="an agent gave no sign of life" if node else "no agent gave a sign of life",
        why=silence_in_words(ended.silent, nodes),
        next=look if node else shared,
        node=node,
        at_s=ended.found_at_s - first.silent_s,
    )


def _on_all_nodes(silent: Sequence[SilentAgent], nodes: Sequence[str]) -> bool:
    return len({agent.node_rank for agent in silent}) == len(nodes) > 1


def silence_in_words(silent: Sequence[SilentAgent], nodes: Sequence[str]) -> str:
    """Return why a run is ended whose agents gave no sign of life. nodes: of the run, by rank."""
    which = in_short([f"{end.agent} ({nodes[end.node_rank]})" for end in silent], NAMED)
    first = silent[0]
    if _on_all_nodes(silent, nodes) and first.has_begun:
        return f"no agent gave a sign of life for {duration(first.silent_s)}: the file system of the results hangs"
    if not first.has_begun:
        return f"the agent of {which} gave no sign of life within {duration(first.silent_s)} of the run's start"
    stopped = "it is stopped, or its node or its file system hangs or is cut off"
    return f"the agent of {which} gave no sign of life for {duration(first.silent_s)}: {stopped}"


def lost_daemon(case: Case) -> Failure | None:
    """Return the failure of a node whose step daemon died, which ends its agent. Without Slurm that is its job's."""
    orphans = (end for end in case.raw.agents.values() if end.orphaned and end.signal in TERMINATED)
    end = min(orphans, key=by_end, default=None)
    if end is None or not case.raw.run.job.is_of_slurm or case.own_at_s < end.ended_at_s:
        return None
    return Failure(
        verdict="a step daemon died",
        why=f"the slurmstepd of {end.agent} ({end.host}), the parent of its agent, died during the run",
        next=f"read slurmd's log on {end.host}, and `dmesg` or `journalctl -k` there: often it was the out-of-memory "
        f"killer; if it recurs, {leave_out()}; then start snakemake again",
        **_of_node(end),
    )


def lost_starter(case: Case) -> Failure | None:
    """Return the failure of a run whose srun, or without Slurm an agent, a signal ended that the job did not send."""
    ended = case.raw.ended
    signal = None if ended is None else ended.srun_signal or ended.agent_signal
    if ended is None or signal is None or case.own_at_s < (ended.found_at_s or 0.0):
        return None
    silent = [str(agent) for agent in case.raw.run.all_agents if agent not in case.raw.agents]
    of_srun = f"the run's srun on {ended.host} was ended by {signal}; its job step was then ended"
    of_agent = f"the agent of {in_short(silent, NAMED)} ({ended.host}) was ended by {signal}, and the processes that "
    return Failure(
        kind=None if ended.srun_signal else kind_of_signal(signal),
        verdict="srun was killed" if ended.srun_signal else "an agent was killed",
        why=of_srun if ended.srun_signal else f"{of_agent}it had started with it",
        next=signal_advice(signal, ended.host)[1],
        node=ended.host,
        at_s=ended.found_at_s,
    )


def ended_from_outside(case: Case) -> Failure | None:
    """Return the failure of a run that someone ended: its job, its job step, or all of its agents by a signal.

    Not if a rank had failed before, nor if only some agents were told: Slurm tells the others if it has lost a node.
    """
    ended, agents = case.raw.ended, case.raw.agents
    told = [(end.told.at_s, end) for end in agents.values() if end.failed and end.told and end.told.signal in ENDING]
    first_s = min((at_s for at_s, _ in told), default=math.inf)
    if ended is not None and ended.job_signal is not None:
        first_s, what = min(first_s, ended.found_at_s or math.inf), f"the job got {ended.job_signal}"
    elif case.outcome == "finished" and _is_step_cancelled(file_text(case.raw.directory.launcher_log) or ""):
        what = "its job step was cancelled, as with scancel, and not by the ladder"
    elif case.outcome != "finished" or len(told) < len(case.raw.run.all_agents):
        return None
    else:
        _, first = min(told, key=itemgetter(0))
        who = "its job step" if case.raw.run.job.is_of_slurm else f"the agent of {first.agent} ({first.host})"
        what = f"{who} got {first.told and first.told.signal}, which the ladder did not send"
    failed_s = (case.own_at_s, *(rank.ended_at_s for rank in case.seen_to_fail[:1]))
    if min(failed_s) < first_s - ROUNDED_S:
        return None
    if (saved := saved_state(case)) is not None:
        return saved
    made = max((end.steps.count for end in case.raw.ends), default=None)
    return Failure(
        kind="interrupted",
        verdict="ended from outside",
        why=what if made is None else f"{what}; the run had made {count(made, 'step')}",
        next=f"if it was not you, ask who ends jobs or processes there; then {case.again}",
        at_s=first_s if math.isfinite(first_s) else None,
    )


_STEP_CANCELLED = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*")
_TASK_ENDED = re.compile(r"^srun: error: \S+: tasks? ")


def _is_step_cancelled(log: str) -> bool:
    """Return True if srun's log tells that its step was cancelled before a task had ended: after that, srun does so."""
    lines = (line for line in log.splitlines() if _STEP_CANCELLED.search(line) or _TASK_ENDED.search(line))
    return bool(_STEP_CANCELLED.search(next(lines, "")))


def lost_job(case: Case) -> Failure | None:
    """Return the failure of a run whose job did not come to write its end: its processes end with it."""
    raw = case.raw
    told_s = min((end.told.at_s for end in raw.agents.values() if end.told), default=math.inf)
    cut = len(raw.agents) < len(raw.run.all_agents) or any(end.failed for end in raw.agents.values())
    if raw.ended is not None or raw.directory.ended.exists() or not cut or case.own_at_s < told_s:
        return None
    told = next((end.told.signal for end in raw.agents.values() if end.told), None)
    return Failure(
        kind="job killed",
        verdict="the job was killed",
        why=f"job {raw.run.job.id} left no end record of the run: its process was killed, or its node went down"
        + (f"; its agents were then ended by {told}" if told else ""),
        next="run `dmesg` or `journalctl -k` on its first node: often it was the out-of-memory killer; then "
        f"{case.again}",
    )


def lost_launcher(case: Case) -> Failure | None:
    """Return the failure of a run of which a launcher was killed, often with its ranks."""
    killed = [end for end in case.raw.agents.values() if end.signal and end.signal not in TERMINATED]
    end = min((end for end in killed if not end.failed_ranks), key=by_end, default=None)
    if end is None:
        return None
    return Failure(
        kind=kind_of_signal(end.signal),
        verdict="a launcher was killed",
        why=f"the launcher of node {end.node_rank} ({end.host}): ended by {end.signal}",
        next=signal_advice(end.signal, end.host)[1],
        **_of_node(end),
    )


def told_to_end(case: Case) -> Failure | None:
    """Return the failure of a run that a signal from outside ended, if its script then ended well."""
    failed = [end for end in case.raw.agents.values() if end.failed]
    signals = [end.told for end in failed if end.told]
    well = [end.rank for end in case.raw.ends if not end.failed]
    is_of_ladder = case.outcome not in ("finished", "unknown")
    if is_of_ladder or not failed or len(signals) < len(failed) or not well or case.own or case.seen_to_fail:
        return None
    first = min(signals, key=attrgetter("at_s"))
    after_s = first.at_s - min(end.launched_at_s for end in failed)
    steps = max(end.steps.count for end in case.raw.ends)
    return Failure(
        verdict="stopped by a signal",
        why=f"{first.signal} came after {duration(after_s)}; {rank_numbers(well)} then ended with exit code 0, after "
        f"{count(steps, 'step')}",
        next=f"raise {runtime_key(case.raw.spec.stage)} if the signal is the scheduler's warning (--signal in "
        "slurm.extra); or let the script end with exit code 75 once it has saved its state, and resume from it; then "
        "start snakemake again: the run is repeated",
        at_s=first.at_s,
    )


_BARRIER = re.compile(r"Rank (\d+) failed to pass monitoredBarrier")


def lost(case: Case) -> Failure | None:
    """Return the failure of ranks that lost another rank, or were told to end, whose end no agent saw."""
    raw = case.raw
    victim = min((end for end in raw.ends if end.exception), key=by_end, default=None)  # none has a reason of its own
    silent = [agent for agent in raw.run.all_agents if agent not in raw.agents]
    told = [end for end in raw.agents.values() if end.signal in TERMINATED]  # as srun does when it has lost a task
    if victim is not None:
        at_s, seen = victim.ended_at_s, f"rank {victim.rank} on {victim.host} lost the others: {victim.exception}"
    elif silent and told and len(told) == len(raw.agents):
        at_s, seen = min(end.ended_at_s for end in told), f"the others were then ended by {told[0].signal}"
    else:
        return None
    if silent:
        names = in_short([f"{agent} ({raw.run.nodes[agent.node_rank]})" for agent in silent], NAMED)
        return Failure(
            verdict="a node was lost",
            why=f"{names} left no end record: its agent was killed, or the node is gone; {seen}",
            next="see what the scheduler and the node's own log say about it; if it is broken, "
            f"{leave_out()}; then start snakemake again",
            node=raw.run.nodes[silent[0].node_rank],
            at_s=at_s,
        )
    named = next(filter(None, (_BARRIER.search(end.exception or "") for end in raw.ends)), None)
    without = [rank for rank in range(raw.spec.world_size) if rank not in raw.ranks]
    is_awaited = len(without) == 1 and victim is not None and bool(TIMED_OUT.search(victim.exception or ""))
    gone = f"{rank_numbers(without)} left no end record; " if without else ""
    if named or is_awaited:
        awaited = int(named[1]) if named else without[0]
        return Failure(
            verdict="a rank kept the others waiting",
            why=f"rank {awaited} did not come to a call within its timeout; {seen}",
            next=f"see what rank {awaited} does meanwhile: lower hang.at_least_s in config.yaml below that timeout and "
            "start snakemake again, and its line is named; if it only needs longer, give the others more time: "
            "init_process_group(timeout=...)",
            rank=awaited,
            at_s=at_s,
        )
    return Failure(
        verdict="the ranks lost each other",
        why=f"no rank is known to have failed by itself; {gone}{seen}",
        next=f"read the last lines of the other ranks in {raw.directory.log}; if they ended well, look at the network "
        "between the nodes (network.interface in cluster.yaml), and start snakemake again",
        at_s=at_s,
    )


def launcher_failed(case: Case) -> Failure | None:
    """Return the failure of a launcher whose ranks report nothing."""
    raw = case.raw
    if raw.ended and not raw.agents and not raw.ends:
        said = slurms_words(file_text(raw.directory.launcher_log) or "")
        words = [line for line in said if not is_consequence(line)] or said
        why = "; ".join(words[-2:]) or "no agent left an end record"
        return Failure(verdict="the launcher failed", why=why, next=case.look)
    end = min((end for end in raw.agents.values() if end.failed), key=by_end, default=None)
    if end is None:
        return None
    if not raw.ends and not end.signal and (named := root_at_end(case, end.host)):
        return named
    exit_of = f"ended by {end.signal}" if end.signal else f"exit code {end.exit_code}"
    why = f"{end.agent}: {exit_of}{last_words(case, end.host)}"
    return Failure(verdict="the launcher failed", why=why, next=case.look, **_of_node(end))


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
    not_set_up,  # the other nodes wait for this one, and end with errors of their own
    no_gpu,
    without_gpus,
    root,
    # The scheduler.
    ended_by_scheduler,
    silent_agent,  # the ladder ended these on purpose
    lost_daemon,
    lost_starter,
    ended_from_outside,
    hung,
    # Ranks that died or left, before the time limit that the others then reached.
    ranks.killed_first,
    told_to_end,
    ranks.left_early,
    ranks.saved_state,
    time_limit,
    lost_job,
    # The first failure that is no consequence of another.
    ranks.own_failure,
    not_written,
    kept_waiting,
    ranks.failed_silently,
    ranks.aborted_or_told_to_end,
    lost_launcher,
    # Only consequences are known.
    symptom,
    lost,
    launcher_failed,
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
    lost,
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
