"""The records of a results directory: each is written once, by its job, with digests of its raw files. And tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddp_ladder_instrument.machine import RULES

from ddp_ladder.common.files import RunDirectory, write_atomically
from ddp_ladder.common.formats import count, in_short, significant
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.raw_files import RawRun, digests, known_digests, steps_of_ranks
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.records.record import CUT_SHORT, Record, read_record
from ddp_ladder.records.steps import csv_of

ANOTHER_SPEC = "a record of another spec (the configuration has changed since, or it was copied here)"
NOT_ITS_FILES = "a record that does not match its raw files"
NAMED = 5  # runs in a line

RecordOrError = Record | OSError | ValueError


class RunRecords:
    """The records of all runs; each is read once, for any number of gates."""

    _digests = staticmethod(known_digests)

    def __init__(self, results: Path) -> None:
        self.results = results
        self.judged_anew: dict[Path, tuple[Record, Record]] = {}  # made by other rules: as they were, and as of now
        self._believed: dict[str, tuple[RunSpec, RecordOrError]] = {}
        self._any: dict[str, RecordOrError] = {}

    def directory(self, spec: RunSpec) -> RunDirectory:
        """Return the directory of a planned run."""
        return RunDirectory(self.results / "runs" / spec.name)

    def believed(self, spec: RunSpec) -> Record:
        """Return the record in record.json, if it is of exactly this spec and agrees with its raw files.

        Raises OSError, or ValueError with the reason, otherwise.
        """
        known = self._believed.get(spec.name)
        if known is None or known[0] is not spec:
            directory = self.directory(spec)
            known = spec, _attempt(lambda: self._stored(directory.record, directory, spec))
            self._believed[spec.name] = known
        if isinstance(known[1], Exception):
            raise known[1]
        return known[1]

    def is_believed(self, spec: RunSpec) -> bool:
        """Return True if there is a record that ``believed`` accepts."""
        try:
            self.believed(spec)
        except (OSError, ValueError):
            return False
        return True

    def kept(self, spec: RunSpec) -> Record | None:
        """Return the record if this spec need not be run again; else None.

        Without a record that can be believed, as after a job that died before it wrote its records, it is assembled
        from the raw files.
        """
        record = self.made(spec)
        return record if isinstance(record, Record) and _is_kept(record, spec, self.directory(spec)) else None

    def made(self, spec: RunSpec) -> RecordOrError:
        """Return the record of the run in this spec's directory, of whatever spec; the reason if there is none."""
        if spec.name not in self._any:
            self._any[spec.name] = _attempt(lambda: self.stored_or_assembled(self.directory(spec)))
        return self._any[spec.name]

    def is_begun(self, spec: RunSpec) -> bool:
        """Return True if there are raw files of exactly this spec, also of a run that failed or goes on."""
        try:
            return read_run_file(self.directory(spec)).spec_hash == spec.hash
        except (OSError, ValueError):
            return False

    def stored_or_assembled(self, directory: RunDirectory) -> Record:
        """Return the record of a run that was started: the stored one; if that is missing or wrong, from the raw files.

        Raises OSError or ValueError if run.json is missing or damaged.
        """
        spec = read_run_file(directory).spec
        for file in (directory.record, directory.assembled):  # the second is left by a job that did not write the first
            with contextlib.suppress(OSError, ValueError):
                return self._stored(file, directory, spec)
        return _assembled(directory)

    def _stored(self, file: Path, directory: RunDirectory, spec: RunSpec) -> Record:
        """Return a record if it is of this spec, and its raw files are those of the time it was written."""
        record = read_record(file)
        if record.spec_hash != spec.hash:
            raise ValueError(ANOTHER_SPEC)
        if record.job is not None:  # without a job: left out on purpose
            _check_files(record.files, self._digests(directory))
        # Thousands of records with a spec each take much memory.
        return self._judged(directory, record.model_copy(update={"spec": spec}))

    def _judged(self, directory: RunDirectory, record: Record) -> Record:
        """Return a record as the rules of now judge its logs. Raises OSError or ValueError."""
        # Of ranks whose files could not be read the rules are not known; they may have made impossible figures.
        is_complete = all(check.ok for check in record.checks if check.kind == "complete")
        if record.rules == RULES or (not record.rules and is_complete):
            return record
        if directory.path not in self.judged_anew:
            anew = _assembled(directory).model_copy(update={"spec": record.spec})
            if not (record.rules or anew.rules):
                return record
            self.judged_anew[directory.path] = record, anew
        return self.judged_anew[directory.path][1]

    def changes_of_rules(self) -> list[str]:
        """Return what the rules of now changed in the figures of earlier runs, and which figures they cannot change."""
        lines = []
        judged = [pair for pair in self.judged_anew.values() if pair[1].rules == RULES]
        if judged:
            changed = [text for pair in judged if (text := _changed(*pair))]
            what = (
                f"samples/s changed in {len(changed)}: {in_short(changed, NAMED)}" if changed else "no figure changed"
            )
            runs = count(len(judged), "run")
            lines.append(f"{runs} of an earlier version judged anew from the logs, by rules {RULES}: {what}")
        kept = [now.spec.name for _, now in self.judged_anew.values() if now.rules != RULES]
        if kept:
            lines.append(
                f"{count(len(kept), 'run')} of an earlier version cannot be judged anew, as a log is missing or "
                f"damaged (rank<k>.log in nodes/*.zip): the figures are those of then ({in_short(kept, NAMED)})"
            )
        return lines


