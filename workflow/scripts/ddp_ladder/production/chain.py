"""The chain: its links as their files show them, and the one decision whether another link follows.

A link is one job, which runs the script once (again only if its port was taken). Every start of the script leaves its
raw files in the same run directory, and those of earlier starts in attempts/<n>: the job id says to which link they
belong.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.accounting.jobs import HOUR_S, JobFile, job_files
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory, read_json, write_json
from ddp_ladder.common.formats import count, duration, significant
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Positive, Several, Version1
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_files import RawRun, of_run, read_raw_run
from ddp_ladder.records.raw_models import SlowFile
from ddp_ladder.records.record import Failure, Record
from ddp_ladder.run.progress import end_of_link
from ddp_ladder.settings.terms import PRODUCTION, runtime_key

CHAIN_FILE = "chain.json"
CLOSED = (
    "equal parameters", "finite", "disjoint data", "distinct devices", "equal steps", "order of samples", "world size",
)  # fmt: skip
"""Checks that show a training whose result is worth nothing: another link would burn hours."""
CLOCKS_S = 1.0  # a run may seem to begin so long before its job's file
LEAST_DONE = 0.02  # of a training: a smaller part shows no trend
LEAST_S = 60.0  # of a shortened link: a shorter one trains nothing
LEAST_TIMES_WARNING = 2.0  # the same, in times of the seconds between the signal and the end

Hours = Annotated[float, Field(ge=0)]


class Chain(Model):
    """What is fixed for the whole chain (chain.json), written by the start of `snakemake production`."""

    schema_version: Version1 = 1
    scale: str
    gpus: Positive
    runtime_min: Positive  # of each link
    up_to_hours: Hours  # GPU hours of all links
    warn_before_s: float
    slower_percent: float
    slower: Literal["warn", "stop"]
    promised_samples_per_s: float | None  # the ladder's figure; None: this scale was not measured
    promised_by: Several[str] = ()  # the runs that it is from
    training_hours: Hours | None = None  # of one training at this scale, as the ladder expects; None: unknown

    @property
    def samples(self) -> float | None:
        """Return the samples of one training; None if they are not known."""
        if self.training_hours is None or self.promised_samples_per_s is None:
            return None
        return self.training_hours * HOUR_S * self.promised_samples_per_s

    def most_hours(self, job: ScaleJob) -> float:
        """Return the GPU hours that a link can use."""
        return self.gpus * job.runtime_min / 60

    def within_hours(self, job: ScaleJob, used: float) -> ScaleJob:
        """Return the next link's job, shortened to the hours that are left if that leaves it time before the signal."""
        minutes = int((self.up_to_hours - used) * 60 / self.gpus)
        least_s = max(LEAST_S, LEAST_TIMES_WARNING * self.warn_before_s)
        return replace(job, runtime_min=minutes) if least_s / 60 <= minutes < job.runtime_min else job


def unit_of(job: ScaleJob) -> str:
    """Return whose hours are counted: GPU, or process on a site without."""
    return "GPU" if is_gpu(job.runs[0].device) else "process"


def chain_directory(results: Path) -> Path:
    """Return the directory of the chain in a ladder's results."""
    return results / PRODUCTION


def write_chain(directory: Path, chain: Chain) -> None:
    """Write chain.json. Raises NotWritten."""
    write_json(directory / CHAIN_FILE, chain.model_dump())


def read_chain(directory: Path) -> Chain:
    """Read chain.json. Raises UserError."""
    path = directory / CHAIN_FILE
    try:
        return Chain.from_json(read_json(path))
    except (OSError, ValueError) as error:
        advice = "start it with `snakemake production`, which writes the file"
        raise UserError(Problem(str(path), "there is no chain of jobs here", str(error), next=advice)) from error


# Links

End = Literal["running", "complete", "saved", "time limit", "failed"]


@dataclass(frozen=True)
class Link:
    """One job of the chain."""

    number: int  # from 1
    job_id: str
    begun_at_s: float
    ended_at_s: float | None  # None: it goes on, or was killed
    hours: float  # GPU hours that it held, so far
    end: End
    failure: Failure | None = None  # what its run's record says; None for a good end, or if it left no run
    record: Record | None = None  # of its last start of the script
    steps: int | None = None  # that its ranks made; None: unknown
    saves: int | None = None  # that were seen; None: no rank could tell
    slow: SlowFile | None = None  # when it was slower than promised; None: it was not
    directory: RunDirectory | None = None  # of its last start of the script

    @property
    def in_words(self) -> str:
        """Return ``link 3 (job 812)``."""
        return f"link {self.number} (job {self.job_id})"

    @property
    def cause(self) -> str:
        """Return what its end means, in words."""
        if self.record is None:
            return "it left no record" if self.end == "failed" else self.end
        if self.end in ("saved", "time limit", "complete"):
            return end_of_link(self.record)
        return self.end if self.failure is None else f"{self.failure.verdict}: {self.failure.why}"


