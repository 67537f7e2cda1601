"""The node, or GPU, that the others wait for in most steps, explained by the samples. Pure.

Which ranks hold up the others, and whether it is always the same ones, is judged in ``critical_rank``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from ddp_ladder.common.messages import leave_out
from ddp_ladder.usage.critical_rank import StepParts
from ddp_ladder.usage.models import GpuUsage, NodeUsage, UsageFinding
from ddp_ladder.usage.ranks import RankUse
from ddp_ladder.usage.run_use import RunUse

LONGER_WORK = 0.2  # of a step: ranks that do the same work differ by less, also on a machine with other load
LEAST_DIFFERENCE_S = 0.001  # below, the difference is that of a thread that the kernel woke later
SLOWER_CLOCK = 0.95  # of the peers' clock
OTHER_LOAD = 0.1  # of the CPUs, more than at the peers: other processes than the training
LONGER_PART = 0.1  # of a step: a part of it that explains the difference


def slow_node_findings(run: RunUse) -> Iterator[UsageFinding]:
    """Yield a finding for each node, or GPU, whose ranks the others wait for; agents on one machine are no nodes."""
    step = run.step
    if run.simulated or step is None or step.imbalance_kind != "persistent":
        return
    if step.imbalance_s < max(LONGER_WORK * step.step_s, LEAST_DIFFERENCE_S):
        return
    slow = [rank for rank in run.ranks if rank.rank in step.slow_ranks]
    for node in run.nodes:
        here = [rank for rank in slow if rank.node_rank == node.node_rank]
        others = tuple(each for each in run.nodes if each is not node)
        if here and len(here) == len(run.ranks_of(node)) and others:
            yield _finding(step, node, None, here, _why_node(node, others, step))
        else:
            for rank in here:
                gpu = next((gpu for gpu in node.used_gpus if gpu.rank == rank.rank), None)
                if gpu is not None or others:  # ranks on the CPUs of one node share them in any way
                    yield _finding(step, node, gpu, [rank], _why_rank(gpu, run, step))


def _finding(
    step: StepParts, node: NodeUsage, gpu: GpuUsage | None, slow: Sequence[RankUse], why: Sequence[str]
) -> UsageFinding:
    own_s = step.step_s - (step.exposed_comm_s or 0.0)
    own_ms, peers_ms = 1000 * own_s, 1000 * (own_s - step.imbalance_s)
    ranks = ", ".join(str(rank.rank) for rank in slow[:3]) + (", ..." if len(slow) > 3 else "")
    place = f"GPU {gpu.index} of {node.node}" if gpu is not None else node.node
    return UsageFinding(
        kind="slow node",
        what=f"{place}: slower than its peers, which wait for it in each step: its work takes {own_ms:.3g} ms, theirs "
        f"{peers_ms:.3g} ms (rank{'s' if len(slow) > 1 else ''} {ranks}); {'; '.join(why) or _unexplained(step)}",
        node=node.node,
        gpu=gpu.index if gpu is not None else None,
        next=f"{leave_out(node.node)}, measure again, and report it to the site if that is "
        "faster; else look for what the script does on this rank alone",
    )


def _unexplained(step: StepParts) -> str:
    if step.imbalance_compute_s is None or step.imbalance_data_s is None:
        return "its samples do not show why"
    return "neither the forward and backward pass nor the wait for data is longer: the script does something else"


def _why_node(node: NodeUsage, others: Sequence[NodeUsage], step: StepParts) -> list[str]:
    """Return what the samples and the ranks' times show on this node, and not on the others."""
    clocks = _clocks(node.used_gpus, [gpu for other in others for gpu in other.used_gpus])
    return [*clocks, *_other_load(node, others), *_parts(step)]


def _why_rank(gpu: GpuUsage | None, run: RunUse, step: StepParts) -> list[str]:
    peers = [other for _, other in run.gpus if other is not gpu]
    return [*(_clocks([gpu], peers) if gpu is not None else []), *_parts(step)]


def _clocks(own: Sequence[GpuUsage], peers: Sequence[GpuUsage]) -> list[str]:
    here, there = _median(own, lambda gpu: gpu.sm_clock_mhz), _median(peers, lambda gpu: gpu.sm_clock_mhz)
    if here is None or there is None or here >= SLOWER_CLOCK * there:
        return []
    reasons = dict.fromkeys(reason for gpu in own for reason in gpu.throttled or ())
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


def _parts(step: StepParts) -> list[str]:
    """Return the parts of a step that take longer on the slow ranks."""
    parts = {"forward and backward pass": step.imbalance_compute_s, "wait for data": step.imbalance_data_s}
    return [
        f"{name} {1000 * longer_s:.3g} ms longer than elsewhere"
        for name, longer_s in parts.items()
        if longer_s is not None and longer_s >= LONGER_PART * step.step_s
    ]
