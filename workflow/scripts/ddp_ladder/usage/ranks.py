"""What the ranks of a run recorded of themselves, as far as findings need it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.monitor.models import MonitorFile


@dataclass(frozen=True)
class RankUse:
    """A rank, its place and its own times. None: not known.

    gpu: the id of its GPU as torch reports it; None without one. threads: of torch's operations. cpus: that it may
    use.
    """

    rank: int
    local_rank: int
    node_rank: int
    gpu: str | None = None
    threads: int | None = None
    workers: int | None = None
    cpus: frozenset[int] | None = None
    peak_gpu_memory_bytes: int | None = None


def gpus_of_ranks(about: MonitorFile, ranks: tuple[RankUse, ...]) -> dict[int, RankUse]:
    """Return the ranks of a node by the index of their GPU: by its UUID or, if torch has none, by the local rank."""
    here = [rank for rank in ranks if rank.node_rank == about.node_rank and rank.gpu is not None]
    by_uuid = {_bare(gpu.uuid): gpu.index for gpu in about.gpus}
    found = {by_uuid[_bare(rank.gpu)]: rank for rank in here if rank.gpu and _bare(rank.gpu) in by_uuid}
    if found or not here:
        return found
    return {rank.local_rank: rank for rank in here if rank.local_rank < len(about.gpus)}


def _bare(uuid: str) -> str:
    """Return a UUID as torch writes it, without NVML's ``GPU-``."""
    return uuid.removeprefix("GPU-").lower()


def parse_cpu_set(text: str | None) -> frozenset[int] | None:
    """Return the CPUs of ``0-3,8``; None if there is no such list."""
    if not text:
        return None
    cpus: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return None
    return frozenset(cpus)
