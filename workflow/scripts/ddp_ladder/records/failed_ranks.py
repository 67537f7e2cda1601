"""Ranks that a signal ended or that vanished, as their agents recorded; a rank that lost them is never the cause."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.common.files import Agent, agents_of
from ddp_ladder.common.messages import leave_out, numbered
from ddp_ladder.records import by_signature
from ddp_ladder.records.case import EXCEPTION, Case
from ddp_ladder.records.last_words import last_words
from ddp_ladder.records.quotes import crash, with_place
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, FailedRank
from ddp_ladder.records.record import Failure
from ddp_ladder.records.words import Words, cut


class Ended(FailedRank):
    """A rank that an agent saw fail by itself, with the agent's node."""

    node_rank: int
    host: str


TERMINATED = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"}
TIMERS = {"SIGALRM", "SIGVTALRM", "SIGPROF"}  # only a process's own timer sends them
ABORTED = "SIGABRT"  # NCCL's watchdog and C++ also end a rank in this way when it has lost another
NAMED = 3


def ended(raw: RawRun) -> list[Ended]:
    """Return all ranks that an agent saw fail by themselves, in the order of time."""
    seen = [
        Ended(**dict(rank), node_rank=agent.node_rank, host=end.host)
        for agent, end in raw.agents.items()
        for rank in end.failed_ranks
    ]
    return sorted(seen, key=lambda rank: (rank.ended_at_s, rank.rank))


def killed(raw: RawRun) -> list[Ended]:
    """Return the ranks that a signal killed independently of other ranks."""
    return [rank for rank in ended(raw) if rank.signal and rank.signal not in {ABORTED, *TERMINATED}]


def aborted(raw: RawRun) -> list[Ended]:
    """Return the ranks that aborted, by themselves or because they had lost another."""
    return [rank for rank in ended(raw) if rank.signal == ABORTED]


def terminated(raw: RawRun) -> list[Ended]:
    """Return the ranks that received a termination signal, but not from their agent."""
    return [rank for rank in ended(raw) if rank.signal in TERMINATED]


def by_signal(case: Case, ranks: Sequence[Ended]) -> Failure:
    """Return the failure of a run whose first ranks to end were ended by a signal."""
    name = ranks[0].signal
    alike = [rank for rank in ranks if rank.signal == name]
    places = [f"rank {rank.rank} (node {rank.node_rank}, {rank.host})" for rank in alike[:NAMED]]
    more = f" and {len(alike) - NAMED} more" if len(alike) > NAMED else ""
    verdict, next_step = _advice(name, alike[0], case.directory.log)
    return Failure(
        verdict=verdict,
        why=f"{', '.join(places)}{more}: ended by {name}",
        next=next_step,
        rank=alike[0].rank,
        node=alike[0].host,
        at_s=alike[0].ended_at_s,
        evidence=crash([words for words in case.printed if words.node == alike[0].host]),
    )


def _advice(name: str | None, rank: Ended | AgentEnd, log: object) -> tuple[str, str]:
    """Return verdict and next for a signal."""
    if name == "SIGKILL":
        return "a rank was killed", numbered(
            (
                f"run `dmesg` or `journalctl -k` on {rank.host}: often it was the out-of-memory killer",
                "raise node.memory_mb in cluster.yaml, or use fewer loader workers or a smaller batch (workload.args)",
            )
        )
    if name == "SIGBUS":
        return "a rank crashed", numbered(
            (
                f"run `df /dev/shm` on {rank.host}: often it is full",
                "give the container more of it (software.container.args in cluster.yaml), or use fewer loader workers "
                "(workload.args)",
            )
        )
    if name in TERMINATED:
        return (
            "a rank was told to end",
            f"the ladder did not send this signal: find out what ends processes on {rank.host} (the site's limits, "
            "another shell, the script itself), and start snakemake again",
        )
    if name in TIMERS:
        return (
            "a timer of the script ended a rank",
            "find what sets it, in the script or a library (signal.alarm or signal.setitimer, often a limit on a step, "
            "a download or a barrier): give it more time, or a handler (signal.signal); then start snakemake again",
        )
    if name == ABORTED:
        return (
            "a rank aborted",
            f"read its last lines in {log}: a failed assertion of C++ or CUDA, or NCCL's watchdog after a timeout",
        )
    # In native code: an extension, a driver, a library of another build.
    return "a rank crashed", numbered(
        (
            'set PYTHONFAULTHANDLER: "1" in workload.env of config.yaml and start snakemake again: the line of Python '
            f"is then in {log}",
            "look for native libraries of another build (software.modules, software.python in cluster.yaml)",
        )
    )


def killed_first(case: Case) -> Failure | None:
    """Return the failure of ranks that a signal killed before any other rank failed by itself."""
    ranks = killed(case.raw)
    if not ranks or (case.own and case.own[0].ended_at_s < ranks[0].ended_at_s):
        return None
    return by_signal(case, ranks)


