"""The directory of a preflight, results/preflight/<scale>/, and the result that its raw files give.

Why the ranks of the probe did not come to the end: the root cause, or else who is silent, failed or behind.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddp_ladder_instrument.contract import LATE, OVER_PAIRS

from ddp_ladder.common.files import RunDirectory, opened
from ddp_ladder.common.findings import Finding, PreflightKind
from ddp_ladder.common.formats import count, grouped, hostlist, rank_numbers, short_list
from ddp_ladder.common.messages import leave_out
from ddp_ladder.diagnosis.case import words_of_agent
from ddp_ladder.diagnosis.signatures import Match, Words, classify, cut, matches, of_srun, read_lines, root_cause
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.preflight import collectives
from ddp_ladder.preflight.collectives import ProbeRank
from ddp_ladder.preflight.nodes import NodeFacts, node_findings
from ddp_ladder.preflight.result import (
    SCHEMA_VERSION,
    NodeRow,
    PreflightResult,
    error,
    most_at_once,
)
from ddp_ladder.records.raw_files import of_run_if_there
from ddp_ladder.records.raw_models import AgentEnd, RawFile, RunFile, read_run_file
from ddp_ladder.settings.terms import runtime_key

IN_GENERAL = (
    "if the software starts slowly there, raise preflight.timeout_s; for a program without torch, preflight: {enabled: "
    "false} in config.yaml; else compare network.interface in cluster.yaml with the links between the nodes"
)
BROKEN = frozenset({"gpu_hardware", "slurm_node_lost", "srun_launch_failed"})  # signatures of nodes that are broken


@dataclass(frozen=True)
class _Why:
    """What happened, on all the nodes where it did; none if they are not known."""

    what: str
    nodes: Sequence[str] = ()
    advice: str = IN_GENERAL  # beside reading the logs
    kind: PreflightKind = "cause unknown"


def unfinished(
    run: RunFile, nodes: Sequence[str], ranks: Mapping[int, ProbeRank], ends: Sequence[AgentEnd], words: Iterable[Words]
) -> Iterator[Finding]:
    """Yield one finding if any rank did not come to the end. nodes: their names in findings, by node rank."""
    world = run.spec.world_size
    missing = [k for k in range(world) if k not in ranks]
    behind = [rank for rank in ranks.values() if rank.doing != "done"]
    if missing or behind:
        why = _why(run, nodes, ranks, missing, behind, ends, [*words])
        assert run.preflight is not None
        wanted = f"{count(world, 'rank')} done within {run.preflight.timeout_s:g} s (preflight.timeout_s)"
        logs = f"read the logs in {run.run_directory}"
        advice = f"{why.advice}; {logs}" if why.advice else logs
        yield error(why.what, wanted, advice, hostlist(why.nodes), why.kind)


def _why(
    run: RunFile,
    nodes: Sequence[str],
    ranks: Mapping[int, ProbeRank],
    missing: Sequence[int],
    behind: Sequence[ProbeRank],
    ends: Sequence[AgentEnd],
    words: Sequence[Words],
) -> _Why:
    spec = run.spec

    def of(some: Iterable[int]) -> list[str]:
        return [nodes[node] for node in dict.fromkeys(rank // spec.gpus_per_node for rank in some)]

    errors = grouped((end.error, nodes[end.node_rank]) for end in ends if end.error)
    for what, names in errors.items():
        return _Why(str(what), names, "correct it in cluster.yaml", "software")
    failed = [rank for end in ends for rank in end.failed_ranks]
    killed = grouped((rank.signal, rank.rank) for rank in failed if rank.signal not in (None, signal.SIGTERM.name))
    quiet = [*missing, *(rank.rank for rank in behind if not rank.error)]
    cause, silent_nodes = root_cause(words), _silent_nodes(len(nodes), spec.gpus_per_node, quiet, ends)
    # An ambiguous line may be of a rank that lost a killed one, or waited for those of a node that is silent.
    is_ambiguous = cause is not None and cause.signature.role == "symptom"
    of_nobody = cause is not None and cause.rank is None and cause.node is None
    if cause and not (is_ambiguous and killed) and not ((is_ambiguous or of_nobody) and silent_nodes):
        return _named(run, nodes, cause, words)
    for name, several in killed.items():
        what = f"{rank_numbers(several)} {'was' if len(several) == 1 else 'were'} ended by {name}"
        return _Why(what, of(several), "")
    if raised := [rank for rank in behind if _has_own_error(rank)]:
        first = min(raised, key=lambda rank: rank.at_s)
        alike = [rank.rank for rank in raised if (rank.doing, _line(rank)) == (first.doing, _line(first))]
        what = f"{rank_numbers(alike)} failed while {first.doing}: {cut(_line(first))}"
        return _Why(what, of(alike), kind="software")
    if silent_nodes:
        own = sorted(k for k in quiet if k // spec.gpus_per_node in silent_nodes)
        on = f"{rank_numbers(own)} on {short_list(hostlist(of(own)))}"
        what = f"no report came from {on}" if {*own} <= {*missing} else f"{on} fell silent, as did their agents"
        return _Why(what, of(own), f"{leave_out(*of(own))}; {IN_GENERAL}", "node")
    if missing:
        exits = {rank.rank: rank.exit_code for rank in failed}
        code = next((exits[k] for k in missing if k in exits), None)
        own = [k for k in missing if exits.get(k) == code]
        left = "" if code is None else f", which ended with exit code {code}"
        what = f"no report came from {rank_numbers(own)} on {short_list(hostlist(of(own)))}{left}"
        return _Why(what, of(own), kind="cause unknown" if code is None else "software")
    silent = [rank for rank in behind if not rank.error]
    at = Counter((rank.step, rank.frame) for rank in ranks.values())
    last = min(silent or behind, key=lambda rank: (rank.step, at[rank.step, rank.frame]))
    together = not silent and {step for step, _ in at} == {last.step} and at[last.step, last.frame] == max(at.values())
    doing = f"still {last.doing}" + (f" in {last.frame}" if last.frame else "")
    doing += last.error.removeprefix("not over") if last.error else ", and fell silent"
    if together:
        return _Why(f"all ranks are {doing}" if spec.world_size > 1 else f"rank {last.rank} is {doing}")
    alike = [rank.rank for rank in silent or behind if (rank.step, rank.frame) == (last.step, last.frame)]
    what = f"{rank_numbers(alike)} {'is' if len(alike) == 1 else 'are'} {doing}"
    if last.doing == OVER_PAIRS and len(of(alike)) > 1:  # both ends of each pair that hangs
        return _Why(what, of(alike), f"{leave_out(*of(alike))}; {IN_GENERAL}", "link")
    return _Why(what, of(alike))


def _silent_nodes(nodes: int, per_node: int, quiet: Sequence[int], ends: Sequence[AgentEnd]) -> frozenset[int]:
    """Return the few nodes that say nothing: all ranks are quiet, and there is no end of an agent."""
    lost = Counter(k // per_node for k in quiet)
    ended = {end.node_rank for end in ends}
    silent = frozenset(node for node, ranks in lost.items() if ranks == per_node and node not in ended)
    return silent if len(silent) <= most_at_once(nodes) and len(silent) < nodes else frozenset()


def _named(run: RunFile, nodes: Sequence[str], cause: Match, words: Sequence[Words]) -> _Why:
    """Return what a line of a rank, an agent or srun names, with all nodes for which there is such a line."""
    known = {"runtime": runtime_key(run.spec.stage), "nodes": hostlist(nodes), "python": run.spec.python}
    what = f"{cause.signature.verdict}: {cause.why(**known)}: {cut(cause.line)}"
    of_host = grouped((name.partition(" ")[0], name) for name in nodes)
    places: list[str] = []
    for match in matches(words, cause.signature.role):
        if match.signature is cause.signature and match.rank is not None:
            places.append(nodes[match.rank // run.spec.gpus_per_node])
        elif match.signature is cause.signature:
            on_host = of_host.get((match.node or "").partition(".")[0], [])
            places += on_host if len(on_host) == 1 else []
    advice = "; ".join(cause.next(**known))
    return _Why(what, [*dict.fromkeys(places)], advice, "node" if cause.signature.id in BROKEN else "software")


def _line(rank: ProbeRank) -> str:
    return (rank.error or "").splitlines()[0]


def _has_own_error(rank: ProbeRank) -> bool:
    """Return True if a rank raised an error that is not the loss of another rank, nor its time limit."""
    if not rank.error or rank.error.startswith(LATE):
        return False
    known = filter(None, map(classify, rank.error.splitlines()))
    return all(signature.role != "victim" for signature in known)


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
    return {name: of_run_if_there(run, NodeFacts, directory.node_facts(k)) for k, name in enumerate(node_names(run))}


def node_names(run: RunFile) -> tuple[str, ...]:
    """Return the nodes' names in findings, by node rank; simulated ones, which share a name, are numbered."""
    names = run.nodes
    return names if len(set(names)) == len(names) else tuple(f"{name} (node {k})" for k, name in enumerate(names))


