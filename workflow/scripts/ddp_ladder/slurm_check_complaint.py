"""What is wrong with a job, in words; the same mistake of several jobs is told once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddp_ladder.messages import Problem

MOST_NAMES = 12  # of a list in a message

SMALLER_SCALES = "leave out the scale, or choose a partition that takes it: `sinfo --summarize` lists them"


@dataclass(frozen=True)
class Complaint:
    """A mistake of one job; those of several jobs that differ in ``found`` alone are one problem."""

    where: str
    what: str
    found: str
    allowed: str
    next: str
    waits: bool = False

    def problem(self) -> Problem:
        return Problem(self.where, self.what, self.found, self.allowed, self.next)


def merged(complaints: Iterable[Complaint]) -> list[Complaint]:
    """Each mistake once, with all that was found."""
    by_mistake: dict[Complaint, list[str]] = {}
    for complaint in complaints:
        found = by_mistake.setdefault(replace(complaint, found=""), [])
        if complaint.found not in found:
            found.append(complaint.found)
    return [replace(mistake, found="; ".join(found)) for mistake, found in by_mistake.items()]


def listed(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f", and {more} more" if more > 0 else "")


def counted(number: int, word: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {word}{'' if number == 1 else 's'}"
