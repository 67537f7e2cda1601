"""Which nodes are left for a job: nodelist, exclude, constraint and reservation, and which of those left are up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddp_ladder.messages import did_you_mean
from ddp_ladder.slurm_check_complaint import SMALLER_SCALES, Complaint, counted, listed
from ddp_ladder.slurm_check_node import is_large_enough
from ddp_ladder.slurm_check_request import Request
from ddp_ladder.slurm_facts import ComputeNode, Partition
from ddp_ladder.slurm_notation import host_names

Step = tuple[str, str, list[ComputeNode]]  # the deciding key, what the nodes do, and the nodes that do


def check_node_names(request: Request) -> Iterator[Complaint]:
    """nodelist and exclude, whatever the partition."""
    known = {node.name for node in request.offer.nodes}
    for key in ("nodelist", "exclude"):
        names = list(host_names(getattr(request.job.slurm, key) or ""))
        for name in names:
            if name not in known:
                yield Complaint(
                    request.key(key),
                    "there is no such node",
                    name,
                    listed([node.name for node in request.offer.nodes]),
                    did_you_mean(name, known) or "write names as `sinfo --Node` shows them",
                )
        if key == "nodelist" and len(names) > request.job.scale.nodes:
            yield Complaint(
                request.key(key),
                "more nodes than a job has: sbatch wants every one of them",
                f"{len(names)} nodes for {request.job.scale}",
                "at most as many nodes as the smallest scale that uses the list has",
                "put the list into the slurm of a stage, or name with exclude what a job must not have",
            )


def check_choice(request: Request, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[Complaint]:
    """nodes: all of the partition's."""
    fitting = [node for node in nodes if is_large_enough(node, request)]
    if missing := _missing_of_the_list(request, fitting):
        yield Complaint(
            request.key("nodelist"),
            f"not a node of the partition {partition.name} that is large enough",
            listed(missing),
            listed([node.name for node in fitting]),
            "correct the list, or choose another partition",
        )
        return
    left = fitting
    for where, words, those in _steps(request, fitting):
        names = {node.name for node in those}
        left = [node for node in left if node.name in names]
        if len(left) < request.job.scale.nodes:
            yield _too_few(request, partition, where, words, [node.name for node in left])
            return
    yield from _up(request, partition, left)


def _missing_of_the_list(request: Request, fitting: Sequence[ComputeNode]) -> list[str]:
    """Nodes that the job must have and cannot get here."""
    known = {node.name for node in request.offer.nodes}
    here = {node.name for node in fitting}
    return [name for name in host_names(request.job.slurm.nodelist or "") if name in known - here]


def _steps(request: Request, fitting: list[ComputeNode]) -> Iterator[Step]:
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
    """Nodes with the features of a constraint; alternatives and counts are judged by their words alone."""
    words = re.findall(r"[A-Za-z0-9_.:-]+", constraint)
    everyone = re.fullmatch(r"[A-Za-z0-9_.:&-]*", constraint)
    judge = all if everyone else any
    return [node for node in nodes if not words or judge(word in node.features for word in words)]


def _too_few(request: Request, partition: Partition, where: str, words: str, left: Sequence[str]) -> Complaint:
    advice = SMALLER_SCALES
    if where != request.stage_key("scales"):
        advice = f"change {where.rpartition(' ')[2]}, or leave out the scale"
    scale = request.job.scale
    return Complaint(
        where,
        f"too few nodes of the partition {partition.name} {words}",
        f"{scale}: {counted(scale.nodes, 'node')}",
        f"up to {counted(len(left), 'node')}{': ' if left else ''}{listed(left) if left else ''}",
        advice,
    )


def _up(request: Request, partition: Partition, left: Sequence[ComputeNode]) -> Iterator[Complaint]:
    # A node that a reservation keeps for maintenance runs the jobs of that reservation.
    reserved = request.job.slurm.reservation in request.offer.reservations
    up = [node for node in left if node.can_start_jobs or reserved]
    scale = request.job.scale
    if len(up) < scale.nodes:
        down = [f"{node.name} ({'+'.join(node.state)})" for node in left if node not in up]
        yield Complaint(
            request.stage_key("scales"),
            f"too few nodes of the partition {partition.name} are up now; the jobs wait",
            f"{scale}: {counted(scale.nodes, 'node')}",
            f"{counted(len(up), 'node')} now; not up: {listed(down)}",
            "nothing, if they come back soon (`sinfo --list-reasons`); else a smaller scale",
            waits=True,
        )
