"""Reading gate files, and how a verdict is told on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_ladder.files import read_json

WIDTH = 96
TEXT_WIDTH = WIDTH - len("| verdict   ") - len(" |")


def read_gate(path: Path) -> Mapping[str, Any]:
    """Read gates/<stage>.json or gates/<stage>.closed.json. Raises OSError or ValueError."""
    data: Mapping[str, Any] = read_json(path)
    return data


def read_gates(directory: Path, stages: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Gate files that exist, by stage."""
    files = {
        stage: path
        for stage in stages
        for path in (directory / f"{stage}.json", directory / f"{stage}.closed.json")
        if path.exists()
    }
    return {stage: read_gate(path) for stage, path in files.items()}


def closed_variants(path: Path) -> dict[str, str]:
    """Variants that did not pass an open gate, with the reason not to run them any further."""
    gate = read_gate(path)
    return {
        name: f"variant {name} did not pass the gate of {gate['stage']}"
        for name, verdict in gate["variants"].items()
        if verdict != "open"
    }


def outcome_line(gate: Mapping[str, Any]) -> str:
    """``gate stage2: open`` or ``gate stage2: CLOSED, <why>``."""
    if gate["verdict"] == "open":
        closed = [name for name, verdict in gate["variants"].items() if verdict != "open"]
        rest = f" (without {', '.join(closed)}: see the report)" if closed else ""
        return f"gate {gate['stage']}: open{rest}"
    return f"gate {gate['stage']}: CLOSED, {gate['why']}"


def closed_box(gate: Mapping[str, Any]) -> str:
    """The box that says why a ladder stopped and what to do."""
    rows = (
        ("verdict", f"the gate of {gate['stage']} is closed; nothing above it was started"),
        ("measured", gate["why"]),
        ("wanted", gate["wanted"]),
        ("next", gate["next"]),
    )
    lines = []
    for label, text in rows:
        wrapped = textwrap.wrap(str(text), TEXT_WIDTH, break_on_hyphens=False)
        for index, part in enumerate(wrapped or [""]):
            lines.append(f"| {label if index == 0 else '':<9} {part:<{TEXT_WIDTH}} |")
    edge = "+" + "-" * (WIDTH - 2) + "+"
    return "\n".join((edge, *lines, edge))
