"""The records of a results directory. A record counts only if assembling its raw files again gives the same record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.records.record import Record, read_record

ANOTHER_SPEC = "a record of another spec (the configuration has changed since, or it was copied here)"
NOT_ITS_FILES = "a record that does not match its raw files"
CUT_SHORT = ("time limit", "stopped by a signal, saved its state")  # ends that do not show whether the script can run


class RunRecords:
    """The records of all runs; each run is read and assembled once, for any number of gates."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._known: dict[tuple[str, ...], Record | OSError | ValueError] = {}

    def directory(self, spec: RunSpec) -> RunDirectory:
        """Return the directory of a planned run."""
        return RunDirectory(self.results / "runs" / spec.name)

    def assembled(self, spec: RunSpec) -> Record:
        """Return the record that the raw files give. Raises OSError or ValueError if run.json is missing or damaged."""
        return self._once(("assembled", spec.name), lambda: assemble(self.directory(spec)))

    def believed(self, spec: RunSpec) -> Record:
        """Return record.json if it is of exactly this spec and the raw files give the same record.

        Raises OSError, or ValueError with the reason, otherwise.
        """
        return self._once(("believed", spec.name, spec.hash), lambda: self._believe(spec))

    def is_believed(self, spec: RunSpec) -> bool:
        """Return True if there is a record that ``believed`` accepts."""
        try:
            self.believed(spec)
        except (OSError, ValueError):
            return False
        return True

    def kept(self, spec: RunSpec) -> Record | None:
        """Return the record, from the raw files alone, if this spec need not be run again; else None."""
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
        was_run = read_run_file(directory).spec if started else record.spec
        if any((one, one.hash) != (spec, spec.hash) for one in (record.spec, was_run)):
            raise ValueError(ANOTHER_SPEC)
        if started and self._text(record) != self._text(self.assembled(spec)):
            raise ValueError(NOT_ITS_FILES)
        return record

    def _text(self, record: Record) -> str:
        return placeless(record.model_dump(), self.results)


class RestoredRecords(RunRecords):
    """The records as they will be after missing or edited ones have been assembled again."""

    def __init__(self, runs: RunRecords) -> None:
        super().__init__(runs.results)
        self._known = runs._known

    def believed(self, spec: RunSpec) -> Record:
        return self.kept(spec) or super().believed(spec)


def _is_kept(record: Record, spec: RunSpec, directory: RunDirectory) -> bool:
    """Return True if a run need not be repeated. A failed plain baseline is kept: many scripts need a launcher."""
    if record.spec_hash != spec.hash:
        return False
    if record.failure is None:
        return True
    return spec.is_plain and directory.ended.exists() and record.failure.verdict not in CUT_SHORT


def placeless(data: Any, results: Path) -> str:
    """Return a JSON value as text without the path of the results directory, which may have been moved.

    results: its present path. An earlier path is recognised unless it contains a space.
    """
    text = json.dumps(data, sort_keys=True).replace(f"{json.dumps(str(results))[1:-1]}/", "")
    return re.sub(r'[^\s"]*/(?=runs/|jobs/)', "", text)
