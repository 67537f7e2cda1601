"""Heartbeats of an agent's ranks, on its own node: their directory, and their sums for the job.

No rank touches a shared file system while it trains.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ddp_ladder_instrument.contract import HEARTBEAT

from ddp_ladder.common.files import Agent, NotWritten, RunDirectory, read_json, write_json
from ddp_ladder.common.process import ProcessId
from ddp_ladder.records.raw_models import AgentTotals, RankTotals, RunFile
from ddp_ladder.run.hangs import read_heartbeat
from ddp_ladder.run.interruption import TimedWarning

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


# --- The sums of an agent's ranks while they run: it reads their heartbeats on its node, and writes one small file.


JOIN_S = 5.0
FIRST_EVERY_S = 5.0  # until a rank trains


class TotalsWriter:
    """A thread of the agent. It also looks whether the job wants the ranks to be warned before their time."""

    def __init__(
        self, directory: RunDirectory, heartbeats: Path, run: RunFile, agent: Agent, warning: TimedWarning
    ) -> None:
        self._directory, self._run, self._agent, self._warning = directory, run, agent, warning
        self._files = {rank: heartbeats / HEARTBEAT.format(rank) for rank in run.ranks_of(agent)}
        self._has_written = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write_until_end, name="totals", daemon=True)

    @classmethod
    def started(
        cls, directory: RunDirectory, heartbeats: Path, run: RunFile, agent: Agent, warning: TimedWarning
    ) -> TotalsWriter | None:
        """Return the writer of an agent, started; None if the run wants none."""
        if run.totals_every_s is None:
            return None
        writer = cls(directory, heartbeats, run, agent, warning)
        writer._thread.start()
        return writer

    def end(self) -> None:
        """Write the last sums, and end the thread."""
        self._end.set()
        self._thread.join(JOIN_S)

    def _write_until_end(self) -> None:
        is_over, every_s = False, self._run.totals_every_s
        assert every_s is not None  # or there is no writer
        while not is_over:
            is_over = self._end.wait(every_s if self._has_written else min(every_s, FIRST_EVERY_S))
            with suppress(OSError):  # the next one may succeed
                self._write()
                if not is_over and self._directory.warn_now.exists():
                    self._warning.warn()

    def _write(self) -> None:
        ranks = []
        for rank, path in self._files.items():
            with suppress(OSError, ValueError):  # none yet, or read while it was being written
                if (totals := read_heartbeat(path).totals) is not None:
                    ranks.append(RankTotals(rank=rank, totals=totals))
        file = AgentTotals(**self._run.identity, ranks=tuple(ranks))
        write_json(self._directory.totals(self._agent), file.model_dump())
        self._has_written = bool(ranks)
