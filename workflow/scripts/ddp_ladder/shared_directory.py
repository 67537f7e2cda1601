"""A working directory that several runs share: what a run finds there of others, and what it leaves for them.

Looked at by the job before and after a run, never in the training; the end record keeps it, so that a record can be
assembled without the directory.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_ladder.files import read_json
from ddp_ladder.record import Remark

DEPTH = 3  # directories below the working directory that are looked into
MOST_ENTRIES = 10_000
LONGEST_S = 3.0
MOST_NAMES = 20  # in an end record
NAMED = 3  # in a message
LOGS = (".log", ".out", ".err")  # Slurm's, nohup's and Snakemake's own; nothing starts from them
CACHES = ("__pycache__",)  # hidden ones are left out with all that is hidden
OWN_DIRECTORY_ADVICE = (
    'set workload.directory: "{run_dir}" in config.yaml, which gives each run a directory of its own, and put '
    "{start_dir}/ before relative paths in workload.args; where the script never reads these files, nothing is wrong"
)

Stamp = tuple[int, int]  # size in bytes, mtime in ns


@dataclass(frozen=True)
class Listing:
    """Entries of each directory that was listed in full, by name: a file's stamp, or None for a directory."""

    directories: Mapping[str, Mapping[str, Stamp | None]]
    complete: bool

    @classmethod
    def of(cls, root: Path, left_out: Collection[Path]) -> Listing:
        """Nearest first, as far as DEPTH, MOST_ENTRIES and LONGEST_S allow. left_out: absolute, links resolved."""
        found: dict[str, Mapping[str, Stamp | None]] = {}
        waiting, entries, deadline_s = deque([(root.resolve(), "", 0)]), 0, time.monotonic() + LONGEST_S
        while waiting and entries < MOST_ENTRIES and time.monotonic() < deadline_s:
            directory, prefix, depth = waiting.popleft()
            found[prefix] = _entries(directory, left_out)
            entries += len(found[prefix])
            below = [name for name, stamp in found[prefix].items() if stamp is None]
            if depth < DEPTH:
                waiting += [(directory / name, f"{prefix}{name}/", depth + 1) for name in sorted(below)]
        return cls(found, complete=not waiting)

    def holds(self, path: str) -> bool:
        """Whether a path, as ``changes`` gives it, is there."""
        parent, _, name = path.rstrip("/").rpartition("/")
        return name in self.directories.get(f"{parent}/" if parent else "", {})


def _entries(directory: Path, left_out: Collection[Path]) -> dict[str, Stamp | None]:
    """Empty where the directory is not there or may not be read."""
    found: dict[str, Stamp | None] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in CACHES or directory / entry.name in left_out:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found[entry.name] = None
                elif not entry.name.endswith(LOGS):
                    stat = entry.stat(follow_symlinks=False)
                    found[entry.name] = (stat.st_size, stat.st_mtime_ns)
    except OSError:
        pass  # what was seen until then; a file that went away meanwhile is nobody's start
    return found


def changes(before: Listing, after: Listing) -> tuple[list[str], list[str]]:
    """Paths that appeared and paths that changed, relative; a directory that appeared ends with ``/``."""
    appeared, changed = [], []
    for prefix, now in after.directories.items():
        if prefix not in before.directories:
            continue  # below one that appeared, or beyond what was looked at
        then = before.directories[prefix]
        appeared += [
            f"{prefix}{name}" + ("/" if now[name] is None else "") for name in sorted(now.keys() - then.keys())
        ]
        changed += [f"{prefix}{name}" for name in sorted(now.keys() & then.keys()) if now[name] != then[name]]
    return appeared, changed


@dataclass(frozen=True)
class Watch:
    """The directory as it was when a run started."""

    directory: Path
    left_out: Collection[Path]
    before: Listing
    found: Mapping[str, str] = field(default_factory=dict)  # path: the run that left it

    @classmethod
    def start(cls, directory: Path, results: Path, data_dir: Path | None) -> Watch:
        """Look before a run. results: whose runs may have left files."""
        left_out = {path.resolve() for path in (results, data_dir) if path is not None}
        before = Listing.of(directory, left_out)
        left = {path: run for path, run in _left_by_runs(results, directory).items() if before.holds(path)}
        return cls(directory, left_out, before, left)

    def end(self) -> dict[str, Any]:
        """What the end record says: found, appeared and changed paths."""
        after = Listing.of(self.directory, self.left_out)
        appeared, changed = changes(self.before, after)
        return {
            "path": str(self.directory),
            "found": dict(list(self.found.items())[:MOST_NAMES]),
            "appeared": appeared[:MOST_NAMES],
            "changed": changed[:MOST_NAMES],
            "complete": self.before.complete and after.complete,
        }


def _left_by_runs(results: Path, directory: Path) -> dict[str, str]:
    """What runs and their earlier attempts left in a directory, and which was the last to write it."""
    ends = []
    for pattern in ("*/*/*/r*/ended.json", "*/*/*/r*/attempts/*/ended.json"):
        for file in (results / "runs").glob(pattern):
            try:
                end = read_json(file)
                if end["shared_directory"]["path"] == str(directory):
                    run = "/".join(file.relative_to(results / "runs").parts[:4])
                    ends.append((float(end["ended_at_s"]), run, end["shared_directory"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # it is judged with its own run
    return {path: run for _, run, left in sorted(ends, key=lambda end: end[0]) for path in _written(left)}


def _written(left: Mapping[str, Any]) -> list[str]:
    return sorted({*left["appeared"], *left["changed"]})


def files_found(ended: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Paths that a run found when it started, and the runs that had left them; from its end record."""
    shared = ended.get("shared_directory") if ended else None
    return shared["found"] if shared else {}


def found_in_words(found: Mapping[str, str]) -> str:
    """``snapshot.pt, which default/weak/1x1/r1 left``; of several runs the last one is named."""
    return f"{some(list(found))}, which {list(found.values())[-1]} left"


def remarks(ended: Mapping[str, Any] | None) -> Iterator[Remark]:
    """What a reader should know of a shared directory that the run left files in."""
    shared = ended.get("shared_directory") if ended else None
    if not shared:
        return
    written = _written(shared)
    if written:
        where = f"in the shared working directory {shared['path']}"
        what = f"{some(written)} appeared or changed {where} during the run: a later run may start from it"
        yield Remark("working directory", what, OWN_DIRECTORY_ADVICE)


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
