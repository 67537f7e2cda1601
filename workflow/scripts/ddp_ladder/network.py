"""Interfaces and ports of this machine."""

from __future__ import annotations

import socket
import zlib

import psutil

# Below Linux's and IANA's ephemeral ranges (from 32768): no outgoing connection takes such a port first.
PORTS = range(20_000, 30_000)


def addresses() -> dict[str, str]:
    """IPv4 address of each interface of this machine that has one."""
    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }


def address(interface: str) -> str:
    """IPv4 address of an interface of this machine. Raises OSError when it has none, naming those that do."""
    found = addresses()
    if interface not in found:
        raise OSError(f"no interface {interface} with an IPv4 address here; there are {', '.join(found)}")
    return found[interface]


def route_to(host: str) -> str:
    """This machine's address on the way to a host. Sends nothing. Raises OSError when there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        own: str = probe.getsockname()[0]
        return own


def interface_here(host: str) -> str:
    """Name of this machine's interface on the way to a host. Raises OSError when there is none."""
    own = route_to(host)
    for name, at in addresses().items():
        if at == own:
            return name
    raise OSError(f"no interface here has the address {own}, which leads to {host}")


def free_port(key: str) -> int:
    """A free TCP port for a job; jobs with different keys start to look at different places.

    Raises OSError when all ports of the range are taken.
    """
    start = zlib.crc32(key.encode()) % len(PORTS)
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")
