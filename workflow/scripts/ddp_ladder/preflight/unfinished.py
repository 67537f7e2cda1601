"""Why the ranks of the probe did not come to the end: the root cause, or else who is silent, failed or behind. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from ddp_ladder.common.formats import in_short
from ddp_ladder.common.messages import leave_out
from ddp_ladder.preflight import bisection
from ddp_ladder.preflight.directory import RawPreflight
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.raw_models import ProbeRank
from ddp_ladder.records.raw_models import FailedRank
from ddp_ladder.records.signatures import classify, cut, root_cause

LATE = "not over after"  # the start of the probe's error of a rank that its time limit ended
SLOW_START = "if the software starts slowly there, raise preflight.timeout_s"
ROUTE = "compare network.interface in cluster.yaml with the links between the nodes"


def unfinished(raw: RawPreflight) -> Iterator[PreflightFinding]:
    """Yield one finding if any rank did not come to the end."""
    world = raw.run.spec.world_size
    missing = [k for k in range(world) if k not in raw.ranks]
    behind = [rank for rank in raw.ranks.values() if rank.doing != "done"]
    if not missing and not behind:
        return
    node, what, advice = _why(raw, missing, behind)
    wanted = f"{world} rank{'s' if world > 1 else ''} that end well within preflight.timeout_s"
    yield PreflightFinding(level="fail", node=node, what=what, wanted=wanted, next=advice)


def _why(raw: RawPreflight, missing: Sequence[int], behind: Sequence[ProbeRank]) -> tuple[str | None, str, str]:
    """Return node, what happened and what to do."""
    spec = raw.run.spec
    logs = f"read the logs in results/preflight/{spec.scale}"
    for end in raw.agents:
        if end.error:
            return raw.nodes[end.node_rank], end.error, f"correct it in cluster.yaml; {logs}"
    killed = next((each for end in raw.agents for each in end.failed_ranks if _was_killed(each)), None)
    cause = root_cause(raw.words)
    # A killed rank comes before an ambiguous line, which may be of a rank that lost it.
    if cause is not None and (killed is None or cause.signature.role != "symptom"):
        steps = cause.next(stage=spec.stage, python=spec.python or "the training's Python")
        what = f"{cause.verdict}: {cause.why(stage=spec.stage)}: {cut(cause.line)}"
        return _node_of(raw, cause.words.rank, cause.words.node), what, "; ".join(steps)
    if killed is not None:
        return _node_of(raw, killed.rank, None), f"rank {killed.rank} was ended by {killed.signal}", logs
    raised = sorted((rank for rank in behind if _has_own_error(rank)), key=lambda rank: rank.at_s)
    if raised:
        first = raised[0]
        what = f"rank {first.rank} failed while {first.doing}: {cut((first.error or '').splitlines()[0])}"
        return _node_of(raw, first.rank, None), what, logs
    exited = next((each for end in raw.agents for each in end.failed_ranks if each.rank in missing), None)
    if exited is not None:
        what = f"rank {exited.rank} ended with exit code {exited.exit_code} before its first report"
        return _node_of(raw, exited.rank, None), what, logs
    if missing:
        names = in_short(list(dict.fromkeys(raw.nodes[k // spec.gpus_per_node] for k in missing)))
        ranks = f"rank{'s' if len(missing) > 1 else ''} {in_short(list(map(str, missing)))}"
        return _node_of(raw, missing[0], None), f"{ranks} on {names} did not start", f"{logs}; {SLOW_START}"
    silent = [rank for rank in behind if not rank.error]
    if silent and len(silent) < len(behind):
        ranks = f"rank{'s' if len(silent) > 1 else ''} {in_short([str(rank.rank) for rank in silent])}"
        what = f"{ranks} fell silent, last seen {silent[0].doing}"
        return _node_of(raw, silent[0].rank, None), what, f"look at that node, or {leave_out()}; {logs}"
    last = min(behind, key=lambda rank: (rank.step, rank.rank))
    all_wait = all(rank.step == last.step for rank in raw.ranks.values())
    who = "all ranks are" if all_wait and spec.world_size > 1 else f"rank {last.rank} is"
    what = f"{who} still {last.doing} after {raw.settings.timeout_s:g} s"
    advice = SLOW_START if "torch" in last.doing else ROUTE
    if not all_wait:
        return _node_of(raw, last.rank, None), what, f"{advice}; {logs}"
    if not raw.parts:
        return None, what, f"{advice}; {logs}"
    nodes = bisection.culprits(raw.nodes, raw.parts)
    advice = f"{leave_out(*nodes)}, and tell the site's support" if nodes else advice
    return in_short(list(nodes)) if nodes else None, f"{what}; {bisection.in_words(raw.parts)}", f"{advice}; {logs}"


def _was_killed(rank: FailedRank) -> bool:
    return rank.signal not in (None, signal.SIGTERM.name)


def _has_own_error(rank: ProbeRank) -> bool:
    """Return True if a rank raised an error that is not the loss of another rank, nor its time limit."""
    if not rank.error or rank.error.startswith(LATE):
        return False
    known = [classify(line) for line in rank.error.splitlines()]
    return not any(one is not None and one.role == "victim" for one in known)


def _node_of(raw: RawPreflight, rank: int | None, host: str | None) -> str | None:
    """Return the node's name in findings; None if it is not known."""
    if rank is not None:
        return raw.nodes[rank // raw.run.spec.gpus_per_node]
    found = [name for name in raw.nodes if host and name.partition(" ")[0] == host.partition(".")[0]]
    return found[0] if len(found) == 1 else None
