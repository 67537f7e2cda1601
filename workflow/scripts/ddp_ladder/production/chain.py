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
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Literal

from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory, read_as, readable, write_json
from ddp_ladder.common.findings import Finding, Severity, deciding
from ddp_ladder.common.formats import count, duration, significant
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Amount, Count, Model, Positive, Several, Version1
from ddp_ladder.common.process import SIGNALS
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.ledger.jobs import Begun, JobFile, RunStart, begun_at, in_order, job_files, starts_of
from ddp_ladder.ledger.kept import Later
from ddp_ladder.plan.plan import Hours, HourUnit, Plan, RunSpec, ScaleJob, read_plan, unit_of
from ddp_ladder.records.raw_files import RawRun, of_run, read_raw_run
from ddp_ladder.records.raw_models import SlowFile, read_run_file
from ddp_ladder.records.record import Failure, Record, read_record
from ddp_ladder.run.interruption import MARGIN_S, limits_s
from ddp_ladder.run.progress import good_end
from ddp_ladder.settings.keys import CentreHours
from ddp_ladder.settings.terms import PRODUCTION, Scale, runtime_key
from ddp_ladder.slurm.jobs import CANCELLED, ENDS, SUBMITTED, TIMEOUT, read_job_end

CHAIN_FILE, LINKS_FILE = "chain.json", "links.json"
CLOSED = (
    "equal parameters", "finite", "disjoint data", "distinct devices", "equal steps", "order of samples", "world size",
)  # fmt: skip
"""Checks that show a training whose result is worth nothing: another link would burn hours."""
UNEQUAL_WHERE_CUT = ("equal parameters", "equal steps")
"""Those that say nothing of ranks that were ended from outside, each where it was."""
LEAST_DONE = 0.02  # of a training: a smaller part shows no trend
ROUNDED = 1e-12  # of hours: what sums of them are rounded by


class Chain(Model):
    """What is fixed for the whole chain (chain.json), written by the start of `snakemake production`."""

    schema_version: Version1 = 1
    scale: str
    gpus: Positive  # that its ranks use
    gpus_held: Count = 0  # that Slurm gives to a job, which a centre bills; 0: not known
    runtime_min: Positive  # of each link
    up_to_hours: Amount  # hours of the GPUs that all links hold
    warn_before_s: float  # of the script's time in a link
    preflight_s: Amount = 0.0  # of a link, as it was measured; without a measurement, as long as it may take
    is_on_slurm: bool = True  # False: nothing ends a link beside itself
    slower_percent: float
    slower: Literal["warn", "stop"]
    promised_samples_per_s: float | None  # the ladder's figure; None: this scale was not measured
    promise_doubt: str = ""  # why that may be wrong
    training_hours: Amount | None = None  # of one training at this scale, as the ladder expects; None: unknown
    training_samples: float | None = None  # of one training; None: unknown
    centre_hours: CentreHours | None = None  # in which its costs are said, too

    def holding(self, links: Sequence[Link]) -> Chain:
        """Return it with the GPUs that these links were given: a node may be held whole by ranks that use a part."""
        return self.replace(gpus_held=max((self.gpus_held, *(link.gpus for link in links))))

    @property
    def billed_gpus(self) -> int:
        return self.gpus_held or self.gpus

    def most_hours(self, job: ScaleJob) -> float:
        """Return the GPU hours that a link can hold."""
        return self.billed_gpus * job.runtime_min / 60

    def cost(self, gpu_hours: float) -> Hours:
        """Return the cost of hours of the GPUs that it holds."""
        return Hours.held(gpu_hours / self.billed_gpus, Scale.parse(self.scale).nodes, self.billed_gpus)

    def hour_unit(self, job: ScaleJob) -> HourUnit:
        return HourUnit(unit_of(job.runs), self.centre_hours)

    def used(self, gpu_hours: float, job: ScaleJob) -> str:
        """Return ``0.12 of 0.20 GPU h``: GPU hours, of those that its links may use; with the centre's hours."""
        return self.hour_unit(job).of(self.cost(gpu_hours), self.cost(self.up_to_hours))

    def hours_left(self, used: float) -> float:
        """Return the GPU hours that are left, and what a sum of floats may be too large by: 15 times 0.2 is 3."""
        return self.up_to_hours * (1 + ROUNDED) - used

    def full_links_left(self, job: ScaleJob, used: float) -> int:
        """Return how many links of full length the hours that are left hold."""
        return max(0, int(self.hours_left(used) / self.most_hours(job)))

    def before_signal_s(self, minutes: int) -> float:
        """Return the time that a script has before the signal in a link of so many minutes; below 0: there is none."""
        runs_s, _ = limits_s(60.0 * minutes, 60.0 * minutes if self.is_on_slurm else None)
        return runs_s - self.preflight_s - self.warn_before_s

    @property
    def signal_in_words(self) -> str:
        """Return when the signal comes."""
        of_job = f", which is {duration(MARGIN_S)} before that of its job" if self.is_on_slurm else ""
        return f"SIGUSR1 {duration(self.warn_before_s)} before the script's end{of_job}"

    def within_hours(self, job: ScaleJob, used: float) -> ScaleJob:
        """Return the next link's job, shortened to the hours that are left if that leaves it time before the signal."""
        minutes = int(self.hours_left(used) * 60 / self.billed_gpus)
        if not 1 <= minutes < job.runtime_min:
            return job
        return replace(job, runtime_min=minutes) if self.before_signal_s(minutes) >= self.warn_before_s else job


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
        return read_as(Chain, path)
    except (OSError, ValueError) as error:
        advice = "start it with `snakemake production`, which writes the file"
        raise UserError(Problem(str(path), "there is no chain of jobs here", str(error), next=advice)) from error