def read_links(directory: Path, plan: Plan, now_s: float, alive: str | None = None) -> tuple[Link, ...]:
    """Return the links that have begun, in their order. Reads only.

    directory: of the chain. now_s: unix time, for links that have no end. alive: the job that goes on.
    """
    files = sorted((file for _, file in job_files(directory)), key=lambda file: file.begun_at_s)
    records = RunRecords(directory)
    starts = [] if not files else list(_starts(records, plan.jobs[0].runs[0]))
    return tuple(
        _link(
            number,
            file,
            [start for start in starts if _is_of(start, file, following)],
            now_s if file.job_id == alive else _latest_end_s(file, following, plan.jobs[0], now_s),
            alive,
        )
        for number, (file, following) in enumerate(zip_longest(files, files[1:]), start=1)
    )


def _latest_end_s(file: JobFile, following: JobFile | None, job: ScaleJob, now_s: float) -> float:
    """Return until when a killed link can have gone on: never beside the next one, nor beyond its time limit."""
    return min(now_s, file.begun_at_s + 60 * job.runtime_min, following.begun_at_s if following else math.inf)


@dataclass(frozen=True)
class _Start:
    """One start of the script."""

    directory: RunDirectory
    raw: RawRun | None
    record: Record

    @property
    def job_id(self) -> str:
        return self.record.job.id if self.record.job else ""


def _starts(records: RunRecords, spec: RunSpec) -> Sequence[_Start]:
    """Return the starts of the script, oldest first, as far as their files can be read."""
    last = records.directory(spec)
    earlier = sorted(last.attempts.glob("*"), key=lambda path: int(path.name) if path.name.isdecimal() else 0)
    starts = []
    for directory in map(RunDirectory, (*earlier, last.path)):
        with suppress(OSError, ValueError):
            record = records.stored_or_assembled(directory)
            raw = None
            with suppress(OSError, ValueError):
                raw = read_raw_run(directory)
            starts.append(_Start(directory, raw, record))
    return starts


def _is_of(start: _Start, file: JobFile, following: JobFile | None) -> bool:
    """Return True if a start belongs to a link. Links in one allocation have one job id, and differ in their times."""
    if start.job_id != file.job_id or start.raw is None or start.raw.ended is None:
        return start.job_id == file.job_id and (following is None or following.job_id != file.job_id)
    began_s = start.raw.ended.started_at_s
    return began_s >= file.begun_at_s - CLOCKS_S and (following is None or began_s < following.begun_at_s)


def _link(number: int, file: JobFile, starts: Sequence[_Start], latest_s: float, alive: str | None) -> Link:
    goes_on = file.ended_at_s is None and file.job_id == alive
    last = starts[-1] if starts else None
    ended_at_s = file.ended_at_s
    held_s = file.row.elapsed_s if file.row else max(0.0, (ended_at_s or latest_s) - file.begun_at_s)
    return Link(
        number=number,
        job_id=file.job_id,
        begun_at_s=file.begun_at_s,
        ended_at_s=ended_at_s,
        hours=held_s * file.gpus / HOUR_S,
        end="running" if goes_on else "failed" if last is None else end_of(last.record, last.raw),
        failure=last.record.failure if last else None,
        record=last.record if last else None,
        steps=max((rank.steps for rank in last.record.ranks), default=None) if last else None,
        saves=_saves(last.raw) if last and last.raw else None,
        slow=_slow(last.raw) if last and last.raw else None,
        directory=last.directory if last else None,
    )


def _slow(raw: RawRun) -> SlowFile | None:
    with suppress(OSError, ValueError):
        return of_run(raw.run, SlowFile, raw.directory.slow)
    return None


def _saves(raw: RawRun) -> int | None:
    """Return how often a rank saved with torch.save; None if no rank left its phases."""
    return max((len(end.phases.saves_s) for end in raw.ends if end.phases), default=None)


def end_of(record: Record, raw: RawRun | None) -> End:
    """Return how a start of the script ended."""
    codes = [end.exit_code for end in raw.ends] if raw else []
    is_whole = raw is not None and len(codes) == record.spec.world_size and raw.ended is not None
    if is_whole and raw is not None and raw.ended and raw.ended.outcome == "finished" and not any(codes):
        return "complete"
    failure = record.failure
    if failure is None and not record.spec.instrument:
        return "complete"
    if failure.kind == "saved state" if failure is not None else os.EX_TEMPFAIL in codes:
        return "saved"
    if failure is not None and failure.kind == "time limit":
        return "time limit"
    return "failed"


def hours_of(chain: Chain, links: Sequence[Link], job: ScaleJob) -> str:
    """Return ``0.12 of 0.20 GPU h``: what the links have used, of what they may."""
    used = significant(sum(link.hours for link in links))
    return f"{used} of {significant(chain.up_to_hours)} {unit_of(job)} h"