def assemble_preflight(
    directory: PreflightDirectory,
    job: ScaleJob,
    times_s: tuple[float, float],
    has_collectives: bool,
    problem: Finding | None = None,
) -> PreflightResult:
    """Build the result. Raises OSError or ValueError for run.json; of other files, missing is a finding.

    times_s: begin and end, unix times. has_collectives: they were started. problem: why a part could not be started.
    """
    run = read_run_file(directory)
    spec, nodes, facts = run.spec, node_names(run), facts_by_node(directory, run)
    files = {k: of_run_if_there(run, ProbeRank, directory.ranks / f"rank{k}.json") for k in range(spec.world_size)}
    ranks = {k: file for k, file in files.items() if file is not None and file.rank == k}
    on_node = grouped((rank.node_rank, rank) for rank in ranks.values())
    several = [*ranks.values()] if len(ranks) == spec.world_size > 1 else []
    sizes, pairs = collectives.size_rows(several), collectives.pair_rows([*ranks.values()], nodes)
    fitted = collectives.fit(sizes)
    logs = sorted(directory.nccl.glob("*.log"))
    part = min(LOG_BYTES, max(LEAST_LOG_BYTES, ALL_LOGS_BYTES // max(1, len(logs))))
    used = collectives.transports(_head(log, part) for log in logs)

    def findings() -> Iterator[Finding]:
        if problem:
            yield problem
            return
        yield from node_findings(spec, job, facts)
        if has_collectives:
            left = (of_run_if_there(run, AgentEnd, directory.agent_end(agent)) for agent in run.all_agents)
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