def read_chain_plan(directory: Path) -> Plan:
    """Read the plan of a chain. Raises UserError."""
    file = directory / "plan.json"
    same = "if script, arguments and scale are what they were"
    return read_plan(file, f"{same}, delete it (rm {quote(str(file))}): `snakemake production` writes it again")


# Links

End = Literal["running", "complete", "saved", "time limit", "failed"]
NOT_OF_THE_SCRIPT = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")
"""States of Slurm in which a job ends whatever its script does; it may be so any number of times."""


class Link(Model):
    """One job of the chain."""

    number: Positive
    job_id: str
    begun_at_s: float
    ended_at_s: float | None  # None: it goes on, or was killed
    hours: Amount  # of the GPUs that it held, so far
    gpus: Count = 0  # that it held; 0: an earlier version wrote it
    end: End
    state: str | None = None  # Slurm's, of a job that is over; None: not known
    attempt: Count = 0  # its last start of the script; 0: it made none
    failure: Failure | None = None  # what its run's record says; None for a good end, or if it left no run
    doubt: Failure | None = None  # why the result of its training is worth nothing
    steps: Count | None = None  # that its ranks made; None: unknown
    saves: Count | None = None  # that were seen; None: unknown
    is_anew: bool = False  # its states show that it began where the start before it had begun
    slow: SlowFile | None = None  # when it was slower than promised; None: it was not
    signal: str | None = None  # that ended its process, as this or its start saw it

    @property
    def in_words(self) -> str:
        """Return ``link 3 (job 812)``."""
        return f"link {self.number} (job {self.job_id})"

    @property
    def is_ended_by_person(self) -> bool:
        """Return True if someone ended it, or its start. Not known of SIGTERM on a Slurm that does not tell its state.

        Slurm sends SIGTERM, too, to a job that it preempts or whose time is up.
        """
        if self.state in (*NOT_OF_THE_SCRIPT, TIMEOUT):
            return False
        if self.state is None and self.job_id.isdecimal() and self.signal == "SIGTERM":
            return False
        is_interrupted = self.failure is not None and self.failure.kind == "interrupted"
        return self.state == CANCELLED or is_interrupted or self.signal in {signum.name for signum in SIGNALS}

    @property
    def cause(self) -> str:
        """Return what its end means, in words."""
        if self.end == "failed" and self.state == CANCELLED:  # its processes show SIGTERM alone
            return ENDS[CANCELLED].why
        if self.end == "failed" and self.failure is None and self.is_ended_by_person:
            return f"ended from outside: the job got {self.signal}"
        ended = f"; Slurm ended it: {self.state}" if self.state in (*NOT_OF_THE_SCRIPT, CANCELLED) else ""
        if self.end == "failed":
            failure = self.failure
            return f"{failure.in_words if failure else 'it left no record'}{ended}"
        if self.end == "running":
            return self.end
        return good_end("saved state" if self.end == "saved" else self.end, self.steps) + ended

    @property
    def has_progressed(self) -> bool | None:
        """Return whether the next link goes on from a later state; None if that is not known.

        Exit code 75 says so. A save is only known if torch wrote it.
        """
        if self.steps == 0 or (self.end != "saved" and self.saves == 0):
            return False
        return True if self.end == "saved" or self.saves else None


