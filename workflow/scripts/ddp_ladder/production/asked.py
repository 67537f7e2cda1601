"""What a person asks of a chain with a file in its directory: ``touch results/production/save``, or ``.../stop``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ddp_ladder.common.findings import Finding
from ddp_ladder.production.chain import over

SAVE, STOP = "save", "stop"


def takes_save(directory: Path) -> bool:
    """Return True if the running link is to save now; the file is taken away, so that it may be asked again."""
    with suppress(OSError):
        (directory / SAVE).unlink()
        return True
    return False


def is_to_stop(directory: Path) -> bool:
    """Return True if the running link is to save and end, and no other is to follow."""
    return (directory / STOP).exists()


def stop(directory: Path) -> Finding | None:
    """Return why no link follows; None if nobody has asked for it."""
    if not is_to_stop(directory):
        return None
    return over("error", "stopped as asked", f"{directory / STOP} is there", "start it again to go on; that removes it")


def forget(directory: Path) -> None:
    """Take away what was asked before: a person who starts again wants it to go on. Raises OSError."""
    for name in (SAVE, STOP):
        (directory / name).unlink(missing_ok=True)
