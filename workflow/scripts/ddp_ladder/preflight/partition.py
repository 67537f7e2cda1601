"""Checks of a job's partitions: existence, state, access, nodes and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddp_ladder.common.messages import did_you_mean
from ddp_ladder.preflight.nodes import check_choice, check_shape
from ddp_ladder.preflight.request import LIMITS_ENFORCED_BY, JobProblem, Request, listed
from ddp_ladder.slurm.facts import Accounting, Limits, Partition


def check_partitions(request: Request) -> Iterator[JobProblem]:
    """Check the partitions that the job names, or the default one, with their nodes and limits."""
    there = request.offer.partitions
    names = _names(request)
    unknown = [name for name in names if name not in there]
    if not names:
        yield JobProblem(
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


def _unknown(request: Request, name: str) -> JobProblem:
    there = sorted(request.offer.partitions)
    guess = did_you_mean(name, there) or "use one of these; `sinfo --summarize` shows what they are"
    return JobProblem(request.key("partition"), "there is no such partition", name, listed(there), guess)


def _of_the_list(request: Request, partitions: Sequence[Partition]) -> Iterator[JobProblem]:
    """Check a list of partitions: one that can start the job is enough, unless the site requires all to fit."""
    problems = {partition.name: list(_one(request, partition)) for partition in partitions}
    wrong = {name: [each for each in found if not each.waits] for name, found in problems.items()}
    fitting = [name for name in problems if not wrong[name]]
    needed = len(problems) if request.offer.all_partitions_must_fit else 1
    if len(fitting) >= needed:
        if all(problems[name] for name in fitting):
            yield from (each for name in fitting for each in problems[name])
    elif len(problems) == 1:
        yield from (each for found in wrong.values() for each in found)
    else:
        yield _none_or_not_all(request, wrong, bool(fitting))


def _none_or_not_all(request: Request, wrong: Mapping[str, Sequence[JobProblem]], some_fit: bool) -> JobProblem:
    why = [
        f"{name}: {listed([f'{each.what} ({each.found})' for each in found])}" for name, found in wrong.items() if found
    ]
    return JobProblem(
        request.key("partition"),
        "not every partition of the list takes the job, which this site requires"
        if some_fit
        else "no partition of the list takes the job",
        f"{request.job.scale} on {'; on '.join(why)}",
        "a list in which every partition takes the job" if some_fit else "a list of which one takes the job",
        "name another partition, or change what is in the brackets",
    )


def _one(request: Request, partition: Partition) -> Iterator[JobProblem]:
    yield from _state(request, partition)
    yield from _groups(request, partition)
    yield from _open_for(request, partition, "account", request.account)
    yield from _open_for(request, partition, "qos", request.qos)
    yield from _runtime(request, partition)
    nodes = [node for node in request.offer.nodes if partition.name in node.partitions]
    # If the nodes are too few or too small, a choice among them adds nothing.
    yield from list(check_shape(request, partition, nodes)) or check_choice(request, partition, nodes)
    yield from check_limits(request, partition)


def _others(request: Request) -> str:
    return listed(sorted(each.name for each in request.offer.partitions.values() if each.state == "UP"))


def _state(request: Request, partition: Partition) -> Iterator[JobProblem]:
    if partition.state == "UP":
        return
    takes_none = partition.state in ("INACTIVE", "DRAIN")
    yield JobProblem(
        request.key("partition"),
        f"the partition {partition.name} {'takes' if takes_none else 'starts'} no jobs now",
        f"state {partition.state}",
        _others(request),
        "choose another partition" + ("" if takes_none else ", or wait until the site has opened it"),
    )


def _groups(request: Request, partition: Partition) -> Iterator[JobProblem]:
    user, allowed = request.offer.user, partition.allow_groups
    where, name = request.key("partition"), partition.name
    if user == "root":
        return
    if partition.root_only:
        what = f"the partition {name} is for root alone"
        yield JobProblem(where, what, name, _others(request), "choose another partition")
    elif allowed is not None and not request.offer.groups.intersection(allowed):
        yield JobProblem(
            where,
            f"the partition {name} is for certain groups",
            f"{user} is in none of them",
            listed(allowed),
            "choose another partition, or ask to be added to a group",
        )


def _open_for(request: Request, partition: Partition, key: str, value: str | None) -> Iterator[JobProblem]:
    """Check that the partition is open for the account or the QOS (key)."""
    allowed = partition.allow_accounts if key == "account" else partition.allow_qos
    denied = partition.deny_accounts if key == "account" else partition.deny_qos
    word = "account" if key == "account" else "QOS"
    if value is None or ((allowed is None or value in allowed) and value not in denied):
        return
    yield JobProblem(
        request.key(key),
        f"the partition {partition.name} is closed for this {word}",
        value,
        listed(allowed) if allowed is not None else f"any but {listed(denied)}",
        f"use another {word}, or another partition",
    )


def _runtime(request: Request, partition: Partition) -> Iterator[JobProblem]:
    most = partition.max_time_min
    if most is not None and request.job.runtime_min > most:
        yield JobProblem(
            request.stage_key("runtime"),
            f"longer than the partition {partition.name} allows",
            f"{request.job.runtime_min} min",
            f"up to {most} min",
            f"set runtime: {most} or less, or choose another partition in {request.key('partition')}",
        )


Sources = Sequence[tuple[str, Limits]]  # the owner in words, and its limits


def check_limits(request: Request, partition: Partition) -> Iterator[JobProblem]:
    """Check the limits of accounts and QOS, also of the partition's own QOS."""
    accounting = request.accounting_with(LIMITS_ENFORCED_BY)
    if accounting is None:
        return
    sources = list(_sources(request, partition, accounting))
    yield from _wall_limit(request, sources)
    for name, wanted in _tres(request).items():
        yield from _tres_limit(request, name, wanted, sources)


