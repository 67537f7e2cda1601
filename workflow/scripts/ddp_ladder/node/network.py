"""Network interfaces and ports of this machine."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator

import psutil

from ddp_ladder.settings.terms import Interface, interface_on

LOOPBACK = "127.0.0.1"
NO_ADDRESS = "has no address for the name"  # of a message: the name service, and no interface, is wrong

# Below Linux's and IANA's ephemeral ranges (from 32768): no outgoing connection takes such a port first.
PORTS = range(20_000, 30_000)


def node_name() -> str:
    """Return this node's name in the site's interface map: Slurm's name if Slurm started this process."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface of this machine that has one."""
    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }


def address(interface: str) -> str:
    """Return the IPv4 address of an interface. Raises OSError if it has none, naming the interfaces that do."""
    known = addresses()
    if interface not in known:
        raise OSError(f"no interface {interface} with an IPv4 address on {node_name()}; there are {', '.join(known)}")
    return known[interface]


def route_to(host: str) -> str:
    """Return this machine's address on the route to a host. Raises OSError if there is no route, or no such name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing
        except socket.gaierror as error:
            raise OSError(f"{node_name()} {NO_ADDRESS} {host}: {error.strerror}") from error
        except OSError as error:
            raise OSError(f"no route from {node_name()} to {host}: {error.strerror}") from error
        own: str = probe.getsockname()[0]
        return own


def interface_here(host: str) -> str:
    """Return the interface of the route to a host. Raises OSError if there is none."""
    own = route_to(host)
    if (name := next((name for name, at in addresses().items() if at == own), None)) is None:
        raise OSError(f"no interface of {node_name()} has the address {own}, which leads to {host}")
    return name


def interface_towards(wanted: Interface, host: str) -> str:
    """Return the interface that this node uses: the configured one, or that of the route to a host. Raises OSError."""
    name = interface_on(wanted, node_name())
    return interface_here(host) if name == "auto" else name


def address_towards(wanted: Interface, host: str) -> str:
    """Return this node's address on the interface that it uses. Raises OSError."""
    name = interface_on(wanted, node_name())
    return route_to(host) if name == "auto" else address(name)


def is_loopback(address: str) -> bool:
    """Return True if only the machine itself reaches the address."""
    return address.startswith("127.")


def free_ports(key: str) -> Iterator[int]:
    """Yield TCP ports of this machine that are free now; the search starts at a port that depends on the key."""
    start = zlib.crc32(key.encode()) % len(PORTS)
    for port in (*PORTS[start:], *PORTS[:start]):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        yield port


def free_port(key: str) -> int:
    """Return the first free port. Raises OSError if all ports of the range are taken."""
    if (port := next(free_ports(key), None)) is None:
        raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1} on {node_name()}")
    return port
