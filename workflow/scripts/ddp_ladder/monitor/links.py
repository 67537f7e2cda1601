"""Counters and rates of the network: the run's interface, InfiniBand and Slingshot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddp_ladder.monitor.models import Fabric

PROC_NET_DEV = Path("/proc/self/net/dev")  # of the process's own network namespace, unlike /sys/class/net
SYS = Path("/sys")
_INFINIBAND_WORD = 4  # bytes: the unit of port_rcv_data and port_xmit_data


def parse_net_dev(text: str, interface: str) -> tuple[int, int]:
    """Return the bytes that an interface received and sent. Raises ValueError if it is not in /proc/net/dev."""
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == interface:
            fields = counters.split()
            return int(fields[0]), int(fields[8])
    raise ValueError(f"no interface {interface} in /proc/net/dev")


def interface_bytes(interface: str) -> tuple[int, int]:
    """Return the bytes that an interface received and sent. Raises OSError or ValueError."""
    return parse_net_dev(PROC_NET_DEV.read_text(), interface)


def interface_bits_per_s(interface: str) -> int | None:
    """Return the rate of an interface's link; None if the driver does not report it."""
    found = psutil.net_if_stats().get(interface)
    return found.speed * 1_000_000 if found and found.speed else None


@dataclass(frozen=True)
class Port:
    """A port with counters in files, in this unit."""

    about: Fabric
    received: Path
    sent: Path
    unit_bytes: int

    def bytes(self) -> tuple[int, int]:
        """Return the bytes received and sent. Raises OSError or ValueError."""
        return parse_counter(self.received.read_text()) * self.unit_bytes, parse_counter(
            self.sent.read_text()
        ) * self.unit_bytes


def parse_counter(text: str) -> int:
    """Parse a counter of /sys; Slingshot's have the time behind an @. Raises ValueError."""
    return int(text.partition("@")[0])


def parse_rate(text: str) -> int | None:
    """Return the bits per second of InfiniBand's ``200 Gb/sec (4X HDR)``; None if it is something else."""
    found = re.match(r"([\d.]+) Gb/sec", text)
    return round(float(found[1]) * 1e9) if found else None


def ports(sys: Path = SYS) -> tuple[list[Port], list[str]]:
    """Return the active ports of InfiniBand and Slingshot that have counters, and notes on those that have not."""
    found, notes = [], []
    for port in (*_infiniband(sys), *_slingshot(sys)):
        try:
            port.bytes()
            found.append(port)
        except (OSError, ValueError) as error:
            notes.append(f"{port.about.name}: its counters cannot be read: {error}")
    return found, notes


def fabric_bytes(all_ports: Sequence[Port]) -> tuple[int, int]:
    """Return the bytes that all ports received and sent. Raises OSError or ValueError."""
    each = [port.bytes() for port in all_ports]
    return sum(received for received, _ in each), sum(sent for _, sent in each)


def _infiniband(sys: Path) -> list[Port]:
    found = []
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in _text(port / "state"):
            fabric = Fabric(name=f"{port.parents[1].name}/{port.name}", bits_per_s=parse_rate(_text(port / "rate")))
            counters = port / "counters"
            found.append(
                Port(fabric, counters / "port_rcv_data", counters / "port_xmit_data", unit_bytes=_INFINIBAND_WORD)
            )
    return found


def _slingshot(sys: Path) -> list[Port]:
    """Cassini's counters, as HPE's documentation of the Slingshot NIC and public tools name them."""
    found = []
    for device in sorted((sys / "class/cxi").glob("cxi*")):
        telemetry = device / "device/telemetry"
        speeds = [_text(path) for path in sorted((device / "device/net").glob("*/speed"))]  # Mbit/s
        mbit = next((int(speed) for speed in speeds if speed.isdigit()), None)
        fabric = Fabric(name=device.name, bits_per_s=None if mbit is None else mbit * 1_000_000)
        received, sent = telemetry / "hni_sts_rx_ok_octets", telemetry / "hni_sts_tx_ok_octets"
        found.append(Port(fabric, received, sent, unit_bytes=1))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
