"""Limits that QOS and accounts set: time of a job, and nodes, cores, memory and GPUs (TRES)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddp_ladder.slurm_check_complaint import Complaint
from ddp_ladder.slurm_check_request import LIMITS_ENFORCED_BY, Request
from ddp_ladder.slurm_facts import Accounting, Limits, Partition

Sources = Sequence[tuple[str, Limits]]  # whose, and which


def check_limits(request: Request, partition: Partition) -> Iterator[Complaint]:
    """Limits of the job in a partition, which may have a QOS of its own."""
    accounting = request.accounting_with(LIMITS_ENFORCED_BY)
    if accounting is None:
        return
    sources = list(_sources(request, partition, accounting))
    yield from _wall_limit(request, sources)
    for name, wanted in _tres(request).items():
        yield from _tres_limit(request, name, wanted, sources)


def _sources(request: Request, partition: Partition, accounting: Accounting) -> Iterator[tuple[str, Limits]]:
    """In Slurm's order: of one kind of limit, the first that is set is the one that counts."""
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


def _wall_limit(request: Request, sources: Sources) -> Iterator[Complaint]:
    set_by = ((whose, limits.max_wall_min) for whose, limits in sources if limits.max_wall_min is not None)
    whose, most = next(set_by, ("", None))
    if most is not None and request.job.runtime_min > most:
        yield Complaint(
            request.stage_key("runtime"),
            f"longer than {whose} allows",
            f"{request.job.runtime_min} min",
            f"up to {most} min",
            f"set runtime: {most} or less, or choose another QOS in {request.key('qos')}",
        )


def _tres(request: Request) -> dict[str, int]:
    """What the job asks for in all, by Slurm's name; memory in MB."""
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


def _tres_limit(request: Request, name: str, wanted: int, sources: Sources) -> Iterator[Complaint]:
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
        yield Complaint(
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