def expected_end_s(chain: Chain, links: Sequence[Link], now_s: float, global_batch: int) -> float | None:
    """Return when the training will be complete (unix time), by what is left of it; None if that is not known. Pure.

    The time since the first link began counts with its queues, starts and failures; steps that were made again are
    counted twice. With little done, the ladder's figure says how long the rest takes.
    """
    samples = chain.samples
    if not samples or chain.training_hours is None or not links or any(link.steps is None for link in links):
        return None
    done = sum(link.steps or 0 for link in links) * global_batch / samples
    if done >= 1:
        return None
    if done < LEAST_DONE:
        return now_s + (1 - done) * chain.training_hours * HOUR_S
    return now_s + (now_s - links[0].begun_at_s) * (1 - done) / done


def clock(at_s: float | None) -> str:
    """Return a time of this place; unknown for none."""
    return "unknown" if at_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


# The decision


@dataclass(frozen=True)
class Step:
    """What follows the last link."""

    kind: Literal["go on", "complete", "stop"]
    verdict: str
    why: str = ""
    next: str = ""


def decide(chain: Chain, job: ScaleJob, links: Sequence[Link], since: int = 0) -> Step:
    """Return whether another link follows. Pure.

    job: the next link's. links: all that have ended. since: how many of them were there when this start began: a person
    who starts again has seen why it stopped, and only what came since can stop it again.
    """
    if links and links[-1].end == "complete":
        return _complete(links[-1])
    if stopped := _after(links[since:]):
        return stopped
    return _within_hours(chain, job, links)


def _complete(last: Link) -> Step:
    if bad := _closed(last):
        return Step("stop", f"the training ended, and its result is doubtful: {bad.verdict}", bad.why, bad.next)
    return Step("complete", "the training is complete", f"{last.in_words} ended with exit code 0 on every rank")


def _closed(link: Link) -> Failure | None:
    """Return the failed check of a link whose training is worth nothing; None if there is none."""
    record = link.record
    bad = next((check for check in record.checks if not check.ok and check.name in CLOSED), None) if record else None
    if record is None or bad is None:
        return None
    if record.failure is not None and record.failure.kind is None:
        return record.failure
    return Failure(verdict=bad.name, why=f"{bad.measured}, wanted {bad.wanted}", next="correct the script")


def _after(links: Sequence[Link]) -> Step | None:
    """Return why the chain stops after these links of this start; None if it goes on."""
    if not links:
        return None
    last, before = links[-1], links[-2] if len(links) > 1 else None
    if last.end != "failed" and (bad := _closed(last)):
        return Step("stop", bad.verdict, f"{last.in_words}: {bad.why}", bad.next)
    if last.slow is not None and last.slow.action == "stop":
        advice = "correct what is named, and start it again; `slower: warn` below production goes on all the same"
        return Step("stop", "slower than promised", f"{last.in_words}: {last.slow.slow[0].why}", advice)
    if last.end == "saved":
        circle = before is not None and before.end == "saved" and last.steps == 0 == before.steps
        why = f"{before.in_words if before else ''} and {last.in_words} saved their state without a step"
        look = "look at how the script finds its checkpoint, and at the signal: it may come before the first step"
        return Step("stop", "the chain goes in a circle", why, look) if circle else None
    if last.end == "time limit":
        return _after_time_limit(last, before)
    return _after_failure(last, before)


def _after_time_limit(last: Link, before: Link | None) -> Step | None:
    unseen = not last.saves and (last.saves == 0 or (before is not None and before.end == "time limit"))
    if not unseen or (last.saves is None and before is not None and before.saves):
        return None
    why = f"{last.in_words} reached its time limit after {count(last.steps or 0, 'step')}, and no save was seen"
    advice = f"raise {runtime_key(PRODUCTION)}, save more often, or let the script save at SIGUSR1 and end with code 75"
    return Step("stop", "a link ended without progress", why, advice)


def _after_failure(last: Link, before: Link | None) -> Step | None:
    advice = last.failure.next if last.failure else "look at the log of its job"
    if before is not None and before.end == "failed" and _is_same(last, before):
        why = f"{before.in_words} and {last.in_words}: {last.cause}"
        return Step("stop", "the same failure twice", why, advice)
    if not last.saves:
        seen = "no save was seen" if last.saves == 0 else "whether it saved is not known"
        return Step("stop", "a link failed without progress", f"{last.in_words}: {last.cause}; {seen}", advice)
    return None


def _is_same(one: Link, other: Link) -> bool:
    """Return True if two links failed alike: of the same kind, or with the same verdict at the same place."""
    if one.failure is None or other.failure is None:
        return one.failure is other.failure
    return (one.failure.verdict, one.failure.rank, one.failure.node) == (
        other.failure.verdict, other.failure.rank, other.failure.node,
    )  # fmt: skip


def _within_hours(chain: Chain, job: ScaleJob, links: Sequence[Link]) -> Step:
    used = sum(link.hours for link in links)
    if used + chain.most_hours(job) <= chain.up_to_hours:
        return Step("go on", f"link {len(links) + 1}")
    link, most = f"a link of at most {duration(60 * job.runtime_min)}", chain.most_hours(job)
    why = f"{hours_of(chain, links, job)} are used, and {link} could take "
    key = f"{PRODUCTION}.up_to_hours"
    return Step("stop", f"{key} is reached", f"{why}{significant(most)}", f"raise {key}, and start it again")
