"""All nodes of a scale meet at the head and test the links between them, over the chosen interface.

The head, node rank 0, serves the rendezvous port; each node, the head too, connects to it, asks for the time, gives its
address for those of all others, and then tests its links. Nothing relies on the shared directory.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddp_ladder.node.network import address, interface_towards
from ddp_ladder.preflight.mesh_head import Head
from ddp_ladder.preflight.mesh_wire import LOST, Streams, Wire, ask, text_of
from ddp_ladder.preflight.node_facts import resolved
from ddp_ladder.preflight.node_models import ClockFacts, LinkFacts, MeshFacts, NameFacts
from ddp_ladder.preflight.questions import Answer
from ddp_ladder.settings.terms import Interface

ALL_PAIRS = 32  # nodes; a larger scale tests a ring and some random pairs
RANDOM_PEERS = 4  # of each node
PAYLOAD = bytes(256 * 1024)  # larger than any MTU: that of a loopback interface is 65536
MEETING_PART, LINK_PART = 3, 6  # the whole time divided by this: for all nodes to come, and for a link
ROUND_TRIPS = 5
RESOLVERS = 16  # names that are looked up at the same time
LEAST_BACKLOG = 128
MALFORMED = (*LOST, LookupError, TypeError, AttributeError)  # errors of the network, and messages of another shape


@dataclass(frozen=True)
class Meeting:
    """What every node knows before it meets the others.

    nodes: names in the order of the node ranks. head: address and port of the run's rendezvous endpoint.
    token: the same for all nodes of this preflight, and for no other; it is compared, and no secret.
    """

    nodes: Sequence[str]
    node_rank: int
    head: tuple[str, int]
    token: str
    interface: Interface


def meet(meeting: Meeting, timeout_s: float, clock: Callable[[], float] = time.time) -> MeshFacts | None:
    """Return what this node saw of the others; None for a single node. Closes every socket, and raises nothing but
    what a signal handler raises.

    It takes no longer than timeout_s. clock: this node's, in unix time.
    """
    if len(meeting.nodes) < 2:
        return None
    names = Names(meeting.nodes)
    visit = Visit(meeting, timeout_s, clock)
    try:
        asyncio.run(visit.run())
    except MALFORMED as error:  # what this node saw until then is kept
        visit.error = text_of(error) or type(error).__name__
    return visit.facts(names.facts(visit.started_s + timeout_s))


def peers(nodes: int, node_rank: int, seed: str) -> tuple[int, ...]:
    """Return the nodes to which a node tests its link: all others, or the next one in a ring and some random ones."""
    others = [rank for rank in range(nodes) if rank != node_rank]
    if nodes <= ALL_PAIRS:
        return tuple(others)
    drawn = random.Random(f"{seed} {node_rank}").sample(others, RANDOM_PEERS)
    return tuple(dict.fromkeys(((node_rank + 1) % nodes, *drawn)))


class Names:
    """What the names of all nodes resolve to on this one."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(dict.fromkeys(names))
        self._found: dict[str, tuple[str, ...]] = {}
        parts = [self._names[first::RESOLVERS] for first in range(RESOLVERS)]
        self._asked = [Answer("names", lambda part=part: self._resolve(part)) for part in parts if part]  # type: ignore[misc]

    def _resolve(self, names: Sequence[str]) -> None:
        for name in names:
            self._found[name] = resolved(name)

    def facts(self, until_s: float) -> tuple[NameFacts, ...]:
        for asked in self._asked:
            asked.value(until_s)
        return tuple(self._fact(name, self._found.get(name)) for name in self._names)

    def _fact(self, name: str, found: tuple[str, ...] | None) -> NameFacts:
        error = "no answer in time" if found is None else None if found else "unknown name"
        return NameFacts(name=name, addresses=found or (), error=error)


