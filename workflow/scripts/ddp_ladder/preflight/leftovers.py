"""Processes of earlier runs of the ladder that are still on this node, though whoever started them is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import psutil

from ddp_ladder.common.paths import SCRIPTS
from ddp_ladder.common.redaction import redacted_arguments
from ddp_ladder.preflight.node_models import Leftover

PROGRAMS = ("agent.py", "instrument.py", "torchrun.py", "run_scale.py")
RUN_VARIABLE = "DDP_LADDER_RUN"
STARTERS = ("slurmstepd", "srun")  # a process below one of these belongs to a job that is there
ADOPTERS = ("systemd", "init")  # take over orphans, beside process 1
LONGEST_COMMAND = 200  # characters


def leftovers() -> tuple[Leftover, ...]:
    """Return the orphans of this user. A ladder that is still running, this one or another, is none."""
    return tuple(_leftovers(os.getuid()))


def _leftovers(user: int) -> Iterator[Leftover]:
    for process in psutil.process_iter(["pid", "uids", "cmdline", "ppid", "name"]):
        info = process.info
        if info["uids"] is None or info["uids"].real != user or not _is_ours(info["cmdline"] or ()):
            continue
        try:
            if _is_orphan(process):
                command = " ".join(redacted_arguments(info["cmdline"]))[:LONGEST_COMMAND]
                yield Leftover(pid=info["pid"], command=command, run=_run(process))
        except psutil.Error:
            continue  # it has ended


def _is_ours(command: list[str] | tuple[str, ...]) -> bool:
    """Return True for our programs, of this checkout or another one."""
    ours = (f"{SCRIPTS.parent.name}/{SCRIPTS.name}/{program}" for program in PROGRAMS)
    places = tuple(f"/{each}" for each in ours)
    return any(argument.endswith(places) for argument in command[1:])


def _is_orphan(process: psutil.Process) -> bool:
    """Return True if the oldest of our processes above this one, or it itself, has lost its parent."""
    above = process.parents()
    if any(parent.name() in STARTERS or parent.pid == os.getpid() for parent in above):
        return False
    oldest_parent = above[0] if above else None
    for child, parent in zip([process, *above], above, strict=False):
        if _is_ours(child.cmdline()):
            oldest_parent = parent
    if oldest_parent is None:
        return True
    # In a container process 1 may be Snakemake itself.
    adopted = oldest_parent.pid == 1 and not oldest_parent.name().startswith(("python", "snakemake"))
    return adopted or oldest_parent.name() in ADOPTERS


def _run(process: psutil.Process) -> str | None:
    try:
        environment: Mapping[str, str] = process.environ()
    except (psutil.Error, OSError):
        return None
    return environment.get(RUN_VARIABLE)