class LinksFile(Model):
    """What is known of the links that are over (links.json): their files are many, and are read once."""

    schema_version: Version1 = 1
    links: Several[Link]


def keep_links(directory: Path, links: Sequence[Link]) -> None:
    """Write links.json. links: of a chain of which no job goes on. Raises NotWritten."""
    write_json(directory / LINKS_FILE, LinksFile(links=tuple(links)).model_dump())


def read_links(directory: Path, plan: Plan, now_s: float, alive: str | None = None) -> tuple[Link, ...]:
    """Return the links that have begun, in their order. Reads only.

    directory: of the chain. now_s: unix time, for links that have no end. alive: the job that goes on.
    """
    (job,) = plan.jobs
    files = sorted((file for _, file in job_files(directory) if file.has_held), key=in_order)
    records, spec, of_before = RunRecords(directory), job.runs[0], readable(LinksFile, directory / LINKS_FILE)
    kept = {(link.job_id, link.begun_at_s): link for link in of_before.links} if of_before is not None else {}
    begun: Begun | None = None
    links = []
    for place, (file, following) in enumerate(zip_longest(files, files[1:]), start=1):
        number, run = file.number or place, records.directory(spec)
        known = kept.get((file.job_id, file.begun_at_s))
        goes_on = following is None and file.ended_at_s is None and file.job_id == alive
        if known is not None:
            link = known
        elif goes_on:
            link = _link(number, file, (), None, run).replace(end="running", steps=None, saves=None)
            link = link.replace(slow=_slow(run, file.job_id))
        else:
            if begun is None:
                begun = begun_at(directory, str(job.scale), max((each.attempt for each in kept.values()), default=0))
            starts = starts_of(records, begun, file, math.inf)
            link = _link(number, file, starts, _state(directory, file), run)
            if following is None and file.has_begun and not starts:
                link = link.replace(failure=_left_out(run, spec))
        if known is None or file.row is not None:
            most_s = math.inf if goes_on else 60.0 * job.runtime_min
            held_s = _held_s(file, most_s, (now_s, following.begun_at_s if following else now_s))
            link = link.replace(hours=held_s * file.gpus_held / HOUR_S, gpus=file.gpus_held)
        elif not link.gpus:
            link = link.replace(gpus=file.gpus)
        links.append(link)
    return tuple(links)


def _held_s(file: JobFile, most_s: float, later_s: Sequence[float]) -> float:
    """Return the seconds that a link has held its nodes.

    most_s: if nothing tells its end. later_s: unix times after that end; one before its begin is of another clock.
    """
    if file.row is not None:
        return file.row.elapsed_s
    if file.ended_at_s is not None:
        return max(0.0, file.ended_at_s - file.begun_at_s)
    held_s = min((at_s - file.begun_at_s for at_s in later_s if at_s >= file.begun_at_s), default=most_s)
    return min(held_s, most_s) if math.isfinite(held_s) else 0.0


