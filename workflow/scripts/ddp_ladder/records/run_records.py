"""The records of a results directory. A record counts only if assembling its raw files again gives the same record."""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.record import Record, read_record, record_text

ANOTHER_SPEC = "a record of another spec (the configuration has changed since, or it was copied here)"
NOT_ITS_FILES = "a record that does not match its raw files"
MANY, A_PART = 1000, 100  # runs: fewer than the first take less time than further processes need to start
MOST_PROCESSES = 8
NOT_EVIDENCE = {"usage"}  # of the samples, which are many and may be lost: no figure or check needs them
CUT_SHORT = ("time limit", "stopped by a signal, saved its state")  # ends that do not show whether the script can run


Found = Record | OSError | ValueError


class RunRecords:
    """The records of all runs; each run is read and assembled once, for any number of gates."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._assembled: dict[str, Found] = {}
        self._believed: dict[str, tuple[RunSpec, Found]] = {}

    def directory(self, spec: RunSpec) -> RunDirectory:
        """Return the directory of a planned run."""
        return RunDirectory(self.results / "runs" / spec.name)

    def assembled(self, spec: RunSpec) -> Record:
        """Return the record that the raw files give. Raises OSError or ValueError if run.json is missing or damaged."""
        if spec.name not in self._assembled:
            self._assembled[spec.name] = _found(lambda: assemble(self.directory(spec)))
        return _record(self._assembled[spec.name])

    def believed(self, spec: RunSpec) -> Record:
        """Return the record that the raw files give, if record.json is of exactly this spec and says the same.

        A record of an earlier version lacks what that did not record; what it has must be the same.

        Raises OSError, or ValueError with the reason, otherwise.
        """
        known = self._believed.get(spec.name)
        if known is None or known[0] is not spec:
            self._believed[spec.name] = known = spec, _found(lambda: self._believe(spec))
        return _record(known[1])

    def is_believed(self, spec: RunSpec) -> bool:
        """Return True if there is a record that ``believed`` accepts."""
        try:
            self.believed(spec)
        except (OSError, ValueError):
            return False
        return True

    def believe_all(self, specs: Sequence[RunSpec]) -> None:
        """Read all of these once, in several processes if they are many: ``believed`` then only returns them."""
        processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        if len(specs) < MANY or processes < 2:
            return
        parts = [specs[first : first + A_PART] for first in range(0, len(specs), A_PART)]
        try:
            with ProcessPoolExecutor(processes, get_context("spawn"), initializer=gc.disable) as pool:
                for part, found in zip(parts, pool.map(_believe_part, repeat(self.results), parts), strict=True):
                    for spec, one in zip(part, found, strict=True):
                        self._keep(spec, one)
        except (OSError, BrokenProcessPool):
            return  # no further processes here: the rest is read by this one

    def _keep(self, spec: RunSpec, found: str | OSError | ValueError) -> None:
        if isinstance(found, str):
            record = Record.model_validate_json(found).model_copy(update={"spec": spec})
            self._assembled[spec.name] = record
            self._believed[spec.name] = spec, record
        else:
            self._believed[spec.name] = spec, found

    def kept(self, spec: RunSpec) -> Record | None:
        """Return the record, from the raw files alone, if this spec need not be run again; else None."""
        try:
            record = self.assembled(spec)
        except (OSError, ValueError):
            return None
        return record if _is_kept(record, spec, self.directory(spec)) else None

    def is_begun(self, spec: RunSpec) -> bool:
        """Return True if there are raw files of exactly this spec, also of a run that failed or goes on."""
        try:
            return self.assembled(spec).spec_hash == spec.hash
        except (OSError, ValueError):
            return False

    def _believe(self, spec: RunSpec) -> Record:
        record = self._as_written(spec) or self._as_read(spec)
        shared = record.model_copy(update={"spec": spec})  # thousands of records with a spec each take much memory
        self._assembled[spec.name] = shared
        return shared

    def _as_written(self, spec: RunSpec) -> Record | None:
        """Return the assembled record if record.json is what this version writes of it; None: it may say the same."""
        written = self.directory(spec).record.read_bytes()
        try:
            assembled = self.assembled(spec)
        except (OSError, ValueError):
            return None
        is_of_spec = (assembled.spec, assembled.spec_hash) == (spec, spec.hash)
        return assembled if is_of_spec and written == record_text(assembled).encode() else None

    def _as_read(self, spec: RunSpec) -> Record:
        record = read_record(self.directory(spec).record)
        assembled = record if record.job is None else self.assembled(spec)  # without a job: left out on purpose
        if any((one.spec, one.spec.hash) != (spec, spec.hash) for one in (record, assembled)):
            raise ValueError(ANOTHER_SPEC)
        if not self._agree(record, assembled):
            raise ValueError(f"{NOT_ITS_FILES}{_first_difference(record, assembled)}")
        return assembled

    def _agree(self, record: Record, assembled: Record) -> bool:
        text = record.model_dump_json(exclude_unset=True, exclude=NOT_EVIDENCE)
        if text == assembled.model_dump_json(exclude=NOT_EVIDENCE):
            return True
        written = record.model_dump(mode="json", exclude_unset=True, exclude=NOT_EVIDENCE)
        again = assembled.model_dump(mode="json", exclude=NOT_EVIDENCE)
        return _says_the_same(written, again) or _says_the_same(self._placeless(written), self._placeless(again))

    def _placeless(self, data: Any) -> Any:
        return json.loads(placeless(data, self.results))


def _found(read: Callable[[], Record]) -> Found:
    try:
        return read()
    except (OSError, ValueError) as error:
        return error


def _record(found: Found) -> Record:
    if isinstance(found, Exception):
        raise found
    return found


def _believe_part(results: Path, specs: Sequence[RunSpec]) -> list[str | OSError | ValueError]:
    """Return the record of each run as JSON, which is sent faster than objects, or the error, in its own process."""
    runs = RunRecords(results)
    found = [_found(partial(runs.believed, spec)) for spec in specs]
    return [one.model_dump_json() if isinstance(one, Record) else one for one in found]


def as_made(plan: Plan, runs: RunRecords) -> Plan:
    """Return the plan with those further repeats among its runs that a job has begun: they count as any other run."""
    known = {spec.name for spec in plan.runs}
    begun = [tuple(spec for spec in job.more if spec.name not in known and runs.is_begun(spec)) for job in plan.jobs]
    jobs = (replace(job, runs=job.runs + further) for job, further in zip(plan.jobs, begun, strict=True))
    return replace(plan, jobs=tuple(jobs)) if any(begun) else plan


class RestoredRecords(RunRecords):
    """The records as they will be after missing or edited ones have been assembled again."""

    def __init__(self, runs: RunRecords) -> None:
        super().__init__(runs.results)
        self._assembled, self._believed = runs._assembled, runs._believed

    def believed(self, spec: RunSpec) -> Record:
        return self.kept(spec) or super().believed(spec)


def _says_the_same(written: Any, assembled: Any) -> bool:
    """Return True if two JSON values are equal, but for keys that the first one lacks."""
    if isinstance(written, dict) and isinstance(assembled, dict):
        return all(key in assembled and _says_the_same(written[key], assembled[key]) for key in written)
    if isinstance(written, list) and isinstance(assembled, list):
        return len(written) == len(assembled) and all(map(_says_the_same, written, assembled))
    return type(written) is type(assembled) and bool(written == assembled)


def _first_difference(written: Record, assembled: Record) -> str:
    """Return the first check that the raw files fail, and the record did not, in brackets; empty if there is none."""
    passed = {check.name for check in written.checks if check.ok}
    failed = (check for check in assembled.checks if check.name in passed and not check.ok)
    return next((f" ({check.measured})" for check in failed), "")


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
