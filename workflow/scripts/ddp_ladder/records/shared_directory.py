"""A working directory that several runs share: files that a run finds there, and files that it leaves.

The job lists it before and after a run, never during the training. The end record keeps the result, so that a record
can be assembled without the directory.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddp_ladder.common.files import read_json
from ddp_ladder.records.raw_models import RunEnd, SharedDirectory
from ddp_ladder.records.record import Remark

DEPTH = 3  # levels below the working directory that are listed
MOST_ENTRIES = 10_000
LONGEST_S = 3.0
MOST_NAMES = 20  # in an end record
NAMED = 3  # in a message
LOGS = (".log", ".out", ".err")  # of Slurm, nohup and Snakemake; no training resumes from them
CACHES = ("__pycache__",)  # hidden caches are left out with all hidden files
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
        """List a tree, nearest first, within DEPTH, MOST_ENTRIES and LONGEST_S. left_out: absolute, links resolved."""
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
        """Return True if a path, as ``changes`` gives it, is in the listing."""
        parent, _, name = path.rstrip("/").rpartition("/")
        return name in self.directories.get(f"{parent}/" if parent else "", {})


def _entries(directory: Path, left_out: Collection[Path]) -> dict[str, Stamp | None]:
    """Return the entries of a directory; empty if it is missing or unreadable."""
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
        pass  # keep what was seen so far; no run can resume from a file that has vanished
    return found


def changes(before: Listing, after: Listing) -> tuple[list[str], list[str]]:
    """Return the relative paths that appeared and that changed; a directory that appeared ends with ``/``."""
    appeared, changed = [], []
    for prefix, now in after.directories.items():
        if prefix not in before.directories:
            continue  # below a new directory, or beyond the limits of the listing
        then = before.directories[prefix]
        appeared += [
            f"{prefix}{name}" + ("/" if now[name] is None else "") for name in sorted(now.keys() - then.keys())
        ]
        changed += [f"{prefix}{name}" for name in sorted(now.keys() & then.keys()) if now[name] != then[name]]
    return appeared, changed


@dataclass(frozen=True)
class Watch:
    """The state of the directory at the start of a run."""

    directory: Path
    left_out: Collection[Path]
    before: Listing
    found: Mapping[str, str] = field(default_factory=dict)  # path: the run that left it

    @classmethod
    def start(cls, directory: Path, results: Path, data_dir: Path | None) -> Watch:
        """List the directory before a run. results: the runs that may have left files there."""
        left_out = {path.resolve() for path in (results, data_dir) if path is not None}
        before = Listing.of(directory, left_out)
        left = {path: run for path, run in _left_by_runs(results, directory).items() if before.holds(path)}
        return cls(directory, left_out, before, left)

    def end(self) -> SharedDirectory:
        """Return the found, appeared and changed paths, for the end record."""
        after = Listing.of(self.directory, self.left_out)
        appeared, changed = changes(self.before, after)
        return SharedDirectory(
            path=str(self.directory),
            found=dict(list(self.found.items())[:MOST_NAMES]),
            appeared=tuple(appeared[:MOST_NAMES]),
            changed=tuple(changed[:MOST_NAMES]),
            complete=self.before.complete and after.complete,
        )


def _left_by_runs(results: Path, directory: Path) -> dict[str, str]:
    """Return the paths that runs and their earlier attempts left in a directory, with the last run that wrote each."""
    ends = []
    for pattern in ("*/*/*/r*/ended.json", "*/*/*/r*/attempts/*/ended.json"):
        for file in (results / "runs").glob(pattern):
            try:
                end = RunEnd.from_json(read_json(file))
            except (OSError, ValueError):
                continue  # a damaged end record is reported with its own run
            if end.shared_directory and end.shared_directory.path == str(directory):
                run = "/".join(file.relative_to(results / "runs").parts[:4])
                ends.append((end.ended_at_s, run, end.shared_directory.written))
    return {path: run for _, run, left in sorted(ends, key=lambda end: end[0]) for path in left}


def files_found(ended: RunEnd | None) -> Mapping[str, str]:
    """Return the paths that a run found at its start, with the runs that had left them, from its end record."""
    return ended.shared_directory.found if ended and ended.shared_directory else {}


def found_in_words(found: Mapping[str, str]) -> str:
    """Return ``snapshot.pt, which default/weak/1x1/r1 left``; of several runs the last one is named."""
    return f"{some(list(found))}, which {list(found.values())[-1]} left"


def remarks(ended: RunEnd | None) -> Iterator[Remark]:
    """Yield a remark if the run left files in a shared working directory."""
    shared = ended.shared_directory if ended else None
    if shared and (written := shared.written):
        where = f"in the shared working directory {shared.path}"
        what = f"{some(written)} appeared or changed {where} during the run: a later run may start from it"
        yield Remark(name="working directory", what=what, next=OWN_DIRECTORY_ADVICE)


def some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