def _state(directory: Path, file: JobFile) -> str | None:
    """Return Slurm's state of a job that is over, of its accounting, or as it was followed; None if it is not known."""
    if file.row is not None and file.row.source == "sacct":
        return file.row.state
    with suppress(OSError, ValueError):
        end = read_job_end(directory, file.scale)
        if end is not None and end.job_id == file.job_id and end.state != SUBMITTED:
            return end.state
    return None


def _left_out(directory: RunDirectory, spec: RunSpec) -> Failure | None:
    """Return why the last link did not start the script; it deletes that record when it begins."""
    with suppress(OSError, ValueError):
        record = read_record(directory.record)
        return record.failure if record.job is None and record.spec_hash == spec.hash else None
    return None


def _is_anew(start: RunStart, attempts: Path) -> bool:
    """Return True if all ranks of a start began where they had begun in the one before it."""
    with suppress(OSError, ValueError):
        before = read_raw_run(RunDirectory(attempts / str(start.run.job.attempt - 1)))
        return Later(start.raw.first_states).places_in(before) == {"beginning"}
    return False


def _link(number: int, file: JobFile, starts: Sequence[RunStart], state: str | None, directory: RunDirectory) -> Link:
    """Return a link that is over. directory: of its run."""
    last = starts[-1] if starts else None
    link = Link(
        number=number,
        job_id=file.job_id,
        begun_at_s=file.begun_at_s,
        ended_at_s=file.ended_at_s,
        hours=0.0,
        end="failed",
        state=state,
        signal=file.ended_by,
        steps=0,
        saves=0,
    )
    if last is None:
        return link if file.has_begun else link.replace(failure=NOT_BEGUN)
    end = end_of(last.record, last.raw)
    if end == "failed" and state == TIMEOUT:
        end = "time limit"
    return link.replace(
        end=end,
        attempt=last.run.job.attempt,
        failure=_killed(file, last.record.failure),
        doubt=_doubt(last.record, end),
        steps=last.steps,
        saves=_saves(last),
        is_anew=_is_anew(starts[0], directory.attempts),
        slow=_slow(last.directory, file.job_id),
    )


NOT_BEGUN = Failure(
    verdict="no link began",
    why="the job held its nodes, and its link wrote nothing",
    next="look at the log of its job, and whether its nodes reach the results; then start it again",
)


def _killed(file: JobFile, failure: Failure | None) -> Failure | None:
    """Return the failure of a link's run, with what its start saw of the end of a link that was killed."""
    if failure is None or failure.kind != "job killed" or file.ended_by is None:
        return failure
    return failure.replace(why=f"its process was ended by {file.ended_by}")


def _slow(directory: RunDirectory, job_id: str) -> SlowFile | None:
    with suppress(OSError, ValueError):
        run = read_run_file(directory)
        return of_run(run, SlowFile, directory.slow) if run.job.id == job_id else None
    return None


def _saves(start: RunStart) -> int | None:
    """Return how often a rank saved; None if that is not known of all of them, and none is known to have saved.

    Of a rank 0 that was killed, its progress tells.
    """
    saves = [len(end.phases.saves_s) if end.phases else None for end in start.raw.ends]
    if 0 not in start.raw.ranks and start.progress:
        saves.append(start.progress.saves)
    most = max((count for count in saves if count is not None), default=0)
    return most if most or (len(saves) == start.run.spec.world_size and None not in saves) else None


