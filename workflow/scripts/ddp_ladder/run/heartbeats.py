"""The directory of an agent's heartbeats, on its own node: no rank touches a shared file system while it trains."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ddp_ladder.common.files import NotWritten, read_json, write_json
from ddp_ladder.common.process import ProcessId

MEMORY = "/dev/shm"
PREFIX = "ddp-ladder-"
OWNER = "agent.json"


def make_heartbeats(directory: Path) -> Path:
    """Make it in memory, else below TMPDIR, else in this directory; remove those of agents that were killed.

    Raises NotWritten if it cannot be made anywhere.
    """
    for place in (MEMORY, tempfile.gettempdir(), directory):
        with suppress(OSError):
            _remove_left(Path(place))
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            write_json(made / OWNER, asdict(ProcessId.own()))
            return made
    raise NotWritten(None, "no directory for heartbeats can be made", str(directory))


def _remove_left(place: Path) -> None:
    for owner in place.glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError, ValueError, TypeError):  # it ends just now, or is another user's
            if ProcessId(**read_json(owner)).is_alive() is False:
                shutil.rmtree(owner.parent)
