"""Checks of the nodes that a job can get in a partition: size, names, features, reservation, state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import did_you_mean
from ddp_ladder.preflight.request import SMALLER_SCALES, JobProblem, Request, listed
from ddp_ladder.slurm.facts import ComputeNode, Partition
from ddp_ladder.slurm.notation import host_names


def check_shape(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[JobProblem]:
    """Check the number and the size of nodes. nodes: all of the partition's."""
    yield from _number(request, partition, nodes)
    if nodes:
        cores, memory_mb = [node.cpus for node in nodes], [node.memory_mb for node in nodes]
        yield from _gpus(request, partition, nodes)
        yield from _amount(request, partition, "cpus", request.job.cpus, cores, partition.max_cpus_per_node)
        yield from _amount(
            request, partition, "memory_mb", request.job.memory_mb or 0, memory_mb, partition.max_memory_per_node_mb
        )


def is_large_enough(node: ComputeNode, request: Request) -> bool:
    """Return True if the node has the GPUs, cores and memory that the job asks for on each node."""
    job, wanted = request.job, request.gpus_per_node()
    enough_gpus = wanted is None or node.gpus_of(wanted[0]) >= wanted[1]
    return enough_gpus and node.cpus >= job.cpus and node.memory_mb >= (job.memory_mb or 0)


