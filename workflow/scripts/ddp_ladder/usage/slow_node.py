"""The node, or GPU, that the others wait for: shown by the ranks' own times, explained by the samples. Pure.

In DDP all ranks make their steps together, so the steps of a slow rank are as long as the others'. But it does not wait
for gradients, and the others do: its exposed communication is the shortest. Where DDP reports no times, ranks whose
steps differ show it themselves.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddp_ladder.usage.models import GpuUsage, NodeUsage, UsageFinding
from ddp_ladder.usage.ranks import RankUse
from ddp_ladder.usage.run_use import RunUse

LONGER_WORK = 0.2  # of a step: ranks that do the same work differ by less, also on a machine with other load
LEAST_DIFFERENCE_S = 0.001  # below, the difference is that of a thread that the kernel woke later
LEAST_TIMED_STEPS = 5  # DDP's times are of single steps
SLOWER_CLOCK = 0.95  # of the peers' clock
OTHER_LOAD = 0.1  # of the CPUs, more than at the peers: other processes than the training
LONGER_PART = 0.1  # of a step: a part of it that explains the difference


@dataclass(frozen=True)
class Slow:
    """A slow rank: the time of its own work in a step, and that of its peers, in seconds."""

    rank: RankUse
    own_s: float
    peers_s: float


def slow_node_findings(run: RunUse) -> Iterator[UsageFinding]:
    """Yield a finding for each node, or GPU, whose ranks the others wait for; agents on one machine are no nodes."""
    slow = slow_ranks(run.ranks)
    if run.simulated or not slow:
        return
    for node in run.nodes:
        here = [each for each in slow if each.rank.node_rank == node.node_rank]
        others = tuple(each for each in run.nodes if each is not node)
        if here and len(here) == len(run.ranks_of(node)) and others:
            yield _finding(run, node, None, here, _why_node(node, others, run, here))
        else:
            for each in here:
                gpu = next((gpu for gpu in node.used_gpus if gpu.rank == each.rank.rank), None)
                if gpu is not None or others:  # ranks on the CPUs of one node share them in any way
                    yield _finding(run, node, gpu, [each], _why_rank(gpu, run, each))


def slow_ranks(ranks: Sequence[RankUse]) -> list[Slow]:
    """Return the ranks that work longer in each step than the median of the others."""
    if len(ranks) < 2:
        return []
    steps = [rank.step_time_s for rank in ranks if rank.step_time_s]
    if len(steps) < len(ranks):
        return []
    step_s = statistics.median(steps)
    waits = [rank.exposed_comm_s for rank in ranks if rank.timed_steps >= LEAST_TIMED_STEPS]
    known = [wait for wait in waits if wait is not None]
    own_s = [max(0.0, step_s - wait) for wait in known] if len(known) == len(ranks) else steps
    found = []
    for k, rank in enumerate(ranks):
        peers_s = statistics.median(own_s[:k] + own_s[k + 1 :])
        if own_s[k] - peers_s >= max(LONGER_WORK * step_s, LEAST_DIFFERENCE_S):
            found.append(Slow(rank, own_s[k], peers_s))
    return found


def _finding(
    run: RunUse, node: NodeUsage, gpu: GpuUsage | None, slow: Sequence[Slow], why: Sequence[str]
) -> UsageFinding:
    own_ms, peers_ms = (
        1000 * statistics.median(times) for times in zip(*((s.own_s, s.peers_s) for s in slow), strict=True)
    )
    ranks = ", ".join(str(each.rank.rank) for each in slow[:3]) + (", ..." if len(slow) > 3 else "")
    place = f"GPU {gpu.index} of {node.node}" if gpu is not None else node.node
    cause = "; ".join(why) or _unexplained(slow)
    return UsageFinding(
        kind="slow node",
        what=f"{place}: slower than its peers, which wait for it in each step: its work takes {own_ms:.3g} ms, theirs "
        f"{peers_ms:.3g} ms (rank{'s' if len(slow) > 1 else ''} {ranks}); {cause}",
        node=node.node,
        gpu=gpu.index if gpu is not None else None,
        next=f"measure without it (slurm.exclude: {node.node} in cluster.yaml), and report it to the site if that is "
        "faster; else look for what the script does on this rank alone",
    )


def _unexplained(slow: Sequence[Slow]) -> str:
    if any(each.rank.own_s is None or each.rank.data_wait_s is None for each in slow):
        return "its samples do not show why"
    return "neither the forward and backward pass nor the wait for data is longer: the script does something else"


def _why_node(node: NodeUsage, others: Sequence[NodeUsage], run: RunUse, slow: Sequence[Slow]) -> list[str]:
    """Return what the samples and the ranks' times show on this node, and not on the others."""
    clocks = _clocks(node.used_gpus, [gpu for other in others for gpu in other.used_gpus])
    return [*clocks, *_other_load(node, others), *_parts(run, slow)]


def _why_rank(gpu: GpuUsage | None, run: RunUse, slow: Slow) -> list[str]:
    peers = [other for _, other in run.gpus if other is not gpu]
    return [*(_clocks([gpu], peers) if gpu is not None else []), *_parts(run, [slow])]


def _clocks(own: Sequence[GpuUsage], peers: Sequence[GpuUsage]) -> list[str]:
    here, there = _median(own, lambda gpu: gpu.sm_clock_mhz), _median(peers, lambda gpu: gpu.sm_clock_mhz)
    if here is None or there is None or here >= SLOWER_CLOCK * there:
        return []
    reasons = dict.fromkeys(reason for gpu in own for reason in gpu.throttled)
    because = f" ({', '.join(reasons)})" if reasons else ""
    return [f"SM clock {here:.0f} MHz{because}, {there:.0f} MHz elsewhere"]


def _median(gpus: Sequence[GpuUsage], figure: Callable[[GpuUsage], float | None]) -> float | None:
    known = [value for gpu in gpus if (value := figure(gpu)) is not None]
    return statistics.median(known) if known else None


def _other_load(node: NodeUsage, others: Sequence[NodeUsage]) -> list[str]:
    """Return the CPUs that processes other than the training used, if they are more than on the other nodes."""
    here, there = node.cores_of_others, [other.cores_of_others for other in others]
    known = [cores for cores in there if cores is not None]
    if here is None or not known or here - statistics.median(known) < OTHER_LOAD * node.cpus:
        return []
    return [f"other processes used {here:.1f} of its {node.cpus} CPUs, {statistics.median(known):.1f} elsewhere"]


def _parts(run: RunUse, slow: Sequence[Slow]) -> list[str]:
    """Return the parts of a step that take longer on the slow ranks."""
    ranks = {each.rank.rank for each in slow}
    peers = [rank for rank in run.ranks if rank.rank not in ranks]
    step_s = statistics.median([rank.step_time_s or 0.0 for rank in run.ranks])
    parts: dict[str, Callable[[RankUse], float | None]] = {
        "forward and backward pass": lambda rank: rank.own_s,
        "wait for data": lambda rank: rank.data_wait_s,
    }
    found = []
    for name, part in parts.items():
        here = [value for each in slow if (value := part(each.rank)) is not None]
        there = [value for rank in peers if (value := part(rank)) is not None]
        if here and there and statistics.median(here) - statistics.median(there) >= LONGER_PART * step_s:
            times = f"{1000 * statistics.median(here):.3g} ms, {1000 * statistics.median(there):.3g} ms elsewhere"
            found.append(f"{name} {times}")
    return found
