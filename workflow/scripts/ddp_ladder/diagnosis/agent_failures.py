"""Agents and launchers that could not start, died or fell silent, and nodes that were lost. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from ddp_ladder.common.files import file_text
from ddp_ladder.common.formats import count, duration, in_short, rank_numbers
from ddp_ladder.common.messages import leave_out
from ddp_ladder.common.process import SIGNALS
from ddp_ladder.diagnosis.case import Case, by_end, root_at_end
from ddp_ladder.diagnosis.correctness import NAMED
from ddp_ladder.diagnosis.hangs import TIMED_OUT
from ddp_ladder.diagnosis.rank_failures import TERMINATED, kind_of_signal, last_words, saved_state, signal_advice
from ddp_ladder.diagnosis.signatures import is_consequence
from ddp_ladder.records.raw_models import AgentEnd, SilentAgent
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.terms import runtime_key
from ddp_ladder.slurm.jobs import slurms_words

ENDING = tuple(signum.name for signum in SIGNALS)
ROUNDED_S = 1.0  # torchrun reports ends in whole seconds


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


def lost_srun(case: Case) -> Failure | None:
    """Return the failure of a run whose srun was ended by a signal that the job did not send."""
    ended = case.raw.ended
    if ended is None or ended.srun_signal is None or case.own_at_s < (ended.found_at_s or 0.0):
        return None
    return Failure(
        verdict="srun was killed",
        why=f"the run's srun on {ended.host} was ended by {ended.srun_signal}; its job step was then ended",
        next=signal_advice(ended.srun_signal, ended.host)[1],
        node=ended.host,
        at_s=ended.found_at_s,
    )


def lost_agent(case: Case) -> Failure | None:
    """Return the failure of a run of which an agent was ended by a signal, as its job saw it; on Slurm srun tells."""
    ended = case.raw.ended
    if ended is None or ended.agent_signal is None or case.own_at_s < (ended.found_at_s or 0.0):
        return None
    silent = [str(agent) for agent in case.raw.run.all_agents if agent not in case.raw.agents]
    return Failure(
        kind=kind_of_signal(ended.agent_signal),
        verdict="an agent was killed",
        why=f"the agent of {in_short(silent, NAMED)} ({ended.host}) was ended by {ended.agent_signal}, and the "
        "processes that it had started with it",
        next=signal_advice(ended.agent_signal, ended.host)[1],
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
