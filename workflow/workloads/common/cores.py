"""The CPU cores that a rank and its loader processes may use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

CHOICES = ("launcher", "own", "first")

SYSTEM = Path("/sys/devices/system/cpu")


def bind(choice: str) -> None:
    """Bind this process, and all that it starts from now on, to its choice of cores.

    launcher  nothing: torchrun's ranks share all cores of their node's task, Slurm may bind each rank that it starts
    own       this rank's share of the cores that the launcher gave all ranks of the node together, as torchrun does
    first     the first rank's share, for every rank of the node: as if they had the cores of one
    Call this before the first computation: threads that have started keep their cores.
    """
    if choice == "launcher":
        return
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    place = int(os.environ.get("LOCAL_RANK", "0")) if choice == "own" else 0
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit(f"--cores {choice}: this system cannot bind a process to cores; use --cores launcher")
    os.sched_setaffinity(0, share(os.sched_getaffinity(0), place, ranks, core_of))


def share(cpus: Collection[int], place: int, ranks: int, core: Callable[[int], int]) -> list[int]:
    """Return the share of the rank at this place (from 0) among the ranks of its node: neighbouring whole cores.

    core: a number that the hardware threads of one core have in common.
    """
    of_core: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        of_core.setdefault(core(cpu), []).append(cpu)
    in_order = sorted(of_core)
    if len(in_order) < ranks:
        raise SystemExit(
            f"--cores: {ranks} ranks on this node, but this process has {len(in_order)} cores to share among them: the "
            "launcher has bound it already (use --cores launcher), or the job needs more --cpus-per-task"
        )
    mine = in_order[place * len(in_order) // ranks : (place + 1) * len(in_order) // ranks]
    return sorted(cpu for each in mine for cpu in of_core[each])


def core_of(cpu: int) -> int:
    """Return the first hardware thread of a CPU's core; the CPU itself if the system does not tell."""
    try:
        siblings = (SYSTEM / f"cpu{cpu}/topology/thread_siblings_list").read_text()
        return int(re.split("[,-]", siblings)[0])
    except (OSError, ValueError):
        return cpu
