"""What the meeting of the nodes shows: names, links, clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from ddp_ladder.common.messages import leave_out
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.node_models import LinkFacts, MeshFacts, NodeFacts
from ddp_ladder.preflight.said import fail, warn

APART_S = 1.0  # clocks; the records compare times of different nodes
SLOW_PAYLOAD_S = 2.0  # for 256 KiB there and back: the kernel has sent packets again
SHOWN = 4  # links in a message
LOOPBACK = "127."
ROUTE = (
    "see the site's firewall between compute nodes, and name in network.interface of cluster.yaml an interface on "
    "which they reach each other"
)

Mesh = Mapping[str, MeshFacts | None]


def mesh_findings(
    mesh: Mesh, facts: Mapping[str, NodeFacts], explained: Set[str], several: bool
) -> Iterator[PreflightFinding]:
    """Yield what is not a consequence of what the nodes themselves reported. explained: nodes that failed."""
    if len(mesh) < 2:
        return
    head = next(iter(mesh))
    yield from _not_met(mesh, facts, head, explained)
    if several:
        yield from _names(mesh)
    yield from _links(mesh, explained)
    for name, seen in mesh.items():
        if seen is None:
            continue
        for stranger in seen.foreign:
            wanted = "only processes of this job on its ports"
            advice = "end what is left of an earlier job (squeue --me); two jobs with one port disturb each other"
            yield warn(f"another program connected: {stranger}", wanted, advice).on(name)
        apart = seen.clock
        if apart and abs(apart.offset_s) - apart.uncertainty_s > APART_S:
            ahead = "ahead of" if apart.offset_s > 0 else "behind"
            what = f"its clock is {abs(apart.offset_s):.1f} s {ahead} that of {head}"
            yield warn(
                what, f"clocks within {APART_S:g} s", "have the site check its time service (chronyc tracking)"
            ).on(name)


def _not_met(mesh: Mesh, facts: Mapping[str, NodeFacts], head: str, explained: Set[str]) -> Iterator[PreflightFinding]:
    if head in explained:
        return  # nobody could meet there
    for name, seen in mesh.items():
        if name in explained or (seen is not None and seen.met):
            continue
        if seen is not None:
            what = f"it did not reach the head {head} at {seen.head}: {seen.error}"
        elif name in facts:
            what = f"it did not come to the meeting at {head}"
        else:
            continue  # it left no answer at all, which has been reported
        yield fail(what, "a TCP connection from every node to the head's port", ROUTE).on(name)


def _names(mesh: Mesh) -> Iterator[PreflightFinding]:
    """Find names that do not resolve, or resolve to a loopback address on other nodes."""
    wanted = "every node's name resolves on every node to an address that others reach"
    advice = f"have the site's DNS or /etc/hosts corrected; until then {leave_out()}"
    for name, found, own in ((name, found, seen.node) for name, seen in mesh.items() if seen for found in seen.names):
        if found.error:
            yield fail(f"it does not resolve {found.name}: {found.error}", wanted, advice).on(name)
        elif found.addresses[0].startswith(LOOPBACK) and found.name != own:  # its own name is its host name
            yield fail(f"it resolves {found.name} to {found.addresses[0]}", wanted, advice).on(name)


def _links(mesh: Mesh, explained: Set[str]) -> Iterator[PreflightFinding]:
    tested = [
        (name, link)
        for name, seen in mesh.items()
        if seen is not None and name not in explained
        for link in seen.links
        if link.peer not in explained
    ]
    cut = [(name, link) for name, link in tested if not link.connected]
    yield from _group(cut, tested, "cannot connect", "a TCP connection between all nodes over network.interface", ROUTE)
    lost = [(name, link) for name, link in tested if link.connected and link.payload_s is None]
    mtu = (
        "packets of the interfaces' MTU are lost on the way: have the switches' MTU corrected, or the nodes' lowered; "
        "or name another network.interface in cluster.yaml"
    )
    yield from _group(lost, tested, "connects, but large packets do not arrive", "256 KiB pass in each direction", mtu)
    for name, link in tested:
        if link.payload_s is not None and link.payload_s > SLOW_PAYLOAD_S:
            what = f"256 KiB to {link.peer} and back took {link.payload_s:.1f} s"
            yield warn(what, f"less than {SLOW_PAYLOAD_S:g} s", f"the link loses packets; {mtu}").on(name)


def _group(
    bad: list[tuple[str, LinkFacts]], tested: list[tuple[str, LinkFacts]], what: str, wanted: str, advice: str
) -> Iterator[PreflightFinding]:
    """Name a node of which every link is bad; else the links."""
    while bad:
        of_node = {
            name: sum(_touches(name, link) for link in bad) for name in {each for link in bad for each in _ends(link)}
        }
        worst = max(sorted(of_node), key=lambda name: of_node[name])
        all_links = [link for link in tested if _touches(worst, link)]
        own = [link for link in bad if _touches(worst, link)]
        if len(own) < len(all_links) or len(all_links) <= 2:
            break
        error = next((link.error for _, link in own if link.error), "")
        yield fail(f"{what} with any other node: {error}", wanted, advice).on(worst)
        bad = [link for link in bad if link not in own]
    pairs = dict.fromkeys(frozenset(_ends(link)) for link in bad)
    for pair in list(pairs)[:SHOWN]:
        errors = [link.error for name, link in bad if {name, link.peer} == pair and link.error]
        first, second = sorted(pair)
        more = f" ({len(pairs) - SHOWN} more pairs)" if len(pairs) > SHOWN and pair == list(pairs)[SHOWN - 1] else ""
        yield fail(f"{what} with {second}: {errors[0] if errors else ''}{more}", wanted, advice).on(first)


def _ends(link: tuple[str, LinkFacts]) -> tuple[str, str]:
    return link[0], link[1].peer


def _touches(name: str, link: tuple[str, LinkFacts]) -> bool:
    return name in _ends(link)
