"""The failure of a run: the first row of one ordered table that explains it. Pure.

Causes come before consequences: a rank that lost another one is never the cause.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ddp_ladder_instrument.contract import HOOK

from ddp_ladder.common.files import Agent, file_text
from ddp_ladder.common.formats import duration, in_short, rank_numbers
from ddp_ladder.common.messages import leave_out, numbered
from ddp_ladder.diagnosis.case import (
    AGAIN,
    Case,
    Ended,
    caught,
    ended_by_scheduler,
    of_runtime,
    root_at_end,
    root_printed,
    root_raised,
    symptom,
    symptom_of,
    where_raised,
)
from ddp_ladder.diagnosis.correctness import ENOUGH_STEPS, EQUALLY_MANY, NAMED, WORLD_SIZE, WRAP, Diagnosis
from ddp_ladder.diagnosis.hangs import SAME_CALLS, TIMED_OUT, hang_failure, hung, kept_waiting
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, classify, cut, is_consequence
from ddp_ladder.measuring.fingerprint import OWN_DIRECTORY_ADVICE
from ddp_ladder.node.launch import training_python
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, RankEnd, SilentAgent
from ddp_ladder.records.record import Failure, FailureKind, Remark
from ddp_ladder.slurm.jobs import slurms_words

TERMINATED = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"}
ABORTED = "SIGABRT"  # NCCL's watchdog and C++ also end a rank in this way when it has lost another
LONG_BEFORE_S = 60.0  # before the end of a run: a script is given less time than this to end in order

TOO_OLD = re.compile(r"driver on your system is too old|driver version is insufficient", re.IGNORECASE)


def _of_rank(end: RankEnd | Ended) -> dict[str, Any]:
    """Return rank, node and time of a failure."""
    return {"rank": end.rank, "node": end.host, "at_s": end.ended_at_s}


def _of_node(end: AgentEnd) -> dict[str, Any]:
    return {"node": end.host, "at_s": end.ended_at_s}


def _time(end: RankEnd | AgentEnd) -> float:
    return end.ended_at_s


def _agent(end: AgentEnd) -> Agent:
    return Agent(end.node_rank, end.local_rank)


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
        **_of_rank(end),
    )


def time_limit(case: Case) -> Failure | None:
    """Return the failure of a run that the end of its job cut short."""
    if case.outcome != "time limit":
        return None
    key, looks = f"stages.{case.raw.spec.stage}.runtime", case.raw.stalls
    found = hang_failure(looks, "") if len(looks) == len(case.raw.run.all_agents) else None
    return Failure(
        kind="time limit",
        verdict="time limit",
        why=f"the job of scale {case.raw.spec.scale} reached its {key}, or the end of the allocation that it runs in"
        + (f"; before that it stood still: {found.why}" if found else ""),
        next=(f"if it hung, {found.next.splitlines()[0]}; else " if found else "")
        + f"raise {key} or ask for a longer allocation, or shorten the run with measure.max_steps or "
        "measure.max_seconds",
        evidence=found.evidence if found else (),
    )


def not_set_up(case: Case) -> Failure | None:
    """Return the failure of a node whose processes could not be started."""
    end = min((end for end in case.raw.agents.values() if end.error), key=_time, default=None)
    if end is None:
        return None
    key = str(end.error).partition(":")[0]
    of_workload = key.startswith("workload.")
    where = "config.yaml" if of_workload else "cluster.yaml or in the variant"
    secret = "; a secret has to be in the settings files, or exported before the start" if key == "workload.env" else ""
    return Failure(
        verdict=f"{'the workload' if of_workload else 'software or network'} could not be set up",
        why=f"{_agent(end)} ({end.host}): {end.error}",
        next=f"correct {key} in {where}, and start snakemake again{secret}",
        **_of_node(end),
    )


def not_written(case: Case) -> Failure | None:
    """Return the failure of a run whose records could not be written; its training may have succeeded."""
    if not case.raw.unwritten and case.outcome != "not written":
        return None
    path = case.raw.directory.path
    why = case.raw.unwritten or (f"an agent could not write below {path}: see its message in the log",)
    return Failure(
        verdict="the records could not be written",
        why=in_short([cut(each, LONGEST_OF_SEVERAL) for each in why], NAMED, "; "),
        next=f"check space, quota and permissions of {path} (df -h {path}), and start snakemake again: the run is "
        "repeated",
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
    name, variable = accelerator.title, accelerator.visible_variable
    built = f"{name} {seen.built_for}" if seen.built_for else f"no {name}"
    if seen.built_for is None or TOO_OLD.search(seen.why):
        next_step = f"install for {python} a torch that is built for a {name} of the node's driver (pytorch.org)"
    else:
        next_step = (
            "check node.gres and slurm.partition in cluster.yaml, and that workload.env and software.setup leave "
            f"{variable} alone; else try it on that node: srun --pty {python} -c 'import torch; "
            f"torch.{accelerator.name}.init()'"
        )
    return Failure(
        verdict="torch sees no GPU",
        why=f"rank {end.rank}: torch {end.fingerprint.torch} of {python} is built for {built} and says: "
        f"{seen.why}; {accelerator.program} shows {shown}; {variable} is {seen.visible!r}",
        next=f"{next_step}; then start snakemake again",
        rank=end.rank,
        node=end.host,
    )


# Agents, and the processes of Slurm above them, that died or were stopped


def silent_agent(case: Case) -> Failure | None:
    """Return the failure of a run that its job ended because an agent gave no sign of life."""
    ended = case.raw.ended
    if ended is None or not ended.silent or ended.found_at_s is None:
        return None
    first, nodes = ended.silent[0], case.raw.run.nodes
    node = None if _on_all_nodes(ended.silent, nodes) else nodes[first.node_rank]
    look = f"see on {node} what stopped or slowed it (a signal SIGSTOP, memory, the node's own log, the file system of "
    look += f"the results); if the node is broken, {leave_out()}; then start snakemake again"
    shared = f"see whether the nodes can write below {case.raw.directory.path}; then start snakemake again"
    return _of_supervision(
        case,
        Failure(
            verdict="an agent gave no sign of life" if node else "no agent gave a sign of life",
            why=silence_in_words(ended.silent, nodes),
            next=look if node else shared,
            node=node,
            at_s=ended.found_at_s - first.silent_s,
        ),
    )


def _on_all_nodes(silent: Sequence[SilentAgent], nodes: Sequence[str]) -> bool:
    return len({one.node_rank for one in silent}) == len(nodes) > 1


def silence_in_words(silent: Sequence[SilentAgent], nodes: Sequence[str]) -> str:
    """Return why a run is ended whose agents gave no sign of life. nodes: of the run, by rank."""
    which = in_short([f"{Agent(one.node_rank, one.local_rank)} ({nodes[one.node_rank]})" for one in silent], NAMED)
    first = silent[0]
    if _on_all_nodes(silent, nodes) and first.has_begun:
        return f"no agent gave a sign of life for {duration(first.silent_s)}: the file system of the results hangs"
    if not first.has_begun:
        return f"the agent of {which} gave no sign of life within {duration(first.silent_s)} of the run's start"
    stopped = "it is stopped, or its node or its file system hangs or is cut off"
    return f"the agent of {which} gave no sign of life for {duration(first.silent_s)}: {stopped}"


def lost_daemon(case: Case) -> Failure | None:
    """Return the failure of a node whose step daemon died, which ends its agent."""
    orphans = (end for end in case.raw.agents.values() if end.orphaned and end.signal in TERMINATED)
    end = min(orphans, key=_time, default=None)
    if end is None:
        return None
    return _of_supervision(
        case,
        Failure(
            verdict="a step daemon died",
            why=f"the slurmstepd of {_agent(end)} ({end.host}), the parent of its agent, died during the run",
            next=f"read slurmd's log on {end.host}, and `dmesg` or `journalctl -k` there: often it was the "
            f"out-of-memory killer; if it recurs, {leave_out()}; then start snakemake again",
            **_of_node(end),
        ),
    )


def lost_srun(case: Case) -> Failure | None:
    """Return the failure of a run whose srun was ended by a signal that the job did not send."""
    ended = case.raw.ended
    if ended is None or ended.srun_signal is None:
        return None
    return _of_supervision(
        case,
        Failure(
            verdict="srun was killed",
            why=f"the run's srun on {ended.host} was ended by {ended.srun_signal}; its job step was then ended",
            next=_advice(ended.srun_signal, ended.host)[1],
            node=ended.host,
            at_s=ended.found_at_s,
        ),
    )


def _of_supervision(case: Case, failure: Failure) -> Failure | None:
    """Return this failure, unless a rank failed by itself before."""
    before = case.own[0].ended_at_s if case.own else math.inf
    return None if failure.at_s is not None and before < failure.at_s else failure


# Ranks that died, left or failed by themselves


def killed_first(case: Case) -> Failure | None:
    """Return the failure of ranks that a signal killed before any other rank failed by itself."""
    killed = [rank for rank in case.seen_to_fail if rank.signal and rank.signal not in {ABORTED, *TERMINATED}]
    if not killed or (case.own and case.own[0].ended_at_s < killed[0].ended_at_s):
        return None
    return _by_signal(case, killed)


def aborted_or_told_to_end(case: Case) -> Failure | None:
    """Return the failure of ranks that aborted, else of ranks that a foreign signal told to end."""
    for signals in ({ABORTED}, TERMINATED):
        if ranks := [rank for rank in case.seen_to_fail if rank.signal in signals]:
            return _by_signal(case, ranks)
    return None


def _by_signal(case: Case, ranks: Sequence[Ended]) -> Failure:
    """Return the failure of a run whose first ranks to end were ended by a signal."""
    first = ranks[0]
    alike = [rank.place for rank in ranks if rank.signal == first.signal]
    verdict, next_step = _advice(first.signal, first.host)
    return Failure(
        kind=_kind_of(first.signal),
        verdict=verdict,
        why=f"{in_short(alike, NAMED)}: ended by {first.signal}",
        next=next_step,
        evidence=of_runtime(case, first.host, first.rank) if first.signal == ABORTED else (),
        **_of_rank(first),
    )


_TOLD = (
    "a rank was told to end",
    "the ladder did not send this signal: find out what ends processes on {host} (the site's limits, another shell, a "
    "timer of the script itself), and start snakemake again",
)
_OF_SIGNALS: Mapping[str | None, tuple[str, ...]] = {
    **dict.fromkeys((*TERMINATED, "SIGALRM"), _TOLD),
    "SIGKILL": (
        "a rank was killed",
        "run `dmesg` or `journalctl -k` on {host}: often it was the out-of-memory killer",
        "raise node.memory_mb in cluster.yaml, or use fewer loader workers or a smaller batch (workload.args)",
    ),
    "SIGBUS": (
        "a rank crashed",
        "run `df /dev/shm` on {host}: often it is full",
        "give the container more of it (software.container.args in cluster.yaml), or use fewer loader workers "
        "(workload.args)",
    ),
    ABORTED: (
        "a rank aborted",
        "read its last lines in train.log: a failed assertion of C++ or CUDA, or NCCL's watchdog after a timeout",
    ),
}
_IN_NATIVE_CODE = (  # an extension, a driver, a library of another build
    "a rank crashed",
    'set PYTHONFAULTHANDLER: "1" in workload.env of config.yaml and start snakemake again: the line of Python is then '
    "in train.log",
    "look for native libraries of another build (software.modules, software.python in cluster.yaml)",
)


def _kind_of(signal: str | None) -> FailureKind | None:
    return "killed" if signal == "SIGKILL" else None


def _advice(signal: str | None, host: str) -> tuple[str, str]:
    """Return verdict and next for a signal that ended a process on this host."""
    verdict, *steps = _OF_SIGNALS.get(signal, _IN_NATIVE_CODE)
    return verdict, numbered([step.replace("{host}", host) for step in steps])


def left_early(case: Case) -> Failure | None:
    """Return the failure of ranks that ended well while others waited, or that waited for each other; else None."""
    raw, end_s = case.raw, math.inf
    raised = [end for end in raw.ends if end.exception]
    if any(end.exception for end in case.own):
        return None
    if raw.ended is not None and case.outcome == "time limit":
        # A script may save its state and end well at the time limit: then it did not leave the others.
        end_s = raw.ended.ended_at_s - LONG_BEFORE_S
    done = [end for end in raw.ends if not end.failed and end.ended_at_s < end_s]
    # NCCL's watchdog aborts a rank only after its timeout; a rank that aborts sooner has a reason of its own.
    waited_s = min(map(_time, done), default=math.inf) + LONG_BEFORE_S
    aborted = [rank for rank in case.seen_to_fail if rank.signal == ABORTED and rank.ended_at_s > waited_s]
    gave_up = {rank.rank for rank in aborted} - raw.ranks.keys()
    missing = [rank for rank in range(raw.spec.world_size) if rank not in raw.ranks and rank not in gave_up]
    if missing and case.outcome != "time limit":
        return None  # a rank without a record was killed, and is the one that the others lost
    waiting = [f"rank {end.rank} was in its step {end.steps.count + 1}" for end in raised]
    waiting += [f"rank {rank} was aborted" for rank in sorted(gave_up)]
    waiting += [f"rank {rank} had not ended" for rank in missing]
    if done and waiting:
        left = in_short([f"rank {end.rank} ended after {end.steps.count} steps" for end in done], NAMED)
        # With one gradient for all, nobody is more than a step ahead.
        is_alone = not done[0].ddp and any(done[0].steps.count > end.steps.count + 1 for end in raised)
        alone = "; its model was not wrapped in DistributedDataParallel" if is_alone else ""
        return Failure(
            verdict="a rank left the others",
            why=f"{left}; {in_short(waiting, NAMED)} and waited for it{alone}",
            next=f"on every rank, {WRAP}" if is_alone else EQUALLY_MANY,
            evidence=caught(case, done[0].host, done[0].rank),
            **_of_rank(done[0]),
        )
    if len(raised) == raw.spec.world_size > 1 and all(_waited(end.exception or "") for end in raised):
        return Failure(
            verdict="the ranks waited for each other",
            why=in_short(
                [
                    f"rank {end.rank} after {end.steps.count} steps: {cut(end.exception or '', LONGEST_OF_SEVERAL)}"
                    for end in raised
                ],
                NAMED,
                "; ",
            ),
            next=f"look in the log for the line at which each rank stood, and {SAME_CALLS}",
        )
    return None


def _waited(exception: str) -> bool:
    found = classify(exception)
    return found is not None and found.role == "victim"


def saved_state(case: Case) -> Failure | None:
    """Return the failure of a run that was cut short but saved its state (exit code 75).

    Read from the ranks, because the launcher replaces their exit codes by its own.
    """
    saved = [end for end in case.raw.ends if end.exit_code == os.EX_TEMPFAIL]
    if not saved or any(end.exception and not is_consequence(end.exception) for end in case.raw.ends):
        return None
    steps = max(end.steps.count for end in saved)
    return Failure(
        kind="saved state",
        verdict="stopped by a signal, saved its state",
        why=f"{rank_numbers([end.rank for end in saved])}: exit code {os.EX_TEMPFAIL} after {steps} steps, which says: "
        "saved, try again",
        next="start snakemake again: the run is repeated, and goes on where it was if workload.args say so",
    )


def own_failure(case: Case) -> Failure | None:
    """Return the first exception, verbatim, or exit code of a rank that failed by itself."""
    if not case.own:
        return None
    end = case.own[0]
    if not end.exception:
        return _exit_code(case, end, f"rank {end.rank}: exit code {end.exit_code}")
    return symptom_of(case, end) or Failure(
        verdict="the script raised an exception",
        why=f"rank {end.rank}: {end.exception}",
        next=case.look,
        evidence=where_raised(case, end.rank, end.exception),
        **_of_rank(end),
    )


def failed_silently(case: Case) -> Failure | None:
    """Return the failure of a rank whose exit code its own end record does not have: it is missing, or older."""
    ranks = case.raw.ranks
    quiet = (end for end in case.seen_to_fail if not (end.rank in ranks and ranks[end.rank].end.failed))
    end = next((end for end in quiet if not end.signal), None)
    if end is None:
        return None
    when = "after the script's end" if end.rank in ranks else "without an end record"
    return _exit_code(case, end, f"{end.place}: exit code {end.exit_code}, {when}")


def _exit_code(case: Case, end: RankEnd | Ended, why: str) -> Failure:
    """Return the failure of a rank that ended with an exit code, with its last line."""
    return root_at_end(case, end.host, end.rank) or Failure(
        verdict="the script failed",
        why=why + _last_words(case, end.host, end.rank),
        next=case.look,
        evidence=caught(case, end.host, end.rank),
        **_of_rank(end),
    )


def _last_words(case: Case, host: str, rank: int | None = None) -> str:
    line = case.last_line(host, rank)
    return f"; the last line that was printed: {line}" if line else ""


# Launchers and nodes that were lost


def lost_launcher(case: Case) -> Failure | None:
    """Return the failure of a run of which a launcher was killed, often with its ranks."""
    killed = [end for end in case.raw.agents.values() if end.signal and end.signal not in TERMINATED]
    end = min((end for end in killed if not end.failed_ranks), key=_time, default=None)
    if end is None:
        return None
    return Failure(
        kind=_kind_of(end.signal),
        verdict="a launcher was killed",
        why=f"the launcher of node {end.node_rank} ({end.host}): ended by {end.signal}",
        next=_advice(end.signal, end.host)[1],
        **_of_node(end),
    )


_BARRIER = re.compile(r"Rank (\d+) failed to pass monitoredBarrier")


def lost(case: Case) -> Failure | None:
    """Return the failure of ranks that lost another rank, or were told to end, whose end no agent saw."""
    raw = case.raw
    victim = min((end for end in raw.ends if end.exception), key=_time, default=None)  # none has a reason of its own
    silent = [agent for agent in raw.run.all_agents if agent not in raw.agents]
    told = [end for end in raw.agents.values() if end.signal in TERMINATED]  # as srun does when it has lost a task
    if victim is not None:
        at_s, seen = victim.ended_at_s, f"rank {victim.rank} on {victim.host} lost the others: {victim.exception}"
    elif silent and told and len(told) == len(raw.agents):
        at_s, seen = min(map(_time, told)), f"the others were then ended by {told[0].signal}"
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
        words = slurms_words(file_text(raw.directory.launcher_log) or "")
        why = "; ".join(words[-2:]) or "no agent left an end record"
        return Failure(verdict="the launcher failed", why=why, next=case.look)
    end = min((end for end in raw.agents.values() if end.failed), key=_time, default=None)
    if end is None:
        return None
    if not raw.ends and not end.signal and (named := root_at_end(case, end.host)):
        return named
    exit_of = f"ended by {end.signal}" if end.signal else f"exit code {end.exit_code}"
    why = f"{_agent(end)}: {exit_of}{_last_words(case, end.host)}"
    return Failure(verdict="the launcher failed", why=why, next=case.look, **_of_node(end))


# All processes ended well: what was measured is not what was wanted


def handled_and_exited(case: Case) -> Failure | None:
    """Return the failure of a rank that made too few steps and exited, well, in an ``except``; None if none did."""
    few = next((each for each in case.found if each.check.name == ENOUGH_STEPS and not each.check.ok), None)
    ends = (end for end in sorted(case.raw.ends, key=_time) if end.handled and not is_consequence(end.handled))
    end = next(ends, None)
    if few is None or end is None:
        return None
    return Failure(
        verdict="the script raised an exception",
        why=f"rank {end.rank}: {end.handled}, for which it ended with exit code {end.exit_code}; {few.failure.why}",
        next=f"fix the cause, and {AGAIN}; if this is the script's usual end, {few.failure.next}",
        evidence=where_raised(case, end.rank, str(end.handled)),
        **_of_rank(end),
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
    failed = [each for each in case.found if not each.check.ok]
    # Ranks of a group of their own write over each other's files, which are then missing.
    is_alone = any(end.world_size != case.raw.spec.world_size for end in case.raw.ends)
    first = next((each for each in failed if is_alone and each.check.name == WORLD_SIZE), failed[0])
    if first.check.name == ENOUGH_STEPS and (printed := caught(case)):
        fix = f"if the script ended early for the exception that it printed, fix its cause, and {AGAIN}; else"
        return first.failure.replace(evidence=printed, next=f"{fix} {first.failure.next}")
    return first.failure if first.failure.next else first.failure.replace(next=case.look)


# The table

Explanation = Callable[[Case], Failure | None]

ROWS: tuple[Explanation, ...] = (
    # Named causes.
    without_launcher,
    not_set_up,  # the other nodes wait for this one, and end with errors of their own
    no_gpu,
    root_raised,
    root_printed,
    # The scheduler.
    ended_by_scheduler,
    silent_agent,  # the ladder ended these on purpose
    lost_daemon,
    lost_srun,
    hung,
    # Ranks that died or left, before the time limit that the others then reached.
    killed_first,
    left_early,
    time_limit,
    # The first failure that is no consequence of another.
    saved_state,
    own_failure,
    not_written,
    kept_waiting,
    failed_silently,
    aborted_or_told_to_end,
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


def explain(raw: RawRun, found: Sequence[Diagnosis]) -> Failure:
    """Return why a run failed. found: its sanity checks, of which one did not pass."""
    case = Case(raw, found)
    return next(failure for row in ROWS if (failure := row(case)) is not None)


# After a training that is complete

OF_PROCESSES: tuple[Explanation, ...] = (
    root_raised,
    hung,
    killed_first,
    own_failure,
    failed_silently,
    aborted_or_told_to_end,
    lost,
)


def is_complete(raw: RawRun) -> bool:
    """Return True if nothing that failed in this run came before the end of its training.

    Every rank left its end record, and its script ran through or reached the limit (max_steps, max_seconds). Who was
    told to end may have ended early, and well, and a launcher that fails without one of its ranks is not explained by
    it: these runs are not complete.
    """
    cut_short = any(end.failed and not end.after_training for end in raw.ends)
    if not raw.has_all_ranks or raw.ended is None or cut_short:
        return False
    last_s = max(map(_time, raw.ends))
    if raw.ended.outcome == "hang":
        return all(last_s < report.found_at_s for report in raw.stalls)
    if raw.ended.outcome != "finished":
        return last_s < raw.ended.ended_at_s - LONG_BEFORE_S
    bad = [end for end in raw.agents.values() if end.failed]
    own = [end for end in bad if end.signal not in TERMINATED]
    return not bad or (bool(own) and all(end.failed_ranks for end in own))


def after_training(raw: RawRun, found: Sequence[Diagnosis]) -> Iterator[Remark]:
    """Yield what failed after a complete training, with its cause; it spoils no figure."""
    case = Case(raw, found)
    if not is_complete(raw) or not case.ended_badly:
        return
    failure = next((failure for row in OF_PROCESSES if (failure := row(case))), None)
    cause = f"{failure.verdict}: {failure.why}" if failure else f"the run ended by its {case.outcome}"
    shown = f"; it printed: {failure.evidence[-1].line.strip()}" if failure and failure.evidence else ""
    yield Remark(
        name="end",
        what=f"after its training, which is complete and counts, {cause}{shown}",
        next="nothing has to be done for the figures; what a script does at its end (a last checkpoint, a summary) "
        f"may be missing: read {raw.directory.log}",
    )
