"""Things that have something in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def one_of(values: Iterable[V | None]) -> V | None:
    """Return the value that all are; None if two differ, one is not known, or there is none."""
    different = {*values}
    return different.pop() if len(different) == 1 else None