def _assembled(directory: RunDirectory) -> Record:
    from ddp_ladder.assembly.assemble import assemble  # and all that finds causes: a gate hardly ever needs it

    return assemble(directory)


def _changed(before: Record, now: Record) -> str:
    """Return ``default/weak/2x1/r1: 3,200 -> 2,144``; empty if the figure is the same."""
    rates = [record.throughput.samples_per_s if record.throughput else None for record in (before, now)]
    texts = ["none" if rate is None else significant(rate) for rate in rates]
    return "" if texts[0] == texts[1] else f"{now.spec.name}: {texts[0]} -> {texts[1]}"


def _check_files(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in dict.fromkeys((*then, *now)):
        if name not in now:
            raise ValueError(f"{NOT_ITS_FILES} ({name} is missing: if this is a copy, copy all files below runs/)")
        if then.get(name) != now[name]:
            what = "has changed since the record was written" if name in then else "was not there when it was written"
            raise ValueError(f"{NOT_ITS_FILES} ({name} {what})")


def _attempt(read: Callable[[], Record]) -> RecordOrError:
    try:
        return read()
    except (OSError, ValueError) as error:
        return error


def as_made(plan: Plan, runs: RunRecords) -> Plan:
    """Return the plan with those further repeats among its runs that a job has begun: they count as any other run."""
    known = {spec.name for spec in plan.runs}
    begun = [tuple(spec for spec in job.more if spec.name not in known and runs.is_begun(spec)) for job in plan.jobs]
    jobs = (replace(job, runs=job.runs + further) for job, further in zip(plan.jobs, begun, strict=True))
    return replace(plan, jobs=tuple(jobs)) if any(begun) else plan


class FullyCheckedRecords(RunRecords):
    """The records, each compared with all its raw files as they are read now."""

    _digests = staticmethod(digests)


class RestoredRecords(RunRecords):
    """The records as they will be after those that are missing or wrong have been assembled again."""

    def __init__(self, runs: RunRecords) -> None:
        super().__init__(runs.results)
        self._any, self._believed, self.judged_anew = runs._any, runs._believed, runs.judged_anew

    def believed(self, spec: RunSpec) -> Record:
        return self.kept(spec) or super().believed(spec)


def _is_kept(record: Record, spec: RunSpec, directory: RunDirectory) -> bool:
    """Return True if a run need not be repeated. A failed plain baseline is kept: many scripts need a launcher."""
    if record.spec_hash != spec.hash:
        return False
    if record.failure is None:
        return True
    return spec.is_plain and directory.ended.exists() and record.failure.kind not in CUT_SHORT


# --- The steps of ranks and the samples of nodes as CSV files that people open. Nothing reads them here.


MOST_RANKS = 64  # of a run whose tables are written unasked


def write_tables(raw: RawRun) -> None:
    """Write ranks/rank<k>.csv and nodes/node<k>.csv. Raises OSError (NotWritten too) or ValueError."""
    for rank, steps in steps_of_ranks(raw):
        write_atomically(raw.directory.ranks / f"rank{rank}.csv", csv_of(steps))
    for node_rank in range(len(raw.run.nodes)):
        path = raw.directory.samples(node_rank)
        if path.exists():  # of a monitor whose agent did not pack it, or written before
            continue
        with suppress(FileNotFoundError):  # not sampled
            write_atomically(path, raw.content.read(path, raw.run.first_agent(node_rank)))
