"""What ``nvidia-smi -q`` and ``nvidia-smi topo -m`` print. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUERY = ("-q",)
TOPOLOGY = ("topo", "-m")
_LINE = re.compile(r"(?P<indent> *)(?P<key>.*?)(?: +: (?P<value>.*))?")
_TERMINAL = re.compile(r"\x1b\[\d*m")  # topo underlines its header, also in a file
_UNKNOWN = ("", "N/A", "[N/A]", "None", "Unknown Error", "[Unknown Error]", "Not Found")

Section = dict[str, Any]


@dataclass(frozen=True)
class Queried:
    """The answer to ``-q``. gpus: by PCI bus id, in nvidia-smi's order; each a Section of text and Sections."""

    driver: str | None
    cuda: str | None
    gpus: Mapping[str, Section]


def parse_query(text: str) -> Queried:
    """Parse the indented text. Names of values differ between drivers: ``text_of`` takes several."""
    top: Section = {}
    stack: list[tuple[int, Section]] = [(-1, top)]
    for line in text.splitlines():
        found = _LINE.fullmatch(line.rstrip())
        if found is None or not found["key"] or found["key"].startswith("="):
            continue
        indent = len(found["indent"])
        while stack[-1][0] >= indent:
            stack.pop()
        if found["value"] is not None:
            stack[-1][1][found["key"]] = found["value"].strip()
        else:
            section: Section = {}
            stack[-1][1][found["key"]] = section
            stack.append((indent, section))
    gpus = {key.removeprefix("GPU "): value for key, value in top.items() if re.match(r"GPU [0-9A-Fa-f]+:", key)}
    return Queried(text_of(top, "Driver Version"), text_of(top, "CUDA Version"), gpus)


def text_of(section: Section, *paths: str) -> str | None:
    """Return the first of these values that is known. paths: keys joined by ``/``."""
    for path in paths:
        value: Any = section
        for key in path.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and value not in _UNKNOWN:
            return value
    return None


def number_of(section: Section, *paths: str) -> float | None:
    """Return the first of these values that is known, without its unit: ``700.00 W`` is 700.0, ``16x`` is 16.0."""
    found = re.match(r"\d+(\.\d+)?", text_of(section, *paths) or "")
    return float(found[0]) if found else None


@dataclass(frozen=True)
class TopologyRow:
    """A GPU's row. links: by device, network adapters by their name. numa_node: None if it is not shown."""

    links: Mapping[str, str] = field(default_factory=dict)
    cpus: str | None = None
    numa_node: int | None = None


def parse_topology(text: str) -> dict[int, TopologyRow]:
    """Return the rows of the GPUs by their index. The CPUs are only those that the caller itself may use."""
    lines = [_TERMINAL.sub("", line).rstrip() for line in text.splitlines()]
    header = next((line.strip().split("\t") for line in lines if line.startswith("\t")), [])
    devices = header[: header.index("CPU Affinity")] if "CPU Affinity" in header else []
    adapters = {number: name for line in lines for number, name in re.findall(r"^\s+(NIC\d+): (\S+)", line)}
    rows = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if found := re.fullmatch(r"GPU(\d+)", cells[0]):
            links, rest = cells[1 : len(devices) + 1], [*cells[len(devices) + 1 :], "", ""]
            named = {adapters.get(device, device): link for device, link in zip(devices, links, strict=False)}
            rows[int(found[1])] = TopologyRow(
                {device: link for device, link in named.items() if link not in ("X", "")},
                rest[0] or None,
                int(rest[1]) if rest[1].isdigit() else None,
            )
    return rows
