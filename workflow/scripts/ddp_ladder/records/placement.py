"""The placement of ranks: on the job's nodes, each node a host of its own, in the order of the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.diagnosis import NAMED, Diagnosis
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import Check, Failure

Nodes = Sequence[str]


def placement(spec: RunSpec, raw: RawRun) -> Diagnosis:
    """Check that agents and ranks ran where the job put them. Only the short host names are compared."""
    nodes: Nodes = raw.run.nodes
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    groups = (
        (
            "agents ran on other nodes than planned",
            [*_other_nodes(nodes, raw)],
            "start snakemake again; if it happens again, compare `srun --label hostname` with the job's nodes, and "
            "report both",
        ),
        (
            "nodes are not hosts of their own",
            [*_shared_hosts(nodes, raw)],
            "ask for as many nodes as the scale has, and check with `srun hostname` that each is a machine of its own",
        ),
        (
            "ranks ran on other hosts than their agents",
            [*_other_hosts(raw, ends)],
            "let the script stay in the processes that the launcher started; a container has to keep its node's host "
            "name (no --uts and no --hostname in software.container.args)",
        ),
        (
            "ranks do not follow the nodes",
            [] if spec.launcher == "python" else [*_out_of_order(spec, raw, ends)],
            "let the script take its rank from the environment (RANK, LOCAL_RANK), and call init_process_group without "
            "a rank of its own",
        ),
    )
    hosts = len({host_name(end.host) for end in raw.agents.values()})
    wanted = f"ranks in the order of {_list(nodes)}, {spec.gpus_per_node} on each"
    for verdict, wrong, next_step in groups:
        if wrong:
            why = "; ".join(wrong[:NAMED]) + (f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
            return Diagnosis(
                Check(name="placement", ok=False, measured=why, wanted=wanted),
                Failure(verdict=verdict, why=why, next=next_step),
            )
    ok = bool(ends) and bool(raw.agents)
    measured = f"{len(ends)} ranks in the order of {spec.nodes} nodes on {hosts} hosts" if ok else "nothing"
    return Diagnosis(
        Check(name="placement", ok=ok, measured=measured, wanted=wanted),
        Failure(verdict="placement", why=measured, next="read train.log"),
    )


def rank_order(ranks: Sequence[tuple[int | None, int]]) -> str | None:
    """Return ``by node``, or the node rank of each rank if they are in another order; None if unknown.

    ranks: node rank and local rank of each, in the order of the ranks.
    """
    known = [(node_rank, local_rank) for node_rank, local_rank in ranks if node_rank is not None]
    if not known or len(known) < len(ranks):
        return None
    return "by node" if known == sorted(known) else " ".join(str(node_rank) for node_rank, _ in known)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 * NAMED else f"{names[0]} to {names[-1]} ({len(names)} nodes)"


def host_name(host: str) -> str:
    """Return the name of a host without its domain."""
    return host.partition(".")[0].lower()


def _other_nodes(nodes: Nodes, raw: RawRun) -> Iterator[str]:
    for agent, end in raw.agents.items():
        if host_name(end.node) != host_name(nodes[agent.node_rank]):
            yield f"{agent} was {end.node}, not {nodes[agent.node_rank]}"


def _shared_hosts(nodes: Nodes, raw: RawRun) -> Iterator[str]:
    """Yield names of several hosts and hosts of several names; simulated nodes share one name and one host."""
    hosts: dict[str, dict[str, None]] = {}
    names: dict[str, dict[str, None]] = {}
    for agent, end in raw.agents.items():
        hosts.setdefault(nodes[agent.node_rank], {})[host_name(end.host)] = None
        names.setdefault(host_name(end.host), {})[nodes[agent.node_rank]] = None
    yield from (f"{_list([*several])} are one host, {host}" for host, several in names.items() if len(several) > 1)
    yield from (f"{name} is several hosts: {_list([*several])}" for name, several in hosts.items() if len(several) > 1)


def _other_hosts(raw: RawRun, ends: Sequence[RankEnd]) -> Iterator[str]:
    hosts = {host_name(end.host) for end in raw.agents.values()}
    for end in ends:
        if host_name(end.host) not in hosts:
            yield f"rank {end.rank} was on {end.host}, where no agent of the run was"


def _out_of_order(spec: RunSpec, raw: RawRun, ends: Sequence[RankEnd]) -> Iterator[str]:
    hosts = {agent.node_rank: host_name(end.host) for agent, end in raw.agents.items()}
    for end in ends:
        wanted = divmod(end.rank, spec.gpus_per_node)
        place = (node_rank_of(end, hosts), end.local_rank)
        if place != wanted:
            yield f"rank {end.rank} was {_place(raw.run.nodes, *place)}, not {_place(raw.run.nodes, *wanted)}"


def node_rank_of(end: RankEnd, hosts: Mapping[int, str]) -> int | None:
    """Return the launcher's node rank, or that of the rank's host if it differs: c10d numbers nodes in any order."""
    given: int | None = end.node_rank
    if given is None or hosts.get(given, host_name(end.host)) == host_name(end.host):
        return given
    return next((node_rank for node_rank, host in hosts.items() if host == host_name(end.host)), given)


def _place(nodes: Nodes, node_rank: int | None, local_rank: int) -> str:
    named = node_rank is not None and node_rank < len(nodes)
    node = f"node {node_rank}" + (f" ({nodes[node_rank]})" if named and node_rank is not None else "")
    return f"local rank {local_rank} of {node if node_rank is not None else 'a node that the launcher did not name'}"
