"""Number of nodes of a partition, and what one of them must have: GPUs, cores and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.messages import did_you_mean
from ddp_ladder.slurm_check_complaint import SMALLER_SCALES, Complaint, counted, listed
from ddp_ladder.slurm_check_request import Request
from ddp_ladder.slurm_facts import ComputeNode, Partition


def check_shape(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[Complaint]:
    """nodes: all of the partition's."""
    yield from _number(request, partition, nodes)
    if nodes:
        cores, memory_mb = [node.cpus for node in nodes], [node.memory_mb for node in nodes]
        yield from _gpus(request, partition, nodes)
        yield from _amount(request, partition, "cpus", request.job.cpus, cores, partition.max_cpus_per_node)
        yield from _amount(
            request, partition, "memory_mb", request.job.memory_mb or 0, memory_mb, partition.max_memory_per_node_mb
        )


def is_large_enough(node: ComputeNode, request: Request) -> bool:
    """Whether the node has the GPUs, cores and memory that the job asks for on each."""
    job, wanted = request.job, request.gpus_per_node()
    enough_gpus = wanted is None or node.gpus_of(wanted[0]) >= wanted[1]
    return enough_gpus and node.cpus >= job.cpus and node.memory_mb >= (job.memory_mb or 0)


def _number(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[Complaint]:
    scale = request.job.scale
    most = min(len(nodes), partition.max_nodes or len(nodes))
    if scale.nodes > most:
        limited = most < len(nodes)
        yield Complaint(
            request.stage_key("scales"),
            f"more nodes than the partition {partition.name} {'allows per job' if limited else 'has'}",
            f"{scale}: {counted(scale.nodes, 'node')}",
            f"up to {counted(most, 'node')}" + ("" if limited else f": {listed([node.name for node in nodes])}"),
            SMALLER_SCALES,
        )


def _gpus(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[Complaint]:
    if (wanted := request.gpus_per_node()) is None:
        return
    kind, count = wanted
    name = f"gpu:{kind}" if kind else "gpu"
    most = max(node.gpus_of(kind) for node in nodes)
    if most == 0:
        yield _no_such_gpus(request, partition, nodes, name)
    elif count > most:
        yield Complaint(
            request.node_key("gpus"),
            f"no node of the partition {partition.name} has that many GPUs",
            f"{request.job.scale}: {name}:{count} per node",
            f"up to {name}:{most} per node",
            f"set node.gpus: {most}, and scales with at most {most} GPUs per node in "
            f"{request.settings.experiment.file}",
        )


def _no_such_gpus(request: Request, partition: Partition, nodes: Sequence[ComputeNode], name: str) -> Complaint:
    kinds = sorted({each for node in nodes for each in node.gpus})
    there = [f"gpu:{each}" if each else "gpu" for each in kinds]
    guess = None if name == "gpu" else did_you_mean(name, there)
    return Complaint(
        request.node_key("gres"),
        f"no node of the partition {partition.name} has such GPUs",
        name,
        listed(["gpu", *there] if kinds and "" not in kinds else there) if kinds else "none: it has no GPUs",
        guess or ("use one of these" if kinds else f"choose another partition in {request.key('partition')}"),
    )


def _amount(
    request: Request, partition: Partition, key: str, wanted: int, has: Sequence[int], limit: int | None
) -> Iterator[Complaint]:
    """Cores or memory of a node. A scale with all GPUs of a node asks for all that the key says."""
    most = min(max(has), limit or max(has))
    if wanted <= most:
        return
    unit, what = ("cores", "cores") if key == "cpus" else ("MB", "memory")
    ruled = limit is not None and limit < max(has)
    whose = f"the partition {partition.name} allows" if ruled else f"any node of {partition.name} has"
    # The share of all GPUs, in place of this scale's.
    whole = getattr(request.settings.site.node, key)
    fits = most if whole is None else min(whole * most // wanted, whole)
    yield Complaint(
        request.node_key(key),
        f"more {what} per node than {whose}",
        f"{request.job.scale}: {wanted} {unit}",
        f"up to {most} {unit}",
        f"set node.{key}: {fits} or less, or choose another partition in {request.key('partition')}",
    )
