"""Partitions of a job: whether they are there, up and open for it, and whether what they have and allow suffices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddp_ladder.messages import did_you_mean
from ddp_ladder.slurm_check_choice import check_choice
from ddp_ladder.slurm_check_complaint import Complaint, listed
from ddp_ladder.slurm_check_limits import check_limits
from ddp_ladder.slurm_check_node import check_shape
from ddp_ladder.slurm_check_request import Request
from ddp_ladder.slurm_facts import Partition


def check_partitions(request: Request) -> Iterator[Complaint]:
    """The partitions that the job names, or else the default one, and all that depends on a partition."""
    there = request.offer.partitions
    names = _names(request)
    unknown = [name for name in names if name not in there]
    if not names:
        yield Complaint(
            request.key("partition"),
            "this Slurm has no default partition",
            "null",
            listed(sorted(there)),
            "set it to one of these",
        )
    elif unknown:
        for name in unknown:
            yield _unknown(request, name)
    else:
        yield from _of_the_list(request, [there[name] for name in names])


def _names(request: Request) -> list[str]:
    wanted = request.job.slurm.partition
    if wanted:
        return wanted.split(",")
    return [partition.name for partition in request.offer.partitions.values() if partition.default]


def _unknown(request: Request, name: str) -> Complaint:
    there = sorted(request.offer.partitions)
    guess = did_you_mean(name, there) or "use one of these; `sinfo --summarize` shows what they are"
    return Complaint(request.key("partition"), "there is no such partition", name, listed(there), guess)


def _of_the_list(request: Request, partitions: Sequence[Partition]) -> Iterator[Complaint]:
    """One partition that takes the job and starts it is enough, unless the site wants all to fit."""
    told = {partition.name: list(_one(request, partition)) for partition in partitions}
    wrong = {name: [each for each in found if not each.waits] for name, found in told.items()}
    fitting = [name for name in told if not wrong[name]]
    needed = len(told) if request.offer.all_partitions_must_fit else 1
    if len(fitting) >= needed:
        if not any(not told[name] for name in fitting):
            yield from (each for name in fitting for each in told[name])
    elif len(told) == 1:
        yield from (each for found in wrong.values() for each in found)
    else:
        yield _none_or_not_all(request, wrong, bool(fitting))


def _none_or_not_all(request: Request, wrong: Mapping[str, Sequence[Complaint]], some_fit: bool) -> Complaint:
    why = [
        f"{name}: {listed([f'{each.what} ({each.found})' for each in found])}" for name, found in wrong.items() if found
    ]
    return Complaint(
        request.key("partition"),
        "not every partition of the list takes the job, as this site wants"
        if some_fit
        else "no partition of the list takes the job",
        f"{request.job.scale} on {'; on '.join(why)}",
        "a list in which every partition takes the job" if some_fit else "a list of which one takes the job",
        "name another partition, or change what is in the brackets",
    )


def _one(request: Request, partition: Partition) -> Iterator[Complaint]:
    yield from _state(request, partition)
    yield from _groups(request, partition)
    yield from _open_for(request, partition, "account", request.account)
    yield from _open_for(request, partition, "qos", request.qos)
    yield from _runtime(request, partition)
    nodes = [node for node in request.offer.nodes if partition.name in node.partitions]
    # A choice among nodes says nothing new where they are too few or too small as it is.
    yield from list(check_shape(request, partition, nodes)) or check_choice(request, partition, nodes)
    yield from check_limits(request, partition)


def _others(request: Request) -> str:
    return listed(sorted(each.name for each in request.offer.partitions.values() if each.state == "UP"))


def _state(request: Request, partition: Partition) -> Iterator[Complaint]:
    if partition.state == "UP":
        return
    takes_none = partition.state in ("INACTIVE", "DRAIN")
    yield Complaint(
        request.key("partition"),
        f"the partition {partition.name} {'takes' if takes_none else 'starts'} no jobs now",
        f"state {partition.state}",
        _others(request),
        "choose another partition" + ("" if takes_none else ", or wait until the site has opened it"),
    )


def _groups(request: Request, partition: Partition) -> Iterator[Complaint]:
    user, allowed = request.offer.user, partition.allow_groups
    where, name = request.key("partition"), partition.name
    if user == "root":
        return
    if partition.root_only:
        what = f"the partition {name} is for root alone"
        yield Complaint(where, what, name, _others(request), "choose another partition")
    elif allowed is not None and not request.offer.groups.intersection(allowed):
        yield Complaint(
            where,
            f"the partition {name} is for certain groups",
            f"{user} is in none of them",
            listed(allowed),
            "choose another partition, or ask to be added to a group",
        )


def _open_for(request: Request, partition: Partition, key: str, value: str | None) -> Iterator[Complaint]:
    """Account and QOS that the partition is open for."""
    allowed = partition.allow_accounts if key == "account" else partition.allow_qos
    denied = partition.deny_accounts if key == "account" else partition.deny_qos
    word = "account" if key == "account" else "QOS"
    if value is None or ((allowed is None or value in allowed) and value not in denied):
        return
    yield Complaint(
        request.key(key),
        f"the partition {partition.name} is closed for this {word}",
        value,
        listed(allowed) if allowed is not None else f"any but {listed(denied)}",
        f"use another {word}, or another partition",
    )


def _runtime(request: Request, partition: Partition) -> Iterator[Complaint]:
    most = partition.max_time_min
    if most is not None and request.job.runtime_min > most:
        yield Complaint(
            request.stage_key("runtime"),
            f"longer than the partition {partition.name} allows",
            f"{request.job.runtime_min} min",
            f"up to {most} min",
            f"set runtime: {most} or less, or choose another partition in {request.key('partition')}",
        )
