"""What goes on in a chain of production at one time: its directory, as a ladder of one scale, and its links."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.messages import UserError
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.live.status import LadderState, Reader, RunState, ScaleState
from ddp_ladder.production.chain import Chain, Link, chain_directory, expected_end_s, read_chain, read_links
from ddp_ladder.production.slower import TABLE, WindowRow, last_window

Version = tuple[tuple[str, int], ...]  # the files of jobs and of starts of the script, with when they changed


@dataclass(frozen=True)
class ChainState:
    """A chain at one time."""

    chain: Chain
    state: LadderState  # of its directory: the one scale, its job and the run that goes on
    links: tuple[Link, ...]
    window: WindowRow | None  # the last one of the link that goes on

    @property
    def scale(self) -> ScaleState:
        return self.state.scales[0]

    @property
    def running(self) -> RunState | None:
        return self.scale.running

    @property
    def expected_end_s(self) -> float | None:
        """Return when the training will be complete (unix time); None if that is not known."""
        batch = self.scale.job.runs[0].global_batch
        return expected_end_s(self.chain, self.links, self.state.now_s, batch)


class ChainReader:
    """The reader of the chain in a ladder's results. ``read`` may be called at any rate."""

    def __init__(self, results: Path) -> None:
        self._directory = chain_directory(results)
        self._reader = Reader(self._directory)
        self._links: tuple[Version, tuple[Link, ...]] = ((), ())

    def read(self) -> ChainState | None:
        """Read what may have changed; return None without a chain."""
        try:
            chain = read_chain(self._directory)
        except UserError:
            return None
        state = self._reader.read()
        if state.plan is None:
            return None
        links = tuple(self._with_now(link, state) for link in self._all_links(state))
        window: WindowRow | None = None
        with suppress(OSError, ValueError):
            window = last_window(self._directory / TABLE)
        is_current = window is not None and links and links[-1].end == "running" and window.link == links[-1].number
        return ChainState(chain, state, links, window if is_current else None)

    def _all_links(self, state: LadderState) -> tuple[Link, ...]:
        """Return the links as they were when a file of theirs last changed: their records are many."""
        scale = state.scales[0]
        alive = scale.held.holder.job_id if scale.held is not None and scale.is_held else None
        version = ((alive or "", len(scale.ended)), *self._version(scale))
        if version != self._links[0] and state.plan is not None:
            self._links = version, read_links(self._directory, state.plan, state.now_s, alive)
        return self._links[1]

    def _version(self, scale: ScaleState) -> Version:
        found, run = [], RunDirectory(self._directory / "runs" / scale.job.runs[0].name)
        with suppress(OSError):
            found.append((run.slow.name, run.slow.stat().st_mtime_ns))
        for folder in (self._directory / "jobs" / scale.name, run.attempts):
            with suppress(OSError), os.scandir(folder) as entries:
                found += [(entry.name, entry.stat().st_mtime_ns) for entry in entries]
        return tuple(sorted(found))

    @staticmethod
    def _with_now(link: Link, state: LadderState) -> Link:
        """Return a link with what has changed since: the hours and the steps of the one that goes on."""
        if link.end != "running":
            return link
        scale = state.scales[0]
        hours = max(0.0, state.now_s - link.begun_at_s) / HOUR_S * link.gpus
        progress = scale.running.progress if scale.running else None
        return link.replace(hours=hours, steps=progress.step if progress else 0)
