"""The records of a results directory. One counts only when its raw files, assembled anew, give exactly this record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_ladder.assemble import assemble, read_identity
from ddp_ladder.files import RunDirectory
from ddp_ladder.plan import RunSpec
from ddp_ladder.record import Record, read_record

ANOTHER_SPEC = "a record of another spec (the configuration has changed since, or it was copied here)"
NOT_ITS_FILES = "a record that its raw files do not add up to"
CUT_SHORT = ("time limit", "stopped by a signal, saved its state")  # ends that say nothing of what a script can do


class RunRecords:
    """Reads and assembles each run once, however many gates are judged on it."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._known: dict[tuple[str, ...], Record | OSError | ValueError] = {}

    def directory(self, spec: RunSpec) -> RunDirectory:
        """Where a planned run is."""
        return RunDirectory(self.results / "runs" / spec.name)

    def assembled(self, spec: RunSpec) -> Record:
        """What the raw files of the run add up to. Raises OSError or ValueError where they do not say what was run."""
        return self._once(("assembled", spec.name), lambda: assemble(self.directory(spec)))

    def believed(self, spec: RunSpec) -> Record:
        """record.json of exactly this spec, which the raw files add up to.

        Raises OSError, or ValueError saying what is wrong.
        """
        return self._once(("believed", spec.name, spec.hash), lambda: self._believe(spec))

    def is_believed(self, spec: RunSpec) -> bool:
        """Whether there is a record to believe."""
        try:
            self.believed(spec)
        except (OSError, ValueError):
            return False
        return True

    def kept(self, spec: RunSpec) -> Record | None:
        """The record, of the raw files alone, that makes another run of exactly this spec needless; else None."""
        try:
            record = self.assembled(spec)
        except (OSError, ValueError):
            return None
        return record if _is_kept(record, spec, self.directory(spec)) else None

    def _once(self, key: tuple[str, ...], read: Callable[[], Record]) -> Record:
        if key not in self._known:
            try:
                self._known[key] = read()
            except (OSError, ValueError) as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, Exception):
            raise known
        return known

    def _believe(self, spec: RunSpec) -> Record:
        directory = self.directory(spec)
        record = read_record(directory.record)
        started = record.job is not None
        told = read_identity(directory)[0] if started else record.spec
        if any((one, one.hash) != (spec, spec.hash) for one in (record.spec, told)):
            raise ValueError(ANOTHER_SPEC)
        if started and self._text(record) != self._text(self.assembled(spec)):
            raise ValueError(NOT_ITS_FILES)
        return record

    def _text(self, record: Record) -> str:
        return placeless(record.to_json(), self.results)


class RestoredRecords(RunRecords):
    """As the records are once those that are missing or edited have been put together anew."""

    def __init__(self, runs: RunRecords) -> None:
        super().__init__(runs.results)
        self._known = runs._known

    def believed(self, spec: RunSpec) -> Record:
        return self.kept(spec) or super().believed(spec)


def _is_kept(record: Record, spec: RunSpec, directory: RunDirectory) -> bool:
    """A plain baseline that ended badly by itself is kept too: many scripts need a launcher."""
    if record.spec_hash != spec.hash:
        return False
    if record.failure is None:
        return True
    return spec.is_plain and directory.ended.exists() and record.failure.verdict not in CUT_SHORT


def placeless(data: Any, results: Path) -> str:
    """A JSON value as text, without the paths to the results: they may be read from elsewhere than they were written.

    results: where they are now. The path of then is recognised unless there is a space in it.
    """
    text = json.dumps(data, sort_keys=True).replace(f"{json.dumps(str(results))[1:-1]}/", "")
    return re.sub(r'[^\s"]*/(?=runs/|jobs/)', "", text)