def _sources(request: Request, partition: Partition, accounting: Accounting) -> Iterator[tuple[str, Limits]]:
    """Yield limits in Slurm's order: of each kind, the first that is set applies."""
    for name in (partition.qos, request.qos):
        if name is not None and name in accounting.qos:
            yield f"the QOS {name}", accounting.qos[name]
    own = [each for each in request.associations() if each.partition in ("", partition.name)]
    for each in sorted(own, key=lambda association: not association.partition):
        yield f"your share of the account {each.account}", each.limits
    above = request.account or ""
    seen: set[str] = set()
    while above in accounting.accounts and above not in seen:
        seen.add(above)
        yield f"the account {above}", accounting.accounts[above].limits
        above = accounting.accounts[above].parent


def _wall_limit(request: Request, sources: Sources) -> Iterator[JobProblem]:
    set_by = ((whose, limits.max_wall_min) for whose, limits in sources if limits.max_wall_min is not None)
    whose, most = next(set_by, ("", None))
    if most is not None and request.job.runtime_min > most:
        yield JobProblem(
            request.stage_key("runtime"),
            f"longer than {whose} allows",
            f"{request.job.runtime_min} min",
            f"up to {most} min",
            f"set runtime: {most} or less, or choose another QOS in {request.key('qos')}",
        )


def _tres(request: Request) -> dict[str, int]:
    """Return the totals that the job asks for, by Slurm's TRES names; memory in MB."""
    job, nodes = request.job, request.job.scale.nodes
    wanted = {"node": nodes, "cpu": job.cpus * nodes}
    if job.memory_mb:
        wanted["mem"] = job.memory_mb * nodes
    if gpus := request.gpus_per_node():
        kind, count = gpus
        wanted["gres/gpu"] = count * nodes
        if kind:
            wanted[f"gres/gpu:{kind}"] = count * nodes
    return wanted


def _tres_limit(request: Request, name: str, wanted: int, sources: Sources) -> Iterator[JobProblem]:
    word = {"node": "nodes", "cpu": "cores", "mem": "MB of memory"}.get(name, f"GPUs ({name})")
    kinds = (
        ("per_job", 1, "allows per job"),
        ("per_user", 1, "allows per user"),
        ("per_account", 1, "allows per account"),
        ("per_group", 1, "allows all its jobs together"),
        ("minutes_per_job", request.job.runtime_min, "allows per job, in minutes times"),
    )
    for kind, factor, words in kinds:
        whose, most = _first_limit(sources, kind, name)
        if most is None or wanted * factor <= most:
            continue
        timed = kind == "minutes_per_job"
        yield JobProblem(
            request.stage_key("runtime" if timed else "scales"),
            f"more than {whose} {words} {word}" if timed else f"more {word} than {whose} {words}",
            f"{request.job.scale}: {wanted * factor}" + (f" ({wanted} for {factor} min)" if timed else ""),
            f"up to {most}",
            f"leave out the scale{' or shorten its runtime' if timed else ''}, or choose another QOS in "
            f"{request.key('qos')}",
        )
        return


def _first_limit(sources: Sources, kind: str, name: str) -> tuple[str, int | None]:
    for whose, limits in sources:
        values: Mapping[str, int] = getattr(limits, kind)
        if name in values:
            return whose, values[name]
    return "", None