def failed_silently(case: Case) -> Failure | None:
    """Return the failure of a rank whose exit code its own end record does not have."""
    quiet = [rank for rank in ended(case.raw) if not rank.signal and not _recorded_failure(case.raw, rank.rank)]
    if not quiet:
        return None
    first = quiet[0]
    if first.error:
        return _raised(case, first, first.error)
    if named := by_signature.root_at_end(case, first.host, first.rank):
        return named
    when = "after the script's end" if first.rank in case.raw.ranks else "without an end record"
    alone = case.raw.run.agents_per_node == 1
    log = case.directory.agent_log(Agent(first.node_rank, None if alone else first.local_rank), case.raw.run.agents)
    return Failure(
        verdict="the script failed",
        why=f"rank {first.rank} (node {first.node_rank}, {first.host}): exit code {first.exit_code}, "
        f"{when}{last_words(log, first.rank)}",
        next=case.look,
        rank=first.rank,
        node=first.host,
        at_s=first.ended_at_s,
    )


def _raised(case: Case, rank: Ended, error: str) -> Failure:
    """Return the failure of a rank whose exception is in torch's error file alone."""
    words = Words("rank", rank.rank, rank.host, tuple(error.split("\n")))
    last = len(words.lines) - 1
    return Failure(
        verdict=EXCEPTION,
        why=f"rank {rank.rank}: {cut(words.lines[last])}",
        next=case.look,
        rank=rank.rank,
        node=rank.host,
        at_s=rank.ended_at_s,
        evidence=with_place(words, last),
    )


def aborted_or_told_to_end(case: Case) -> Failure | None:
    """Return the failure of ranks that aborted, else of ranks that a foreign signal told to end."""
    for ranks in (aborted(case.raw), terminated(case.raw)):
        if ranks:
            return by_signal(case, ranks)
    return None


def lost_launcher(case: Case) -> Failure | None:
    """Return the failure of a run of which a launcher was killed, often with its ranks."""
    launcher = launcher_killed(case.raw)
    if launcher is None:
        return None
    return Failure(
        verdict="a launcher was killed",
        why=f"the launcher of node {launcher.node_rank} ({launcher.host}): ended by {launcher.signal}",
        next=_advice(launcher.signal, launcher, case.directory.log)[1],
        node=launcher.host,
        at_s=launcher.ended_at_s,
    )


def _recorded_failure(raw: RawRun, rank: int) -> bool:
    """Return True if a rank's own end record names a failure; it may be missing, or older than the failure."""
    return rank in raw.ranks and raw.ranks[rank].end.failed


def launcher_killed(raw: RawRun) -> AgentEnd | None:
    """Return the end record of the first agent whose launcher a foreign signal ended; None if there is none."""
    agents = [
        end for end in raw.agents.values() if end.signal and end.signal not in TERMINATED and not end.failed_ranks
    ]
    return min(agents, key=lambda end: float(end.ended_at_s), default=None)


def lost(case: Case) -> Failure | None:
    """Return the failure of ranks that lost another rank, or were told to end, whose end no agent saw."""
    raw = case.raw
    silent = [agent for agent in agents_of(case.spec.nodes, raw.run.agents_per_node) if agent not in raw.agents]
    told = [end for end in raw.agents.values() if end.signal in TERMINATED]  # as srun does when it has lost a task
    if not case.victims and not (silent and told and len(told) == len(raw.agents)):
        return None
    if case.victims:
        first = min(case.victims, key=lambda end: float(end.ended_at_s))
        at_s, seen = first.ended_at_s, f"rank {first.rank} on {first.host} lost the others: {first.exception}"
    else:
        at_s = min(end.ended_at_s for end in told)
        seen = f"the others were then ended by {told[0].signal}"
    if silent:
        return Failure(
            verdict="a node was lost",
            why=f"{_names(raw, silent)} left no end record: its agent was killed, or the node is gone; {seen}",
            next="see what the scheduler and the node's own log say about it; if it is broken, "
            f"{leave_out()}; then start snakemake again",
            node=raw.run.nodes[silent[0].node_rank],
            at_s=at_s,
        )
    without = [str(rank) for rank in range(case.spec.world_size) if rank not in raw.ranks]
    gone = f"rank {', '.join(without[:NAMED])} left no end record; " if without else ""
    return Failure(
        verdict="the ranks lost each other",
        why=f"no rank is known to have failed by itself; {gone}{seen}",
        next=f"read the last lines of the other ranks in {case.directory.log}; if they ended well, look at the network "
        "between the nodes (network.interface in cluster.yaml), and start snakemake again",
        at_s=at_s,
    )


def _names(raw: RawRun, agents: Sequence[Agent]) -> str:
    return ", ".join(f"{agent} ({raw.run.nodes[agent.node_rank]})" for agent in agents[:NAMED])
