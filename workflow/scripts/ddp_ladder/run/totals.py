"""The sums of an agent's ranks while they run: it reads their heartbeats on its node, and writes one small file."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from ddp_ladder_instrument.contract import HEARTBEAT

from ddp_ladder.common.files import Agent, RunDirectory, write_json
from ddp_ladder.records.raw_models import AgentTotals, RankTotals, RunFile
from ddp_ladder.run.hangs import read_heartbeat
from ddp_ladder.run.warning import TimedWarning

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
