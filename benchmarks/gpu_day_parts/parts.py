"""The parts of the day, in the order in which they run: those that nothing else covers come first."""

from __future__ import annotations

from pathlib import Path

from gpu_day_parts.day import Part
from gpu_day_parts.packages import REQUIREMENTS, names

ON_CPU_S = (10.0, 200.0)  # estimate and limit of every part: a machine that runs tests is busy
COMMAND = Path(__file__).parents[1] / "gpu_day_part.py"


def packages(device: str, work: Path, out: Path, wheels: Path | None) -> Part:
    """Return the part that the others need."""
    more = () if wheels is None else ("--wheels", str(wheels))
    return _part("packages", "packages that the machine lacks", device, work, out, 20, 90, more=more)


def parts(device: str, work: Path, out: Path) -> tuple[Part, ...]:
    """Return the measurements. Times are for one large GPU with 16 cores.

    A part is skipped if less of the budget is left than its estimate.
    """
    workflow = tuple(names(REQUIREMENTS))
    return (
        _part("card", "the machine and its matrix rates", device, work, out, 20, 60),
        _part("gpu_tests", "tests marked gpu", device, work, out, 60, 150),
        _part("monitor", "the monitor under a known load", device, work, out, 50, 110, needs=workflow),
        _part("ladder", "1x1 ladder against a synchronised stopwatch", device, work, out, 120, 200, needs=workflow),
        _part("cifar", "cifar.py against the guide's loop", device, work, out, 70, 150),
        _part("imagenet", "imagenet.py against a guide's loop", device, work, out, 100, 200),
        _part("overhead", "overhead of the instrument per step", device, work, out, 85, 150),
    )


def _part(
    name: str,
    title: str,
    device: str,
    work: Path,
    out: Path,
    estimate_s: float,
    limit_s: float,
    needs: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> Part:
    directories = ("--work", str(work / name), "--out", str(out))
    argv = (str(COMMAND), name, "--device", device, *directories, *more)
    estimate_s, limit_s = (estimate_s, limit_s) if device == "cuda" else ON_CPU_S
    return Part(name, title, argv, estimate_s, limit_s, needs)
