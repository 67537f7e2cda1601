"""The transports that NCCL chose, read from its log at INFO. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddp_ladder.settings.terms import Transport

# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "Channel 02/0 : 1[1] -> 2[0] [receive] via NET/IBext_v8/5/GDRDMA",
# "... [send] via NET/AWS Libfabric/1(2)/GDRDMA/Shared", "... via P2P/direct pointer/read", "... via SHM/direct/direct"
_CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|Ring|Tree) .*? via (?P<via>(?:P2P|SHM|NET|CollNet)\b.*?)\s*$", re.MULTILINE
)
# "Using network IB", "Using network Socket", "Using network AWS Libfabric"; its number in place of its name: older NCCL
_NETWORK = re.compile(r"NCCL INFO Using network (?P<name>.+?)\s*$", re.MULTILINE)
_KEPT = {"P2P": 2, "SHM": 1, "CollNet": 1}  # parts of a channel's transport that say what it is

_KINDS: tuple[tuple[re.Pattern[str], Transport], ...] = (
    (re.compile("^IB|UCX|SHARP", re.IGNORECASE), "ib"),  # IB, IBext_v8: NCCL's own, and the plugins of HPC-X
    (re.compile("Libfabric|OFI", re.IGNORECASE), "ofi"),
    (re.compile("Socket", re.IGNORECASE), "socket"),
)


def transports(logs: Iterable[str]) -> tuple[str, ...]:
    """Return what connects the ranks, sorted: ``NET/IB``, ``NET/IB/GDRDMA``, ``NET/Socket``, ``P2P/CUMEM``, ``SHM``.

    A network is in the list only if a channel uses it: NCCL opens one on a single node as well.
    """
    found = set()
    for log in logs:
        networks = [match["name"] for match in _NETWORK.finditer(log)]
        for via in {match["via"] for match in _CHANNEL.finditer(log)}:
            kind, *rest = via.split("/")
            if kind == "NET":
                name = rest[0] if rest and not rest[0].isdigit() else (networks or ["?"])[-1]
                found.add(f"NET/{name}" + ("/GDRDMA" if "GDRDMA" in rest else ""))
            else:
                found.add("/".join([kind, *rest][: _KEPT[kind]]))
    return tuple(sorted(found))


def networks_used(found: Iterable[str]) -> dict[str, Transport | None]:
    """Return the networks between nodes by NCCL's names, as values of network.transport; None for other plugins."""
    names = {each.split("/")[1] for each in found if each.startswith("NET/")}
    return {name: kind_of(name) for name in sorted(names)}


def kind_of(network: str) -> Transport | None:
    """Return a network, by NCCL's name of it, as a value of network.transport; None for other plugins."""
    return next((kind for form, kind in _KINDS if form.search(network)), None)
