"""The parts of the day, in the order in which they run: those that can show a defect come first."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from gpu_day_parts.day import Part
from gpu_day_parts.packages import REQUIREMENTS, names

ON_CPU_S = (10.0, 200.0)  # estimate and limit of every part: a machine that runs tests is busy
COMMAND = Path(__file__).parents[1] / "gpu_day_part.py"

PARTS = {
    "card": ("the machine and its matrix rates", 15, 60),
    "two_ranks": ("two ranks on one GPU, and the flight record", 90, 150),
    "loops": ("ways to train, with the instrument and without", 60, 120),
    "gpu_tests": ("tests marked gpu", 160, 220),
    "overhead": ("overhead of the instrument per step", 100, 150),
    "monitor": ("the monitor under a known load", 55, 110),
    "ladder": ("stage 1 of a ladder", 120, 200),
    "cifar": ("cifar.py against the guide's loop", 90, 150),
    "imagenet": ("imagenet.py against a guide's arithmetic", 70, 150),
}
"""Title, estimate and time limit of each part, in seconds on one large GPU with 16 cores."""
NEED_WORKFLOW = ("gpu_tests", "monitor", "ladder")


def packages(device: str, work: Path, out: Path, wheels: Path | None) -> Part:
    """Return the part that the others need."""
    more = () if wheels is None else ("--wheels", str(wheels))
    return _part("packages", ("packages that the machine lacks", 20, 90), device, work, out, more)


def parts(device: str, work: Path, out: Path, only: Container[str]) -> tuple[Part, ...]:
    """Return the measurements of these names."""
    return tuple(_part(name, about, device, work, out) for name, about in PARTS.items() if name in only)


def _part(
    name: str, about: tuple[str, float, float], device: str, work: Path, out: Path, more: tuple[str, ...] = ()
) -> Part:
    title, *times_s = about
    argv = (str(COMMAND), name, "--device", device, "--work", str(work / name), "--out", str(out), *more)
    estimate_s, limit_s = times_s if device == "cuda" else ON_CPU_S
    needs = tuple(names(REQUIREMENTS)) if name in NEED_WORKFLOW else ()
    return Part(name, title, argv, estimate_s, limit_s, needs)
