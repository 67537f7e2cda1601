"""Guesses at what a user meant by a value in the wrong notation."""

from __future__ import annotations

import math
import os
import re
import shlex
from pathlib import PurePosixPath

_MEGABYTES = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
_UNIT_MINUTES = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}


def minutes(text: str) -> int | None:
    """Return minutes, rounded up, of a time as in sbatch or with a unit: ``01:00:00``, ``30:00``, ``1-12``, ``2 h``."""
    text = text.strip()
    if unit := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(s|m|h|d)[a-z]*", text, re.IGNORECASE):
        return math.ceil(float(unit[1]) * _UNIT_MINUTES[unit[2].lower()])
    match = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,4}(?::[0-9]{1,4}){0,2})", text)
    if match is None:
        return None
    days, parts = match[1], [int(part) for part in match[2].split(":")]
    if days is None and len(parts) < 3:
        parts = [0, *parts, 0][:3]  # sbatch: minutes, and minutes:seconds
    hours, mins, seconds = [*parts, 0, 0][:3]
    return int(days or 0) * 1440 + hours * 60 + mins + math.ceil(seconds / 60)


def runtime(text: str) -> str | None:
    """Return advice for a time limit that is not a number of minutes."""
    number = minutes(text)
    as_slurm = f" (sbatch reads {text} as minutes and seconds)" if re.fullmatch("[0-9]+:[0-9]+", text) else ""
    return f"write minutes: runtime: {number}{as_slurm}" if number else None


def megabytes(text: str) -> int | None:
    """Return the MB of an amount of memory as sbatch takes it: ``440G`` is 450560."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([MGT]?)i?B?", text.strip(), re.IGNORECASE)
    return math.ceil(float(match[1]) * _MEGABYTES[match[2].upper()]) if match else None


def scale(value: object, stage: str) -> str | None:
    """Return the scale: ``2`` is ``1x2`` in stage2 and ``2x1`` in stage3; ``2 X 4`` is ``2x4``."""
    match = re.fullmatch(r"([0-9]+) *[xX\u00d7*] *([0-9]+)", str(value).strip())
    if match:
        return f"{int(match[1])}x{int(match[2])}"
    if not re.fullmatch(r"[1-9][0-9]{0,3}", str(value)):
        return None
    return f"{value}x1" if stage == "stage3" else f"1x{value}"


def words(text: str) -> list[str] | None:
    """Return the words of a command line; None if a quotation mark is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return None


def has_variables(text: str) -> bool:
    """Return True if the text holds a shell variable."""
    return re.search(r"\$\{?[A-Za-z_]", text) is not None


def path(text: str) -> str:
    """Return advice for a path with shell variables."""
    home, _, rest = text.partition("/")
    if home in ("$HOME", "${HOME}") and "$" not in rest:
        return f"write ~/{rest}".rstrip("/") if rest else "write ~/, or the path of a directory below it"
    written_out = os.path.expandvars(text)
    if "$" not in written_out:
        return f"write {written_out}"
    link = f'ln -sfn "{text}" /tmp/{PurePosixPath(text).name}'
    return f"write its value; if it differs between jobs, link a fixed path to it in software.setup: {link}"
