"""Why the ranks of the probe did not come to the end: the root cause, or else who is silent, failed or behind. Pure."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddp_ladder_instrument.contract import LATE

from ddp_ladder.common.formats import count, in_short
from ddp_ladder.common.messages import Finding
from ddp_ladder.diagnosis.signatures import Words, classify, cut, root_cause
from ddp_ladder.preflight.collectives import ProbeRank
from ddp_ladder.preflight.result import error
from ddp_ladder.records.raw_models import AgentEnd, RunFile
from ddp_ladder.settings.terms import runtime_key

IN_GENERAL = (
    "if the software starts slowly there, raise preflight.timeout_s; for a program without torch, preflight: {enabled: "
    "false} in config.yaml; else compare network.interface in cluster.yaml with the links between the nodes"
)


def unfinished(
    run: RunFile, nodes: Sequence[str], ranks: Mapping[int, ProbeRank], ends: Sequence[AgentEnd], words: Iterable[Words]
) -> Iterator[Finding]:
    """Yield one finding if any rank did not come to the end. nodes: their names in findings, by node rank."""
    world = run.spec.world_size
    missing = [k for k in range(world) if k not in ranks]
    behind = [rank for rank in ranks.values() if rank.doing != "done"]
    if missing or behind:
        node, what, advice = _why(run, nodes, ranks, missing, behind, ends, [*words])
        assert run.preflight is not None
        wanted = f"{count(world, 'rank')} done within {run.preflight.timeout_s:g} s (preflight.timeout_s)"
        logs = f"read the logs in {run.run_directory}"
        yield error(what, wanted, f"{advice}; {logs}" if advice else logs, node)


def _why(
    run: RunFile,
    nodes: Sequence[str],
    ranks: Mapping[int, ProbeRank],
    missing: Sequence[int],
    behind: Sequence[ProbeRank],
    ends: Sequence[AgentEnd],
    words: Sequence[Words],
) -> tuple[str, str, str]:
    """Return node, what happened and what to do beside reading the logs; the node is empty if it is not known."""
    spec = run.spec

    def node_of(rank: int) -> str:
        return nodes[rank // spec.gpus_per_node]

    for end in ends:
        if end.error:
            return nodes[end.node_rank], end.error, "correct it in cluster.yaml"
    failed = [rank for end in ends for rank in end.failed_ranks]
    killed = next((rank for rank in failed if rank.signal not in (None, signal.SIGTERM.name)), None)
    cause = root_cause(words)
    # A killed rank comes before an ambiguous line, which may be of a rank that lost it.
    if cause is not None and (killed is None or cause.signature.role != "symptom"):
        known = {"runtime": runtime_key(spec.stage), "nodes": in_short(nodes), "python": spec.python}
        steps = cause.next(**known)
        what = f"{cause.signature.verdict}: {cause.why(**known)}: {cut(cause.line)}"
        rank, host = cause.rank, (cause.node or "").partition(".")[0]
        of_host = [name for name in nodes if host and name.partition(" ")[0] == host]
        return node_of(rank) if rank is not None else of_host[0] if len(of_host) == 1 else "", what, "; ".join(steps)
    if killed is not None:
        return node_of(killed.rank), f"rank {killed.rank} was ended by {killed.signal}", ""
    if raised := [rank for rank in behind if _has_own_error(rank)]:
        first = min(raised, key=lambda rank: rank.at_s)
        what = f"rank {first.rank} failed while {first.doing}: {cut((first.error or '').splitlines()[0])}"
        return node_of(first.rank), what, IN_GENERAL
    if missing:
        exits = {rank.rank: f" (exit code {rank.exit_code})" for rank in failed}
        first_missing = next((k for k in missing if k in exits), missing[0])
        names = in_short([f"{k} on {node_of(k)}{exits.get(k, '')}" for k in missing])
        return node_of(first_missing), f"no report came from rank {names}", IN_GENERAL
    silent = [rank for rank in behind if not rank.error]
    at = Counter((rank.step, rank.frame) for rank in ranks.values())
    last = min(silent or behind, key=lambda rank: (rank.step, at[rank.step, rank.frame]))
    together = not silent and {step for step, _ in at} == {last.step} and at[last.step, last.frame] == max(at.values())
    what = "all ranks are" if together and spec.world_size > 1 else f"rank {last.rank} is"
    what += f" still {last.doing}" + (f" in {last.frame}" if last.frame else "")
    what += last.error.removeprefix("not over") if last.error else ", and fell silent"
    return "" if together else node_of(last.rank), what, IN_GENERAL


def _has_own_error(rank: ProbeRank) -> bool:
    """Return True if a rank raised an error that is not the loss of another rank, nor its time limit."""
    if not rank.error or rank.error.startswith(LATE):
        return False
    known = filter(None, map(classify, rank.error.splitlines()))
    return all(signature.role != "victim" for signature in known)
