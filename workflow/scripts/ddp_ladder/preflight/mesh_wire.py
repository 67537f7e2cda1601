"""Connections between the nodes of a preflight: lines of JSON, a token in the greeting, every socket on one address."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ddp_ladder.common.redaction import redacted

GREETING_S = 3.0  # a node of this preflight answers at once
UNREACHABLE_S = 3.0  # routes and neighbours settle in this time; a head that is not there yet may take all the meeting
RETRY_S = 0.1
QUIET_S = 1.0
LONGEST_LINE = 2**20
SHOWN = 60  # characters of what a stranger sent

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# What ends a connection, and no more than it.
LOST = (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError)


@dataclass
class Wire:
    """The sockets of one node. address: of its interface, which all are bound to. foreign: strangers that connected."""

    token: str
    address: str
    foreign: list[str] = field(default_factory=list)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _answering: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, answer: Handler, port: int, backlog: int) -> int:
        """Answer everybody who greets with the token; return the port. Raises OSError."""

        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            if task := asyncio.current_task():
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            with suppress(*LOST, asyncio.CancelledError):
                if await self._is_ours(reader, writer):
                    await answer(reader, writer)
            self.hang_up(writer)

        server = await asyncio.start_server(
            guarded, self.address, port, family=socket.AF_INET, limit=LONGEST_LINE, backlog=backlog
        )
        self._servers.append(server)
        own: int = server.sockets[0].getsockname()[1]
        return own

    async def _is_ours(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Exchange greetings with a process that has connected; note it if it is none of this preflight's."""
        try:
            async with asyncio.timeout(GREETING_S):
                line = await reader.readline()
        except (TimeoutError, ValueError):
            line = b""
        await send(writer, {"token": self.token})
        if _token(line) == self.token:
            return True
        self.foreign.append(f"a process on {writer.get_extra_info('peername')[0]} {sent(line)}")
        return False

    async def connect(self, host: str, port: int, until_s: float) -> Streams:
        """Connect and greet. A server that is not there yet is awaited until ``until_s`` (monotonic clock).

        Raises OSError, TimeoutError, and ValueError if something else answers.
        """
        streams = await self._connect(host, port, until_s)
        line = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(GREETING_S):
                await send(streams[1], {"token": self.token})
                line = await streams[0].readline()
        if _token(line) != self.token:
            raise ValueError(f"another program listens there: it {sent(line)}")
        return streams

    async def _connect(self, host: str, port: int, until_s: float) -> Streams:
        unreachable_until_s = min(until_s, time.monotonic() + UNREACHABLE_S)
        while True:
            left_s = max(0.1, until_s - time.monotonic())
            try:
                async with asyncio.timeout(left_s):
                    streams = await asyncio.open_connection(
                        host, port, local_addr=(self.address, 0), limit=LONGEST_LINE
                    )
                self._writers.add(streams[1])
                return streams
            except TimeoutError:
                raise TimeoutError(f"no answer within {left_s:.3g} s") from None
            except ConnectionRefusedError:
                if time.monotonic() > until_s:
                    raise
            except OSError:
                if time.monotonic() > unreachable_until_s:
                    raise
            await asyncio.sleep(RETRY_S)

    def hang_up(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()

    async def quiet(self) -> None:
        """Wait a moment until all others have hung up: the side that closes first keeps the port for a minute."""
        if self._answering:
            await asyncio.wait(self._answering, timeout=QUIET_S)

    def close(self) -> None:
        """Close every socket at once."""
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()


async def send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    """Send one line."""
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def ask(streams: Streams, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a question. Raises ConnectionError if the other side is gone."""
    await send(streams[1], question)
    line = await streams[0].readline()
    if not line:
        raise ConnectionError("the head closed the connection")
    return read(line)


def read(line: bytes) -> dict[str, Any]:
    """Return a line's content; empty for no line. Raises ValueError."""
    message = json.loads(line) if line else {}
    if not isinstance(message, dict):
        raise ValueError("not a message of the preflight")
    return message


def text_of(error: BaseException) -> str:
    """Return what happened; of an error of the system its own words, which asyncio replaces."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


def sent(line: bytes) -> str:
    """Describe what a stranger sent."""
    token = _token(line)
    if token is not None:
        return f"belongs to another preflight: {token[:SHOWN]}"
    text = redacted(line.decode(errors="replace").strip())
    return f"sent {text[:SHOWN]!r}" if line else "sent nothing"


def _token(line: bytes) -> str | None:
    try:
        token = read(line).get("token")
    except ValueError:
        return None
    return token if isinstance(token, str) else None
