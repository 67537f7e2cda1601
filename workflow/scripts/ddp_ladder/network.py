"""Interfaces and ports of this machine."""

from __future__ import annotations

import socket
import zlib

import psutil

# Below Linux's and IANA's ephemeral ranges (from 32768): no outgoing connection takes such a port first.
PORTS = range(20_000, 30_000)


def loopback_interface() -> str:
    """Name of the loopback interface (``lo`` on Linux). Raises OSError when there is none."""
    for _, name in socket.if_nameindex():
        if name.startswith("lo"):
            return name
    raise OSError("this machine has no loopback interface")


def address(interface: str) -> str:
    """IPv4 address of an interface of this machine. Raises OSError when it has none, naming those that do."""
    found: dict[str, str] = {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }
    if interface not in found:
        raise OSError(f"no interface {interface} with an IPv4 address here; there are {', '.join(found)}")
    return found[interface]


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
