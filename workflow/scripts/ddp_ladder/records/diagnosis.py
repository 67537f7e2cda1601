"""A sanity check with the failure behind it, and helpers for their wording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_ladder.records.record import Check, Failure

Table = Sequence[tuple[str, str]]
"""Name and digest of each parameter."""
NAMED = 3  # parameters in a message


@dataclass(frozen=True)
class Diagnosis:
    """A check, and what it means if it did not pass; None: only what the check itself shows."""

    check: Check
    failure: Failure | None = None


def diagnose(name: str, ok: bool, measured: str, wanted: str, verdict: str, why: str, next_step: str) -> Diagnosis:
    """Return a check with its failure, which is used only if it did not pass."""
    return Diagnosis(
        Check(name=name, ok=ok, measured=measured, wanted=wanted), Failure(verdict=verdict, why=why, next=next_step)
    )


def first_names(names: Sequence[str]) -> str:
    """Return the first names of a list."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def listed(numbers: Sequence[int]) -> str:
    """Return the numbers as one text."""
    return ", ".join(str(number) for number in numbers)