def _doubt(record: Record, end: End) -> Failure | None:
    """Return the failed check that shows a training whose result is worth nothing; None if there is none.

    Ranks that left no record, or trained nothing, show nothing.
    """
    ranks = record.ranks
    if len(ranks) < record.spec.world_size or not any(rank.steps for rank in ranks):
        return None
    unknown = UNEQUAL_WHERE_CUT if end in ("time limit", "failed") else ()
    if not all(rank.parameters for rank in ranks):
        unknown = (*unknown, "equal parameters")
    bad = deciding(each for each in record.checks if each.kind in CLOSED and each.kind not in unknown)
    if bad is None:
        return None
    if record.failure is not None and record.failure.kind is None:
        return record.failure
    return Failure(verdict=bad.kind, why=f"{bad.measured}, wanted {bad.wanted}", next="correct the script")


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


def used_hours(links: Sequence[Link]) -> float:
    """Return the hours of the GPUs that links have held, so far."""
    return sum(link.hours for link in links)


def hours_of(chain: Chain, links: Sequence[Link], job: ScaleJob) -> str:
    """Return what the links have used, of what they may."""
    return chain.holding(links).used(used_hours(links), job)


def expected_end_s(chain: Chain, links: Sequence[Link], now_s: float, global_batch: int) -> float | None:
    """Return when the training will be complete (unix time), by what is left of it; None if that is not known. Pure.

    The time since the first link began counts with its queues, starts and failures; steps that were made again are
    counted twice. With little done, the ladder's figure says how long the rest takes.
    """
    samples = chain.training_samples
    if not samples or not links or any(link.steps is None for link in links):
        return None
    done = sum(link.steps or 0 for link in links) * global_batch / samples
    if done >= 1:
        return None
    if done < LEAST_DONE or now_s <= links[0].begun_at_s:  # the latter: by another clock
        return None if chain.training_hours is None else now_s + (1 - done) * chain.training_hours * HOUR_S
    return now_s + (now_s - links[0].begun_at_s) * (1 - done) / done


def clock(at_s: float | None) -> str:
    """Return a time of this place; unknown for none."""
    return "unknown" if at_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


# The decision


def over(severity: Severity, verdict: str, why: str, next_step: str = "") -> Finding:
    """Return that a chain is over: a note if its training is complete, an error if it stops before."""
    evidence = (why,) if why else ()
    return Finding(kind="chain", severity=severity, measured=verdict, evidence=evidence, next=next_step)


def decide(chain: Chain, job: ScaleJob, links: Sequence[Link], since: int = 0) -> Finding | None:
    """Return why the chain is over; None if another link follows. Pure.

    job: the next link's. links: all that have ended. since: how many of them were there when this start began: a person
    who starts again has seen why it stopped, and only what came since can stop it again.
    """
    if (last := completed(links)) is not None:
        if bad := last.doubt:
            return over("error", f"the training ended, and its result is doubtful: {bad.verdict}", bad.why, bad.next)
        return over("note", "the training is complete", f"{last.in_words} ended with exit code 0 on every rank")
    return _after(links[since:]) or _within_hours(chain, job, links)


def completed(links: Sequence[Link]) -> Link | None:
    """Return the link that completed the training; None if none has. A job after it had nothing to do."""
    return next((link for link in links if link.end == "complete"), None)


