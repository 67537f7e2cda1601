"""The file of one rank: ranks/rank<k>.json, written again after every step of the probe."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where this rank is in the world, as its launcher says."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Read the launcher's variables; without them this is the only rank."""
        names = ("RANK", "LOCAL_RANK", "GROUP_RANK")
        rank, local_rank, node_rank = (int(environment.get(name, 0)) for name in names)
        return cls(
            rank,
            local_rank,
            node_rank,
            int(environment.get("WORLD_SIZE", 1)),
            int(environment.get("LOCAL_WORLD_SIZE", 1)),
        )


class RankFile:
    """What this rank has found so far."""

    def __init__(self, directory: Path, run: Mapping[str, Any], place: Place) -> None:
        self._lock = threading.Lock()
        self._path = directory / "ranks" / f"rank{place.rank}.json"
        self._content: dict[str, Any] = {
            "schema_version": 1,
            "spec_hash": run["spec_hash"],
            "job": run["job"],
            "rank": place.rank,
            "local_rank": place.local_rank,
            "node_rank": place.node_rank,
            "world_size": place.world_size,
            "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "step": 0,
            "error": None,
            "sizes": [],
            "pairs": [],
        }

    def now(self, doing: str) -> None:
        """Write the file; ``doing`` is what this rank does next, in words. A rank that hangs has the fewest steps."""
        with self._lock:
            self._content["doing"] = doing
            self._content["step"] += 1
            self._write()

    def failed(self, why: str) -> None:
        """Write why this rank ends here; the first reason stays."""
        with self._lock:
            self._content["error"] = self._content["error"] or why
            self._write()

    def _write(self) -> None:
        self._content["at_s"] = time.time()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(self._content), encoding="utf-8")
        os.replace(part, self._path)

    def note(self, **values: Any) -> None:
        """Keep values for the next write."""
        self._content.update(values)

    def add(self, key: str, entry: Mapping[str, Any]) -> None:
        """Append an entry to a list."""
        self._content[key].append(dict(entry))

    @property
    def content(self) -> Mapping[str, Any]:
        return self._content