def _number(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[JobProblem]:
    scale = request.job.scale
    most = min(len(nodes), partition.max_nodes or len(nodes))
    if scale.nodes > most:
        limited = most < len(nodes)
        yield JobProblem(
            request.stage_key("scales"),
            f"more nodes than the partition {partition.name} {'allows per job' if limited else 'has'}",
            f"{scale}: {count(scale.nodes, 'node')}",
            f"up to {count(most, 'node')}" + ("" if limited else f": {listed([node.name for node in nodes])}"),
            SMALLER_SCALES,
        )


def _gpus(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[JobProblem]:
    if (wanted := request.gpus_per_node()) is None:
        return
    kind, number = wanted
    name = f"gpu:{kind}" if kind else "gpu"
    most = max(node.gpus_of(kind) for node in nodes)
    if most == 0:
        yield _no_such_gpus(request, partition, nodes, name)
    elif number > most:
        yield JobProblem(
            request.node_key("gpus"),
            f"no node of the partition {partition.name} has that many GPUs",
            f"{request.job.scale}: {name}:{number} per node",
            f"up to {name}:{most} per node",
            f"set node.gpus: {most}, and scales with at most {most} GPUs per node in "
            f"{request.settings.experiment.file}",
        )


def _no_such_gpus(request: Request, partition: Partition, nodes: Sequence[ComputeNode], name: str) -> JobProblem:
    kinds = sorted({each for node in nodes for each in node.gpus})
    there = [f"gpu:{each}" if each else "gpu" for each in kinds]
    guess = None if name == "gpu" else did_you_mean(name, there)
    return JobProblem(
        request.node_key("gres"),
        f"no node of the partition {partition.name} has such GPUs",
        name,
        listed(["gpu", *there] if kinds and "" not in kinds else there) if kinds else "none: it has no GPUs",
        guess or ("use one of these" if kinds else f"choose another partition in {request.key('partition')}"),
    )


def _amount(
    request: Request, partition: Partition, key: str, wanted: int, has: Sequence[int], limit: int | None
) -> Iterator[JobProblem]:
    """Check the cores or memory of a node (key: cpus or memory_mb)."""
    most = min(max(has), limit or max(has))
    if wanted <= most:
        return
    unit, what = ("cores", "cores") if key == "cpus" else ("MB", "memory")
    ruled = limit is not None and limit < max(has)
    whose = f"the partition {partition.name} allows" if ruled else f"any node of {partition.name} has"
    # node.cpus and node.memory_mb are for all GPUs of a node; a scale gets its share.
    whole = getattr(request.settings.site.node, key)
    fits = most if whole is None else min(whole * most // wanted, whole)
    yield JobProblem(
        request.node_key(key),
        f"more {what} per node than {whose}",
        f"{request.job.scale}: {wanted} {unit}",
        f"up to {most} {unit}",
        f"set node.{key}: {fits} or less, or choose another partition in {request.key('partition')}",
    )


Filter = tuple[str, str, list[ComputeNode]]  # the key that sets it, in words, and the nodes that pass


def check_node_names(request: Request) -> Iterator[JobProblem]:
    """Check nodelist and exclude, which do not depend on the partition."""
    known = {node.name for node in request.offer.nodes}
    for key in ("nodelist", "exclude"):
        names = list(host_names(getattr(request.job.slurm, key) or ""))
        for name in names:
            if name not in known:
                yield JobProblem(
                    request.key(key),
                    "there is no such node",
                    name,
                    listed([node.name for node in request.offer.nodes]),
                    did_you_mean(name, known) or "write names as `sinfo --Node` shows them",
                )
        if key == "nodelist" and len(names) > request.job.scale.nodes:
            yield JobProblem(
                request.key(key),
                "more nodes than a job has: sbatch requires all of them",
                f"{len(names)} nodes for {request.job.scale}",
                "at most as many nodes as the smallest scale that uses the list has",
                "put the list into the slurm of a stage, or name with exclude what a job must not have",
            )


def check_choice(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[JobProblem]:
    """Check that enough nodes pass all filters. nodes: all of the partition's."""
    fitting = [node for node in nodes if is_large_enough(node, request)]
    if missing := _missing_of_the_list(request, fitting):
        yield JobProblem(
            request.key("nodelist"),
            f"not a node of the partition {partition.name} that is large enough",
            listed(missing),
            listed([node.name for node in fitting]),
            "correct the list, or choose another partition",
        )
        return
    left = fitting
    for where, words, passing in _filters(request, fitting):
        names = {node.name for node in passing}
        left = [node for node in left if node.name in names]
        if len(left) < request.job.scale.nodes:
            yield _too_few(request, partition, where, words, [node.name for node in left])
            return
    yield from _check_up(request, partition, left)


def _missing_of_the_list(request: Request, fitting: Sequence[ComputeNode]) -> list[str]:
    """Return nodes of nodelist that the job cannot get in this partition."""
    known = {node.name for node in request.offer.nodes}
    here = {node.name for node in fitting}
    return [name for name in host_names(request.job.slurm.nodelist or "") if name in known - here]


def _filters(request: Request, fitting: list[ComputeNode]) -> Iterator[Filter]:
    slurm = request.job.slurm
    excluded = set(host_names(slurm.exclude or ""))
    reservation = request.offer.reservations.get(slurm.reservation or "")
    yield request.stage_key("scales"), "large enough", fitting
    yield request.key("constraint"), f"have {slurm.constraint}", _with_features(slurm.constraint or "", fitting)
    yield request.key("exclude"), "are not excluded", [node for node in fitting if node.name not in excluded]
    yield (
        request.key("reservation"),
        f"are in the reservation {slurm.reservation}",
        [node for node in fitting if reservation is None or node.name in reservation.nodes],
    )


def _with_features(constraint: str, nodes: Sequence[ComputeNode]) -> list[ComputeNode]:
    """Return the nodes with the features of a constraint; with alternatives or counts, those with any of them."""
    words = re.findall(r"[A-Za-z0-9_.:-]+", constraint)
    quantifier = all if re.fullmatch(r"[A-Za-z0-9_.:&-]*", constraint) else any
    return [node for node in nodes if not words or quantifier(word in node.features for word in words)]


def _too_few(request: Request, partition: Partition, where: str, words: str, left: Sequence[str]) -> JobProblem:
    advice = SMALLER_SCALES
    if where != request.stage_key("scales"):
        advice = f"change {where.rpartition(' ')[2]}, or leave out the scale"
    scale = request.job.scale
    return JobProblem(
        where,
        f"too few nodes of the partition {partition.name} {words}",
        f"{scale}: {count(scale.nodes, 'node')}",
        f"up to {count(len(left), 'node')}{': ' if left else ''}{listed(left) if left else ''}",
        advice,
    )


def _check_up(request: Request, partition: Partition, left: Sequence[ComputeNode]) -> Iterator[JobProblem]:
    # A node in a maintenance reservation still runs the jobs of that reservation.
    reserved = request.job.slurm.reservation in request.offer.reservations
    up = [node for node in left if node.can_start_jobs or reserved]
    scale = request.job.scale
    if len(up) < scale.nodes:
        down = [f"{node.name} ({'+'.join(node.state)})" for node in left if node not in up]
        yield JobProblem(
            request.stage_key("scales"),
            f"too few nodes of the partition {partition.name} are up now; the jobs wait",
            f"{scale}: {count(scale.nodes, 'node')}",
            f"{count(len(up), 'node')} now; not up: {listed(down)}",
            "nothing, if they come back soon (`sinfo --list-reasons`); else a smaller scale",
            waits=True,
        )
