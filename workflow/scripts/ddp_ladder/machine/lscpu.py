"""What lscpu prints (with LC_ALL=C). Pure."""

from __future__ import annotations

from ddp_ladder.machine.model import Cpu


def parse_lscpu(text: str) -> Cpu:
    """Return the processors; a line that this version of lscpu, or this architecture, lacks is None."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())

    def number(key: str) -> int | None:
        return int(values[key]) if values.get(key, "").isdigit() else None

    return Cpu(
        model=values.get("Model name") or values.get("BIOS Model name"),
        architecture=values.get("Architecture"),
        sockets=number("Socket(s)"),
        cores_per_socket=number("Core(s) per socket"),
        threads_per_core=number("Thread(s) per core"),
        cpus=number("CPU(s)"),
    )