def _after(links: Sequence[Link]) -> Finding | None:
    """Return why the chain stops after these links of this start; None if it goes on."""
    if not links:
        return None
    last, before = links[-1], links[-2] if len(links) > 1 else None
    if last.doubt is not None and last.end != "failed":
        return over("error", last.doubt.verdict, f"{last.in_words}: {last.doubt.why}", last.doubt.next)
    if last.slow is not None and last.slow.action == "stop":
        advice = "correct what is named, and start it again; `slower: warn` below production goes on all the same"
        return over("error", "slower than promised", f"{last.in_words}: {last.slow.slow[0].why}", advice)
    if last.is_ended_by_person:
        what = "the job was cancelled" if last.state == CANCELLED else "the link was ended from outside"
        return over("error", what, f"{last.in_words}: {last.cause}", "start it again to go on")
    if before is not None and before.has_progressed and last.is_anew:
        why = f"{last.in_words} began where {before.in_words} had begun, although that one had saved its state"
        advice = "let the script load its last checkpoint at each start; `snakemake rehearsal` shows whether it does"
        return over("error", "the chain goes in a circle", why, advice)
    by_slurm = last.state in NOT_OF_THE_SCRIPT
    if before is not None and not by_slurm and _is_same_failure(last, before):
        why = f"{before.in_words} and {last.in_words}: {last.cause}"
        return over("error", "the same failure twice", why, _advice(last))
    if last.has_progressed:
        return None
    if before is not None and not before.has_progressed:
        why = f"{_without_progress(before)}; {_without_progress(last)}"
        return over("error", "the chain goes in a circle", why, _advice(last))
    if last.has_progressed is None or last.end == "saved" or by_slurm:
        return None  # once: the next link shows whether it was progress, or an accident
    return over("error", "a link ended without progress", _without_progress(last), _advice(last))


def _without_progress(link: Link) -> str:
    if link.end == "saved":
        return f"{link.in_words} saved its state without a step"
    steps = "an unknown number of steps" if link.steps is None else count(link.steps, "step")
    seen = "whether it saved is not known" if link.saves is None else count(link.saves, "save") + " seen"
    return f"{link.in_words}: {link.cause}; {steps}, {seen}"


def _advice(link: Link) -> str:
    """Return what to do about a link that ended badly, or without progress."""
    if link.end == "saved":
        return "look at how the script finds its checkpoint, and at the signal: it may come before the first step"
    if link.end == "time limit":
        return (
            f"raise {runtime_key(PRODUCTION)}, save more often, or save at SIGUSR1 and end with code 75: that counts "
            "whatever writes the state, and of saves only torch's are seen"
        )
    return link.failure.next if link.failure else "look at the log of its job"


def _is_same_failure(one: Link, other: Link) -> bool:
    """Return True if two links failed alike: with the same verdict at the same place."""
    if one.end != "failed" or other.end != "failed":
        return False
    if one.failure is None or other.failure is None:
        return one.failure is other.failure
    return (one.failure.verdict, one.failure.rank, one.failure.node) == (
        other.failure.verdict, other.failure.rank, other.failure.node,
    )  # fmt: skip


def _within_hours(chain: Chain, job: ScaleJob, links: Sequence[Link]) -> Finding | None:
    used = used_hours(links)
    if chain.full_links_left(job, used):
        return None
    link, most = f"a link of at most {duration(60 * job.runtime_min)}", chain.most_hours(job)
    why = f"{hours_of(chain, links, job)} are used, and {link} could take "
    key = f"{PRODUCTION}.up_to_hours"
    advice = f"raise {key}, and start it again"
    return over("error", f"{key} has no room for a link", f"{why}{significant(most)}", advice)


# What a person asks of a chain with a file in its directory: ``touch results/production/save``, or ``.../stop``.

SAVE_FILE, STOP_FILE = "save", "stop"


def takes_save(directory: Path) -> bool:
    """Return True if the running link is to save now; the file is taken away, so that it may be asked again."""
    with suppress(OSError):
        (directory / SAVE_FILE).unlink()
        return True
    return False


def is_to_stop(directory: Path) -> bool:
    """Return True if the running link is to save and end, and no other is to follow."""
    return (directory / STOP_FILE).exists()


def stopped_as_asked(directory: Path) -> Finding | None:
    """Return why no link follows; None if nobody has asked for it."""
    if not is_to_stop(directory):
        return None
    return over(
        "error", "stopped as asked", f"{directory / STOP_FILE} is there", "start it again to go on; that removes it"
    )


def forget_requests(directory: Path) -> None:
    """Take away what was asked before: a person who starts again wants it to go on. Raises OSError."""
    for name in (SAVE_FILE, STOP_FILE):
        (directory / name).unlink(missing_ok=True)
