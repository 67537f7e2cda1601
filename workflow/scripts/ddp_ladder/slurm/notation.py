"""Parsers of records, amounts and lists of names in the output of Slurm's commands. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator


def parse_config(text: str) -> dict[str, str]:
    """Parse ``scontrol show config``: one ``Name = value`` a line."""
    return dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))


def records(text: str, first: str) -> Iterator[dict[str, str]]:
    """Yield records, ``Key=value Key=value ...`` a line; values may hold spaces (OS, Reason)."""
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            yield dict(re.findall(r"(\w[\w:/]*)=(.*?)(?=\s+\w[\w:/]*=|\s*$)", line))


def rows(text: str, fields: str) -> Iterator[dict[str, str]]:
    """Yield rows, ``value|value|...`` a line, by the names in ``fields``; other lines are messages of the site."""
    names = fields.split(",")
    for line in text.splitlines():
        if line.count("|") == len(names) - 1:
            yield dict(zip(names, line.split("|"), strict=True))


def gpus(gres: str) -> dict[str, int]:
    """Count GPUs by type in a node's Gres: ``gpu:a100:4(S:0-1),gpu:2,nvme:1``."""
    found: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.split(":")
        if name == "gpu" and rest:
            *kind, count = rest
            found[":".join(kind)] = found.get(":".join(kind), 0) + int(count)
    return found


def tres(text: str) -> dict[str, int]:
    """Parse ``cpu=8,mem=64G,gres/gpu:a100=4`` to counts; mem in MB."""
    pairs = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name: _memory_mb(value) if name == "mem" else int(float(value)) for name, value in pairs}


def _memory_mb(text: str) -> int:
    number, unit = text.rstrip("KMGTP"), text[len(text.rstrip("KMGTP")) :] or "M"
    return int(float(number) * 1024.0 ** ("KMGTP".index(unit) - 1))


def minutes(text: str) -> int | None:
    """Return ``[days-]hours:minutes:seconds`` in whole minutes; None for no limit."""
    form = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?", text)
    if form is None:
        return None
    days, hours, mins = (int(part or 0) for part in form.groups()[:3])
    return (days * 24 + hours) * 60 + mins


def host_names(text: str) -> Iterator[str]:
    """Yield the names in Slurm's short form: ``node[01-03,7],login``."""
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text):
        if part != "(null)":
            yield from _expanded(part)


def _expanded(part: str) -> Iterator[str]:
    form = re.search(r"\[([^\]]*)\]", part)
    if form is None:
        yield part
        return
    head, tail = part[: form.start()], part[form.end() :]
    for item in form[1].split(","):
        low, _, high = item.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            yield from (f"{head}{item}{rest}" for rest in _expanded(tail))
            continue
        for number in range(int(low), int(high or low) + 1):
            yield from (f"{head}{number:0{len(low)}d}{rest}" for rest in _expanded(tail))