@dataclass
class Visit:
    """One node's part in the meeting, and what it has seen so far."""

    meeting: Meeting
    timeout_s: float
    clock: Callable[[], float]
    started_s: float = field(default_factory=time.monotonic)
    error: str | None = None
    met: bool = False
    links: tuple[LinkFacts, ...] = ()
    missing: tuple[str, ...] = ()
    offset: ClockFacts | None = None
    _wire: Wire | None = None

    def facts(self, names: tuple[NameFacts, ...]) -> MeshFacts:
        """Return what was seen, as far as it came."""
        return MeshFacts(
            schema_version=1,
            node=self.meeting.nodes[self.meeting.node_rank],
            node_rank=self.meeting.node_rank,
            took_s=time.monotonic() - self.started_s,
            time_limit_s=self.timeout_s,
            address=self._wire.address if self._wire else None,
            head="{}:{}".format(*self.meeting.head),
            met=self.met,
            error=self.error,
            names=names,
            missing=self.missing,
            foreign=tuple(dict.fromkeys(self._wire.foreign)) if self._wire else (),
            links=self.links,
            clock=self.offset,
        )

    async def run(self) -> None:
        """Meet the others and test the links. Raises OSError, ValueError or TimeoutError if that ended early."""
        own = address(interface_towards(self.meeting.interface, self.meeting.head[0]))
        wire = self._wire = Wire(self.meeting.token, own)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._meet(wire)
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"the meeting did not end within {self.timeout_s:g} s") from None
        finally:
            wire.close()

    async def _meet(self, wire: Wire) -> None:
        host, port = self.meeting.head
        nodes, rank = len(self.meeting.nodes), self.meeting.node_rank
        backlog = max(LEAST_BACKLOG, nodes)
        here_until_s = self.started_s + self.timeout_s / MEETING_PART
        if rank == 0:
            head = Head(nodes, self.clock, here_until_s, self.started_s + self.timeout_s)
            await wire.serve(head.answer, port, backlog)
        own_port = await wire.serve(_echo, 0, backlog)
        streams = await wire.connect(host, port, here_until_s)
        self.offset = await self._compare_clocks(streams)
        own = {"ask": "addresses", "node_rank": rank, "address": [wire.address, own_port]}
        table = (await ask(streams, own))["addresses"]
        self.met = True
        self.missing = tuple(name for each, name in enumerate(self.meeting.nodes) if str(each) not in table)
        wanted = [each for each in peers(nodes, rank, self.meeting.token) if str(each) in table]
        self.links = tuple(await asyncio.gather(*(self._link(wire, each, *table[str(each)]) for each in wanted)))
        await ask(streams, {"ask": "end"})
        wire.hang_up(streams[1])
        await wire.quiet()

    async def _compare_clocks(self, streams: Streams) -> ClockFacts:
        found = []
        for _ in range(ROUND_TRIPS):
            before_s, since_s = self.clock(), time.monotonic()
            head_s = (await ask(streams, {"ask": "time"}))["time_s"]
            took_s = time.monotonic() - since_s
            found.append((took_s, before_s + took_s / 2 - head_s))
        took_s, offset_s = min(found)
        return ClockFacts(offset_s=offset_s, uncertainty_s=took_s / 2)

    async def _link(self, wire: Wire, rank: int, host: str, port: int) -> LinkFacts:
        """Test the link to a node: connect, then send a payload there and back."""
        within_s = self.timeout_s / LINK_PART
        until_s = time.monotonic() + within_s
        streams, payload_s, error = None, None, None
        try:
            streams = await wire.connect(host, port, until_s)
            since_s = time.monotonic()
            async with asyncio.timeout(max(0.1, until_s - since_s)):
                streams[1].write(PAYLOAD)
                await streams[1].drain()
                await streams[0].readexactly(len(PAYLOAD))
            payload_s = time.monotonic() - since_s
        except LOST as failure:
            error = text_of(failure) or f"no answer within {within_s:.3g} s"
        finally:
            if streams:
                wire.hang_up(streams[1])
        name = self.meeting.nodes[rank]
        return LinkFacts(peer=name, address=host, connected=bool(streams), payload_s=payload_s, error=error)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(len(PAYLOAD)))
    await writer.drain()
    await reader.read()  # the side that connected hangs up first
