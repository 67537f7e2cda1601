"""The cpuset of this process: of its control group (version 1 or 2), and what is left to the process itself."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.common.files import file_text
from ddp_ladder.machine.model import Cpuset
from ddp_ladder.machine.threads import PROC, status
from ddp_ladder.node.numa import SYS


def own_cpuset(proc: Path = PROC, sys: Path = SYS) -> Cpuset:
    """Return it; null where the system does not show it, as in a container without /sys/fs/cgroup."""
    group = _version_1(proc, sys) or _version_2(proc, sys)
    fields = status(proc / "self/status")
    return Cpuset(
        cgroup=group[0] if group else None,
        cpus=group[1] if group else None,
        memory_nodes=group[2] if group else None,
        allowed_cpus=fields.get("Cpus_allowed_list"),
        allowed_memory_nodes=fields.get("Mems_allowed_list"),
    )


def _version_1(proc: Path, sys: Path) -> tuple[str, str, str | None] | None:
    path = next((path for controllers, path in _groups(proc) if "cpuset" in controllers.split(",")), None)
    if path is None:
        return None
    directory = sys / "fs/cgroup/cpuset" / path.lstrip("/")
    cpus = _text(directory / "cpuset.cpus")
    return None if cpus is None else (path, cpus, _text(directory / "cpuset.mems"))


def _version_2(proc: Path, sys: Path) -> tuple[str, str, str | None] | None:
    """Return the nearest group that has the controller; those below it have the same CPUs."""
    path = next((path for controllers, path in _groups(proc) if controllers == ""), None)
    if path is None:
        return None
    for group in (Path(path), *Path(path).parents):
        directory = sys / "fs/cgroup" / str(group).lstrip("/")
        cpus = _text(directory / "cpuset.cpus.effective")
        if cpus is not None:
            return str(group), cpus, _text(directory / "cpuset.mems.effective")
    return None


def _groups(proc: Path) -> list[tuple[str, str]]:
    """Return controllers and path of each of this process's groups; version 2 has no controllers there."""
    lines = (_text(proc / "self/cgroup") or "").splitlines()
    parts = [line.split(":", 2) for line in lines]
    return [(part[1], part[2]) for part in parts if len(part) == 3]


def _text(path: Path) -> str | None:
    text = file_text(path)
    return None if text is None else text.strip()
