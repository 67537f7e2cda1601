"""The head's side of the nodes' meeting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ddp_ladder.preflight.mesh_wire import read, send


class Head:
    """It waits for the nodes, tells everybody the addresses, and lets nobody go before all have done their tests.

    here_until_s, done_until_s: on the monotonic clock, how long it waits for the nodes to come, and to be done.
    """

    def __init__(self, nodes: int, clock: Callable[[], float], here_until_s: float, done_until_s: float) -> None:
        self._nodes, self._clock = nodes, clock
        self._here_until_s, self._done_until_s = here_until_s, done_until_s
        self._addresses: dict[str, list[Any]] = {}  # by node rank; a key of JSON is a text
        self._done: set[str] = set()
        self._all_here, self._all_done = asyncio.Event(), asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one node's questions until it leaves."""
        rank = ""
        try:
            while question := read(await reader.readline()):
                match question.get("ask"):
                    case "time":
                        await send(writer, {"time_s": self._clock()})
                    case "addresses":
                        rank = str(question["node_rank"])
                        self._arrive(rank, question["address"])
                        await _wait(self._all_here, self._here_until_s)
                        await send(writer, {"addresses": self._addresses})
                    case "end":
                        self._leave(rank)
                        await _wait(self._all_done, self._done_until_s)
                        await send(writer, {})
        finally:
            self._leave(rank)

    def _arrive(self, rank: str, at: list[Any]) -> None:
        if self._all_here.is_set():
            return  # too late: the others have the addresses already
        self._addresses[rank] = at
        if len(self._addresses) == self._nodes:
            self._all_here.set()

    def _leave(self, rank: str) -> None:
        self._done.add(rank)
        if self._all_here.is_set() and self._done >= self._addresses.keys():
            self._all_done.set()


async def _wait(event: asyncio.Event, until_s: float) -> None:
    """Wait for the event; when the time is up, it is over for everybody."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
            await event.wait()
    event.set()
