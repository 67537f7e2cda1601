"""The raw files of a scale's preflight, as its processes wrote them: results/preflight/<scale>/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddp_ladder.common.files import RunDirectory, agents_of, read_json
from ddp_ladder.common.model import Model
from ddp_ladder.preflight.node_models import MeshFacts, NodeFacts
from ddp_ladder.preflight.raw_models import PreflightEnd, PreflightSettings, ProbeRank
from ddp_ladder.preflight.result import PartRow
from ddp_ladder.records.raw_models import AgentEnd, RawFile, RunFile, read_run_file
from ddp_ladder.records.signatures import Words, of_agent, of_srun, read_lines

LOG_BYTES = 4 * 1024**2  # of one rank's NCCL log
File = TypeVar("File", bound=RawFile)
Facts = TypeVar("Facts", bound=Model)


class PreflightDirectory(RunDirectory):
    """The directory of a preflight: a run's, with facts of the nodes and NCCL's logs."""

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def facts(self) -> Path:
        return self.path / "facts"

    @property
    def nccl(self) -> Path:
        """Directory of NCCL's logs, one file per rank: <host>.<pid>.log."""
        return self.path / "nccl"

    def part(self, number: int) -> PreflightDirectory:
        """The launch on a part of the nodes, from 1; see preflight/bisection."""
        return PreflightDirectory(self.path / "parts" / str(number))

    def node_facts(self, node_rank: int) -> Path:
        return self.facts / f"node{node_rank}.json"

    def mesh_facts(self, node_rank: int) -> Path:
        return self.facts / f"mesh{node_rank}.json"


@dataclass(frozen=True)
class RawPreflight:
    """All raw files of one preflight, by node rank and rank; what is missing or damaged is left out."""

    run: RunFile
    settings: PreflightSettings
    ended: PreflightEnd
    facts: dict[int, NodeFacts]
    mesh: dict[int, MeshFacts]
    agents: tuple[AgentEnd, ...]
    ranks: dict[int, ProbeRank]
    nccl_logs: tuple[str, ...]
    words: tuple[Words, ...]
    parts: tuple[PartRow, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return node_names(self.run)


def node_names(run: RunFile) -> tuple[str, ...]:
    """Return the nodes' names in findings, by node rank; simulated ones, which share a name, are numbered."""
    names = run.nodes
    return names if len(set(names)) == len(names) else tuple(f"{name} (node {k})" for k, name in enumerate(names))


def read_facts(directory: PreflightDirectory, run: RunFile) -> tuple[dict[int, NodeFacts], dict[int, MeshFacts]]:
    """Read the facts of the nodes and of their links, by node rank; what is missing or damaged is left out."""
    nodes = range(run.spec.nodes)
    facts = {k: one for k in nodes if (one := _facts(NodeFacts, directory.node_facts(k)))}
    mesh = {k: each for k in nodes if (each := _facts(MeshFacts, directory.mesh_facts(k)))}
    return facts, mesh


def keyed(
    run: RunFile, facts: Mapping[int, NodeFacts], mesh: Mapping[int, MeshFacts]
) -> tuple[dict[str, NodeFacts | None], dict[str, MeshFacts | None]]:
    """Return facts and links by the nodes' names in findings; None for what is missing, no links for a single node."""
    names = node_names(run)
    links = {name: mesh.get(k) for k, name in enumerate(names)} if len(names) > 1 else {}
    return {name: facts.get(k) for k, name in enumerate(names)}, links


def read_preflight(directory: PreflightDirectory) -> RawPreflight:
    """Read the files of one preflight.

    Raises OSError or ValueError for run.json, settings.json and ended.json, which its own job writes.
    """
    run = read_run_file(directory)
    settings = _own(PreflightSettings, directory.settings, run)
    ended = _own(PreflightEnd, directory.ended, run)
    facts, mesh = read_facts(directory, run)
    agents = agents_of(run.spec.nodes, run.agents_per_node)
    ends = tuple(end for agent in agents if (end := _left(AgentEnd, directory.agent_end(agent), run)))
    ranks = {
        k: rank
        for k in range(run.spec.world_size)
        if (rank := _left(ProbeRank, directory.ranks / f"rank{k}.json", run)) and rank.rank == k
    }
    logs = tuple(_head(log) for log in sorted(directory.nccl.glob("*.log")))
    return RawPreflight(
        run,
        settings,
        ended,
        facts,
        mesh,
        ends,
        ranks,
        logs,
        tuple(_words(directory, run, ranks, ends)),
        tuple(_parts(directory)),
    )


def _parts(directory: PreflightDirectory) -> Iterator[PartRow]:
    """Yield the launches on parts of the nodes, in order."""
    number = 1
    while (part := directory.part(number)).run.exists():
        yield read_part(part)
        number += 1


def read_part(directory: PreflightDirectory) -> PartRow:
    """Read the launch on a part of the nodes. Raises OSError or ValueError for a damaged run.json."""
    run = read_run_file(directory)
    ranks = (_left(ProbeRank, directory.ranks / f"rank{k}.json", run) for k in range(run.spec.world_size))
    return PartRow(nodes=run.nodes, ok=all(rank is not None and rank.doing == "done" for rank in ranks))


def port_is_taken(directory: PreflightDirectory) -> bool:
    """Return True if ranks or torchrun could not listen on the rendezvous port."""
    run = read_run_file(directory)
    ranks = (_left(ProbeRank, file, run) for file in sorted(directory.ranks.glob("rank*.json")))
    texts = [rank.error for rank in ranks if rank and rank.error]
    logs = (directory.agent_log(agent, run.agents) for agent in run.all_agents)
    return any("EADDRINUSE" in text for text in (*texts, *("\n".join(read_lines(log)) for log in logs)))


def _own(model: type[File], path: Path, run: RunFile) -> File:
    """Read a file of the job itself. Raises OSError or ValueError naming it."""
    try:
        file = model.from_json(read_json(path))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if (file.spec_hash, file.job) != (run.spec_hash, run.job):
        raise ValueError(f"{path} is of another job than {path.with_name('run.json')}")
    return file


def _left(model: type[File], path: Path, run: RunFile) -> File | None:
    try:
        return _own(model, path, run)
    except (OSError, ValueError):
        return None


def _facts(model: type[Facts], path: Path) -> Facts | None:
    try:
        return model.from_json(read_json(path))
    except (OSError, ValueError):
        return None


def _head(log: Path) -> str:
    try:
        with log.open("rb") as file:
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _words(
    directory: PreflightDirectory, run: RunFile, ranks: dict[int, ProbeRank], ends: tuple[AgentEnd, ...]
) -> Iterator[Words]:
    """Yield the words of the ranks that ended with an error, in the order of their ends, then of agents and srun."""
    for rank in sorted(ranks.values(), key=lambda each: each.at_s):
        if rank.error:
            yield Words("rank", rank.rank, rank.host, tuple(rank.error.splitlines()), rank.at_s)
    by_agent = {(end.node_rank, end.local_rank): end for end in ends}
    for agent in agents_of(run.spec.nodes, run.agents_per_node):
        ended = by_agent.get((agent.node_rank, agent.local_rank))
        is_of_rank = run.spec.gpus_per_node == 1 or agent.local_rank is not None
        number = agent.node_rank * run.spec.gpus_per_node + (agent.local_rank or 0) if is_of_rank else None
        lines = read_lines(directory.agent_log(agent, run.agents))
        yield from of_agent(lines, number, ended.host if ended else None, ended.ended_at_s if ended else None)
    yield from of_srun(read_lines(directory.launcher_log))
