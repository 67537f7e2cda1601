"""The directory of an agent's heartbeats, on its own node: no rank touches a shared file system while it trains."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ddp_ladder.common.files import NotWritten, read_json, write_json
from ddp_ladder.common.process import ProcessId

MEMORY = Path("/dev/shm")
PREFIX = "ddp-ladder-"
OWNER = "agent.json"


def heartbeat_places(in_container: bool, nodes: Path) -> tuple[Path, ...]:
    """Return where it may be, the best place first. nodes: the directory of the run's agents.

    A container may have a /tmp of its own, in which nothing can be bound. It can bind the whole of /dev/shm.
    """
    return (MEMORY, nodes) if in_container else (MEMORY, Path(tempfile.gettempdir()), nodes)


def make_heartbeats(places: Sequence[Path]) -> Path:
    """Make it in the first place that can be written; remove those of agents that were killed. Raises NotWritten."""
    for place in places:
        with suppress(OSError):
            _remove_left(place)
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            try:
                write_json(made / OWNER, asdict(ProcessId.own()))
            except OSError:
                shutil.rmtree(made, ignore_errors=True)
                continue
            return made
    raise NotWritten(None, "no directory for heartbeats can be made", str(places[-1]))


def _remove_left(place: Path) -> None:
    for owner in place.glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError, ValueError, TypeError):  # it ends just now
            if owner.stat().st_uid == os.getuid() and ProcessId(**read_json(owner)).is_alive() is False:
                shutil.rmtree(owner.parent)
