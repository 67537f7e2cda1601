"""Ranks that a signal ended or that vanished, as their agents recorded; a rank that lost them is never the cause."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.common.files import Agent, RunDirectory, agents_of
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.last_words import last_words
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, FailedRank, RankEnd
from ddp_ladder.records.record import Failure


class Ended(FailedRank):
    """A rank that an agent saw fail by itself, with the agent's node."""

    node_rank: int
    host: str


TERMINATED = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"}
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


def by_signal(ranks: Sequence[Ended], log: object) -> Failure:
    """Return the failure of a run whose first ranks to end were ended by a signal."""
    name = ranks[0].signal
    alike = [rank for rank in ranks if rank.signal == name]
    places = [f"rank {rank.rank} (node {rank.node_rank}, {rank.host})" for rank in alike[:NAMED]]
    more = f" and {len(alike) - NAMED} more" if len(alike) > NAMED else ""
    verdict, next_step = _advice(name, alike[0], log)
    return Failure(verdict=verdict, why=f"{', '.join(places)}{more}: ended by {name}", next=next_step)


def _advice(name: str | None, rank: Ended | AgentEnd, log: object) -> tuple[str, str]:
    """Return verdict and next for a signal."""
    if name == "SIGKILL":
        return (
            "a rank was killed",
            f"often the out-of-memory killer: see `dmesg` or `journalctl -k` on {rank.host}; raise "
            "node.memory_mb in cluster.yaml, use fewer loader workers or a smaller batch, and start snakemake again",
        )
    if name == "SIGBUS":
        return (
            "a rank crashed",
            f"often /dev/shm is full: see `df /dev/shm` on {rank.host}; give the node or the container more, "
            "or use fewer loader workers; then start snakemake again",
        )
    if name in TERMINATED:
        return (
            "a rank was told to end",
            f"the ladder did not send this signal: find out what ends processes on {rank.host} (the site's limits, "
            "another shell, the script itself), and start snakemake again",
        )
    if name == ABORTED:
        return (
            "a rank aborted",
            f"read its last lines in {log}: a failed assertion of C++ or CUDA, or NCCL's watchdog after a timeout",
        )
    return (
        "a rank crashed",
        "it crashed in native code (an extension, a driver, a library of another build): set PYTHONFAULTHANDLER: "
        f'"1" in workload.env of config.yaml to have the line of Python in {log}, and start snakemake again',
    )


def gone(spec: RunSpec, raw: RawRun, victims: Sequence[RankEnd], directory: RunDirectory) -> Failure | None:
    """Return the failure of a run in which no rank recorded a failure of its own; None if no rank vanished.

    victims: end records of the ranks that only lost another.
    """
    log = directory.log
    quiet = [rank for rank in ended(raw) if not rank.signal and not _recorded_failure(raw, rank.rank)]
    if quiet:
        first = quiet[0]
        when = "after the script's end" if first.rank in raw.ranks else "without an end record"
        return Failure(
            verdict="the script failed",
            why=f"rank {first.rank} (node {first.node_rank}, {first.host}): exit code {first.exit_code}, "
            f"{when}{last_words(directory, raw.run, first)}",
            next=f"read {log}, fix the cause, and start snakemake again: only failed runs are repeated",
        )
    for ranks in (aborted(raw), terminated(raw)):
        if ranks:
            return by_signal(ranks, log)
    launcher = launcher_killed(raw)
    if launcher is not None and victims:
        return Failure(
            verdict="a launcher was killed",
            why=f"the launcher of node {launcher.node_rank} ({launcher.host}): ended by {launcher.signal}",
            next=_advice(launcher.signal, launcher, log)[1],
        )
    return lost(spec, raw, victims, log) if victims else None


def _recorded_failure(raw: RawRun, rank: int) -> bool:
    """Return True if a rank's own end record names a failure; it may be missing, or older than the failure."""
    return rank in raw.ranks and raw.ranks[rank].end.failed


def launcher_killed(raw: RawRun) -> AgentEnd | None:
    """Return the end record of the first agent whose launcher a foreign signal ended; None if there is none."""
    agents = [
        end for end in raw.agents.values() if end.signal and end.signal not in TERMINATED and not end.failed_ranks
    ]
    return min(agents, key=lambda end: float(end.ended_at_s), default=None)


def lost(spec: RunSpec, raw: RawRun, victims: Sequence[RankEnd], log: object) -> Failure:
    """Return the failure of ranks that lost another rank whose end no agent saw."""
    first = min(victims, key=lambda end: float(end.ended_at_s))
    seen = f"rank {first.rank} on {first.host} lost the others: {first.exception}"
    silent = [agent for agent in agents_of(spec.nodes, raw.run.agents_per_node) if agent not in raw.agents]
    if silent:
        return Failure(
            verdict="a node was lost",
            why=f"{_names(raw, silent)} left no end record: its agent was killed, or the node is gone; {seen}",
            next="see what the scheduler and the node's own log say about it; if it is broken, name it in "
            "slurm.exclude in cluster.yaml; then start snakemake again",
        )
    without = [str(rank) for rank in range(spec.world_size) if rank not in raw.ranks]
    gone = f"rank {', '.join(without[:NAMED])} left no end record; " if without else ""
    return Failure(
        verdict="the ranks lost each other",
        why=f"no rank is known to have failed by itself; {gone}{seen}",
        next=f"read the last lines of the other ranks in {log}; if they ended well, look at the network between the "
        "nodes (network.interface in cluster.yaml), and start snakemake again",
    )


def _names(raw: RawRun, agents: Sequence[Agent]) -> str:
    return ", ".join(f"{agent} ({raw.run.nodes[agent.node_rank]})" for agent in agents[:NAMED])
