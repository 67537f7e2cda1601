"""The environment variables of communication libraries that are known by name: variables.tsv as typed rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

FILE = Path(__file__).with_name("variables.tsv")

Status = Literal["ok", "debugging", "machine", "deprecated", "renamed", "removed", "never"]
_FAMILY = ("closed", "open")
_HEADER = "name\tvalue\tstatus\treplacement\tversion"


@dataclass(frozen=True)
class Variable:
    """A row. value: what it may hold, in the notation of the file's header; version: since when the status holds."""

    name: str
    value: str = "text"
    status: Status = "ok"
    replacement: str = ""
    version: str = ""

    @property
    def exists(self) -> bool:
        """True if some supported version of its program reads it."""
        return self.status not in ("renamed", "removed", "never")

    @property
    def program(self) -> str:
        """The program that would read it."""
        return next((program for prefix, program in _PROGRAMS.items() if self.name.startswith(prefix)), "its program")

    @property
    def since(self) -> str:
        """The release in which its status came to hold: ``NCCL 2.17``."""
        return f"{self.program} {self.version}" if self.version[:1].isdigit() else self.version


_PROGRAMS = {
    "NCCL_": "NCCL",
    "GLOO_": "Gloo",
    "TORCH": "torch",
    "PYTORCH_": "torch",
    "OMP_": "OpenMP",
    "GOMP_": "OpenMP",
    "KMP_": "OpenMP",
    "CUDA_": "CUDA",
    "FI_": "libfabric",
    "UCX_": "UCX",
}


@dataclass(frozen=True)
class KnownVariables:
    """All rows by name. starts: those of names with any end. closed: of each family, if all its names are known."""

    rows: Mapping[str, Variable]
    starts: Mapping[str, Variable]
    closed: Mapping[str, bool]

    def find(self, name: str) -> Variable | None:
        """Return the row of a name; None if it is not listed."""
        if name in self.rows:
            return self.rows[name]
        if not name.startswith(tuple(self.starts)):
            return None
        return next(replace(row, name=name) for start, row in self.starts.items() if name.startswith(start))

    def family(self, name: str) -> str | None:
        """Return the longest prefix of a family that the name has."""
        return max((prefix for prefix in self.closed if name.startswith(prefix)), key=len, default=None)

    def is_secret(self, name: str) -> bool:
        """Return True if the value must not be shown, also that of a misspelt name."""
        row = self.find(name) or self.rows.get(self.misspelt(name) or "")
        return row is not None and row.value == "secret"

    def is_unknown(self, name: str) -> bool:
        """Return True if no program reads the name: it is not listed, and its family is closed."""
        return self.closed.get(self.family(name) or "", False) and self.find(name) is None

    def misspelt(self, name: str) -> str | None:
        """Return the listed name that is one edit away; None for a listed name, or in a family without any."""
        if self.find(name) is not None or name.startswith(_WITHOUT_NAMES):
            return None
        return next((row for row in self._one_edit_away(name) if self.rows[row].exists), None)

    def meant(self, name: str) -> str | None:
        """Return the existing name that an unknown one is most like."""
        if found := self.misspelt(name):
            return found
        for other in (f"TORCH_{name}", name.removeprefix("TORCH_")):
            if other in self.rows and self.rows[other].exists:
                return other
        # Without the prefix, which all of a family have in common.
        prefix = self.family(name) or ""
        rows = [row for row in self.rows.values() if row.name.startswith(prefix) and row.exists]
        rests = [row.name.removeprefix(prefix) for row in rows if row.status != "machine"]
        found_rests = difflib.get_close_matches(name.removeprefix(prefix), rests, n=1, cutoff=0.7)
        return f"{prefix}{found_rests[0]}" if found_rests else None

    def _one_edit_away(self, name: str) -> Iterator[str]:
        index, shorter = _deletions(), _shorter(name)
        yield from index.get(name, ())
        yield from (each for each in shorter if each in self.rows)
        for each in shorter:
            yield from (row for row in index.get(each, ()) if is_one_edit(name, row))


_WITHOUT_NAMES = ("RCCL_", "UCC_")


@cache
def known_variables() -> KnownVariables:
    """Read the file, once."""
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    if lines[0] != _HEADER:
        raise ValueError(f"{FILE}: its first line is not {_HEADER!r}")
    rows: dict[str, Variable] = {}
    starts: dict[str, Variable] = {}
    closed: dict[str, bool] = {}
    for line in lines[1:]:
        name, value, status, replacement, version = (line.split("\t") + [""] * 4)[:5]
        if status in _FAMILY:
            closed[name.removesuffix("*")] = status == "closed"
        elif status not in get_args(Status):
            raise ValueError(f"{FILE}: {name}: no such status: {status!r}")
        else:
            row = Variable(name.removesuffix("*"), value, status, replacement, version)  # type: ignore[arg-type]
            (starts if name.endswith("*") else rows)[row.name] = row
    return KnownVariables(rows, starts, closed)


@cache
def _deletions() -> Mapping[str, tuple[str, ...]]:
    """Return the listed names by what is left of them without one character."""
    index: dict[str, tuple[str, ...]] = {}
    for name in known_variables().rows:
        for each in set(_shorter(name)):
            index[each] = (*index.get(each, ()), name)
    return index


def _shorter(name: str) -> list[str]:
    return [name[:place] + name[place + 1 :] for place in range(len(name))]


def is_one_edit(one: str, other: str) -> bool:
    """Return True if one character is inserted, left out or another, or two neighbours are exchanged."""
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    one, other = one[start:], other[start:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    if len(one) == len(other) == 2:
        return one == other[::-1]
    return max(len(one), len(other)) == 1
