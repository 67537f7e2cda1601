"""The directory of a preflight, results/preflight/<scale>/, and the result that its raw files give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ddp_ladder.common.files import RunDirectory, opened
from ddp_ladder.common.formats import grouped
from ddp_ladder.diagnosis.case import words_of_agent
from ddp_ladder.diagnosis.signatures import Words, of_srun, read_lines
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.preflight import collectives
from ddp_ladder.preflight.collectives import ProbeRank
from ddp_ladder.preflight.node_facts import NodeFacts
from ddp_ladder.preflight.node_findings import node_findings
from ddp_ladder.preflight.result import SCHEMA_VERSION, NodeRow, PreflightFinding, PreflightResult
from ddp_ladder.preflight.unfinished import unfinished
from ddp_ladder.records.raw_files import of_run
from ddp_ladder.records.raw_models import AgentEnd, RawFile, RunFile, read_run_file

LOG_BYTES = 4 * 1024**2  # at most, of one rank's NCCL log
ALL_LOGS_BYTES = 64 * 1024**2  # of all of them
LEAST_LOG_BYTES = 32 * 1024  # but of each: in these, NCCL names the channels of its first group
File = TypeVar("File", bound=RawFile)


class PreflightDirectory(RunDirectory):
    """The directory of a preflight: a run's, with facts of the nodes and NCCL's logs."""

    @property
    def facts(self) -> Path:
        return self.path / "facts"

    @property
    def nccl(self) -> Path:
        """Directory of NCCL's logs, one file per rank: <host>.<pid>.log."""
        return self.path / "nccl"

    def node_facts(self, node_rank: int) -> Path:
        return self.facts / f"node{node_rank}.json"


def facts_by_node(directory: PreflightDirectory, run: RunFile) -> dict[str, NodeFacts | None]:
    """Return the facts by the nodes' names in findings, in the order of the node ranks; None for a missing file."""
    return {name: _of_this_job(NodeFacts, directory.node_facts(k), run) for k, name in enumerate(node_names(run))}


def node_names(run: RunFile) -> tuple[str, ...]:
    """Return the nodes' names in findings, by node rank; simulated ones, which share a name, are numbered."""
    names = run.nodes
    return names if len(set(names)) == len(names) else tuple(f"{name} (node {k})" for k, name in enumerate(names))


def assemble_preflight(
    directory: PreflightDirectory,
    job: ScaleJob,
    times_s: tuple[float, float],
    has_collectives: bool,
    problem: PreflightFinding | None = None,
) -> PreflightResult:
    """Build the result. Raises OSError or ValueError for run.json; of other files, missing is a finding.

    times_s: begin and end, unix times. has_collectives: they were started. problem: why a part could not be started.
    """
    run = read_run_file(directory)
    spec, nodes, facts = run.spec, node_names(run), facts_by_node(directory, run)
    files = {k: _of_this_job(ProbeRank, directory.ranks / f"rank{k}.json", run) for k in range(spec.world_size)}
    ranks = {k: file for k, file in files.items() if file is not None and file.rank == k}
    on_node = grouped((rank.node_rank, rank) for rank in ranks.values())
    several = [*ranks.values()] if len(ranks) == spec.world_size > 1 else []
    sizes, pairs = collectives.size_rows(several), collectives.pair_rows([*ranks.values()], nodes)
    fitted = collectives.fit(sizes)
    logs = sorted(directory.nccl.glob("*.log"))
    part = min(LOG_BYTES, max(LEAST_LOG_BYTES, ALL_LOGS_BYTES // max(1, len(logs))))
    used = collectives.transports(_head(log, part) for log in logs)

    def findings() -> Iterator[PreflightFinding]:
        if problem:
            yield problem
            return
        yield from node_findings(spec, job, facts)
        if has_collectives:
            left = (_of_this_job(AgentEnd, directory.agent_end(agent), run) for agent in run.all_agents)
            ends = [end for end in left if end]
            yield from collectives.identity_findings(spec, ranks, nodes)
            yield from collectives.value_findings(spec, ranks, nodes)
            late = [*unfinished(run, nodes, ranks, ends, _words(directory, run, ranks, ends))]
            yield from late
            yield from collectives.transport_findings(spec, job.transport, used)
            yield from collectives.bandwidth_findings(spec, job.preflight.min_busbw_gb_per_s, sizes, pairs, nodes)
            yield from () if late else collectives.untested_pairs(pairs)

    all_findings = tuple(findings())
    severities = {finding.severity for finding in all_findings}
    return PreflightResult(
        schema_version=SCHEMA_VERSION,
        status="failed" if "error" in severities else "warned" if severities else "ok",
        scale=str(spec.scale),
        job=run.job,
        started_at_s=times_s[0],
        took_s=max(0.0, times_s[1] - times_s[0]),
        launcher=spec.launcher,
        backend=spec.backend,
        transport=used,
        nodes=tuple(_node(name, facts[name], on_node.get(k, ())) for k, name in enumerate(nodes)),
        sizes=sizes,
        pairs=pairs,
        alpha_s=fitted[0] if fitted else None,
        beta_s_per_byte=fitted[1] if fitted else None,
        findings=all_findings,
        matrix_tflop_per_s=collectives.matrix_rates([*ranks.values()]),
    )


def _node(name: str, facts: NodeFacts | None, ranks: Sequence[ProbeRank]) -> NodeRow:
    devices = Counter(rank.device.name for rank in ranks if rank.device and is_gpu(rank.device.kind))
    return NodeRow(
        node=name,
        gpus=", ".join(f"{number} x {device}" for device, number in devices.items() if device) or None,
        interface=facts.interface.name if facts else None,
        address=facts.interface.address if facts else None,
        cpus=facts.cpus if facts else None,
    )


def _of_this_job(model: type[File], path: Path, run: RunFile) -> File | None:
    with suppress(OSError, ValueError):
        return of_run(run, model, path)
    return None


def _head(log: Path, size: int) -> str:
    try:
        with opened(log) as file:
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


def _words(
    directory: PreflightDirectory, run: RunFile, ranks: dict[int, ProbeRank], ends: list[AgentEnd]
) -> Iterator[Words]:
    """Yield the words of the ranks that ended with an error, in the order of their ends, then of agents and srun."""
    for rank in sorted(ranks.values(), key=lambda rank: rank.at_s):
        if rank.error:
            yield Words("rank", rank.rank, rank.host, tuple(rank.error.splitlines()), rank.at_s)
    by_agent = {end.agent: end for end in ends}
    for agent in run.all_agents:
        yield from words_of_agent(directory, run, agent, by_agent.get(agent))
    yield from of_srun(read_lines(directory.launcher_log))
