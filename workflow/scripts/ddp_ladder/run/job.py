"""The job of one scale: it holds one allocation and executes every run of the scale in it, one after the other."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any, Protocol
from uuid import uuid4

from ddp_ladder.assembly.assemble import Assembler, Assembly, not_run
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import NotWritten, RunDirectory, check_room, make_directory, write_json, writing
from ddp_ladder.common.formats import duration, signal_of
from ddp_ladder.common.process import Interrupted
from ddp_ladder.diagnosis.failures import silence_in_words
from ddp_ladder.diagnosis.hangs import hang_failure
from ddp_ladder.gates.scaling import next_repeat, repeats_in_words
from ddp_ladder.ledger.jobs import Kind, accounted
from ddp_ladder.node.launch import is_module
from ddp_ladder.node.software import git_state
from ddp_ladder.plan.plan import OWN_DIRECTORY, WRAPPER_DIRECTORY, Plan, RunSpec, ScaleJob
from ddp_ladder.preflight.result import PREFLIGHT_FAILED, PreflightResult, outcome
from ddp_ladder.records.raw_files import RawRun, read_raw_run
from ddp_ladder.records.raw_models import Job, Repository, RunEnd, RunFile
from ddp_ladder.records.record import CUT_SHORT, LEFT_OUT, Failure, LeftOut, Record, write_record
from ddp_ladder.records.witness import Witnesses
from ddp_ladder.run.hangs import Stalls
from ddp_ladder.run.interruption import END_S, limits_s, raise_on_signals, running
from ddp_ladder.run.job_script import write_job_script
from ddp_ladder.run.logs import join_logs
from ddp_ladder.run.nodes import Allocation, Nodes, NoRendezvous, nodes_of, write_run_file
from ddp_ladder.run.preflight import PreflightOf
from ddp_ladder.run.progress import LAST_WORDS_OF, RunConsole, expected_steps
from ddp_ladder.run.signs import SILENT_AFTER_S, SignsOfLife
from ddp_ladder.settings.keys import Hang, Preflight
from ddp_ladder.settings.terms import REFERENCE_VARIANT, runtime_key
from ddp_ladder.slurm.jobs import Advice
from ddp_ladder.slurm.lock import Lock, held
from ddp_ladder.slurm.query import time_left_s

RAW = (
    *("run.json", "ended.json", "ranks", "nodes", "train.log", "progress.json", "assembled.json", "slow.json"),
    WRAPPER_DIRECTORY,
)
TICK_S = 0.5
LONGER = 1.1  # than the longest repeat so far: what a run that is started must have left
PLAIN_TIMES = 3.0  # first step of a plain baseline, in times of the default variant's whole run
PLAIN_AT_LEAST_S = 60.0  # but no less: starting on a busy file system takes time


class Watch(Protocol):
    """A watch over the speed of a run."""

    every_s: float  # the agents write the sums of their ranks so often

    def begin(self, directory: RunDirectory, run: RunFile) -> None: ...

    def look(self) -> float | None:
        """Look, if it is time; return when the run is to be ended (time.monotonic()), None if it goes on."""

    def end(self) -> None: ...


@dataclass(frozen=True)
class Context:
    """Objects and limits that all runs of one job share."""

    job: ScaleJob
    results: Path
    nodes: Nodes
    deadline_s: float  # on the monotonic clock, when the runs' time is up
    console: RunConsole
    end_s: float = END_S  # for agents to end after SIGTERM
    slurm_s: float | None = None  # from the job's begin to the end that Slurm had set
    warn_before_s: float | None = None  # before the deadline: the ranks get SIGUSR1 then; None: they get none
    watch: Watch | None = None
    link: int | None = None  # the number of the link that this job is; None: it is of no chain
    is_witness: bool = False  # its runs follow their batches
    assembler: Assembler = field(default_factory=Assembler)

    def directory(self, spec: RunSpec) -> RunDirectory:
        return RunDirectory(self.results / "runs" / spec.name)

    @property
    def label(self) -> str:
        """The start of the job's lines: ``stage3 2x4``."""
        return f"{self.job.stage} {self.job.scale}"

    @property
    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()


def context_of(job: ScaleJob, results: Path) -> Context:
    """Return the nodes and the limits of the job that this process is."""
    nodes = nodes_of(os.environ, job)
    runtime_s, slurm_s = 60.0 * job.runtime_min, None
    if isinstance(nodes, Allocation):
        # Asked now: in an allocation some of its time is over.
        slurm_s = time_left_s(nodes.job_id, time.monotonic() + runtime_s / 2)
    runs_s, end_s = limits_s(runtime_s, slurm_s)
    deadline_s = time.monotonic() + runs_s
    if isinstance(nodes, Allocation):
        nodes = replace(nodes, until_s=deadline_s)
    return Context(job, results, nodes, deadline_s, RunConsole(len(job.runs)), end_s, slurm_s)


def carry_out(context: Context, kind: Kind, work: Callable[[], Iterable[Path]], kept: str) -> int:
    """Do a job's work, which returns the files that it wrote, while this process holds the scale; return the exit code.

    kept: what is said of the results if a signal n interrupts it; the exit code is then 128 + n.
    """
    raise_on_signals()
    lock = Lock.of_scale(context.results, str(context.job.scale), context.label)
    job_id, say = context.nodes.job_id, context.console.say
    try:
        with held(lock, job_id, say), accounted(context.results, context.job, job_id, kind):
            written = work()
    except Interrupted as interrupted:
        say(f"{context.label}: interrupted by {interrupted}; {kept}")
        return 128 + interrupted.signum
    finally:
        context.assembler.close()
    say(f"{context.label}: {LAST_WORDS_OF[kind]}")
    for file in written:
        print(f"written: {file}")
    return 0


class VariantStopped(Exception):
    """A run is ended because an earlier one of its variant turns out to have failed."""


class RunsSoFar:
    """What is known of the runs that matter to a job. The record of the last one may still be being assembled."""

    def __init__(self, console: RunConsole, records: Mapping[str, Record], stopped: Mapping[str, str]) -> None:
        self._console = console
        self.records = {**records}  # by the names of the runs
        self.stopped = {**stopped}  # variants that are not run any more, and why
        self.assembling_s = 0.0  # the longest time that a record took
        self._assembly: Assembly | None = None

    def add(self, made: Record | Assembly) -> None:
        """Add the record of a run; one that is being assembled is added when it is there."""
        self.settle()
        if isinstance(made, Assembly):
            self._assembly = made
        else:
            self._add(made)

    def settle(self) -> None:
        """Wait for the record that is being assembled."""
        if self._assembly is not None:
            made, self._assembly = self._assembly, None
            self.assembling_s = max(self.assembling_s, made.took_s)
            self._console.ended(made.record)
            self._add(made.record)

    def look(self, variant: str) -> None:
        """Take the record that is being assembled, if it is there. Raises VariantStopped if this variant shall end."""
        if self._assembly is not None and self._assembly.is_done:
            self.settle()
        if variant in self.stopped:
            self._console.ending(self.stopped[variant])
            raise VariantStopped

    def _add(self, record: Record) -> None:
        self.records[record.spec.name] = record
        if record.status == "failed" and record.job is not None:
            self.stopped.setdefault(record.spec.variant, f"{record.spec.name} failed in the same job")

    def took_s(self) -> Iterator[tuple[RunSpec, float]]:
        """Yield the runs that ended well, and what they took."""
        yield from ((record.spec, record.timing.wall_s) for record in self.records.values() if record.timing)
        if self._assembly is not None:
            yield self._assembly.spec, self._assembly.wall_s


def run_scale(
    context: Context,
    plan: Plan,
    left_out: Mapping[str, str],
    before: Callable[[Context, Plan], None] = lambda context, plan: None,
) -> None:
    """Bring every run of the scale to a record, and as many further repeats as its figures need and its time holds.

    plan: with the further repeats that have been begun among its runs. left_out: variants not to be run, and why. A
    variant that fails is not repeated in this job: its stage's gate cannot open any more, so the other variants get the
    time. before: what is done between the preflight and the first run, if there is one to be made. Raises Interrupted.

    The records are written together at the end: they are outputs in Snakemake's sense, and if one existed after an
    interruption, it would ask for --rerun-incomplete. A later job goes on from the raw files.
    """
    earlier = RunRecords(context.results)
    compared = plan.job(plan.first_scale).runs if context.job.more else ()
    known = {run.name: record for run in (*compared, *context.job.runs) if (record := earlier.kept(run))}
    runs = RunsSoFar(context.console, known, left_out)
    to_make = [run for run in context.job.runs if run.name not in known and run.variant not in runs.stopped]
    wanted = to_make or next_repeat(plan, context.job, known, runs.stopped)
    failed = failed_preflight(context) if wanted and context.left_s > 0 else None
    if wanted and not failed:
        before(context, plan)
    mine: list[RunSpec] = []
    for spec in context.job.runs if failed else _in_turn(context, plan, runs):
        directory = context.directory(spec)
        made: Record | Assembly
        if record := earlier.kept(spec):
            context.console.reused(spec)
            made = record
        elif spec.variant in runs.stopped:
            made = _stopped(directory, spec, runs)
        elif failed is not None:
            made = leave_out_run(directory, spec, "preflight failed", failed.why, failed.next)
        else:
            made = _made(context, spec, runs)
        failure = made.failure if isinstance(made, Record) else None
        if spec in context.job.more and failure and failure.kind in (*LEFT_OUT, *CUT_SHORT):
            _set_aside(directory, spec)  # a further repeat that was not made closes no gate
            if failure.kind == "variant stopped":
                continue
            context.console.say(f"{context.label}: no further repeat: {failure.why}")
            break
        runs.add(made)
        mine.append(spec)
    runs.settle()
    for spec in mine:
        directory = context.directory(spec)
        write_record(directory.record, runs.records[spec.name])
        directory.assembled.unlink(missing_ok=True)


def _stopped(directory: RunDirectory, spec: RunSpec, runs: RunsSoFar) -> Record:
    why = runs.stopped[spec.variant]
    return leave_out_run(directory, spec, "variant stopped", why, "see the records of the runs before it")


def _in_turn(context: Context, plan: Plan, runs: RunsSoFar) -> Iterator[RunSpec]:
    """Yield the planned runs, then further repeats while one is wanted and the time holds it. runs: grow meanwhile."""
    job = context.job
    yield from job.runs
    runs.settle()
    while more := next_repeat(plan, job, runs.records, runs.stopped):
        needed_s = sum(needed_for(spec, runs) for spec in more)
        if needed_s > context.left_s:
            left, needed = duration(max(0.0, context.left_s)), duration(needed_s)
            context.console.say(
                f"{context.label}: {repeats_in_words(plan, job, runs.records, runs.stopped)}; another repeat takes "
                f"about {needed}, and the job has {left} left: start snakemake again, or raise "
                f"{runtime_key(job.stage)}"
            )
            return
        context.console.expect(len(more))
        yield from more
        runs.settle()
    if job.is_adaptive:
        context.console.say(f"{context.label}: {repeats_in_words(plan, job, runs.records, runs.stopped)}")


def run_preflight(context: Context) -> PreflightResult:
    """Test the nodes, their network and the collectives, and write the result. Raises Interrupted."""
    preflight = PreflightOf(context.job, context.results, context.nodes, context.end_s, context.left_s)
    at_most = duration(preflight.longest_s)
    context.console.say(f"{context.label}: preflight of nodes, network and collectives, at most {at_most}")
    result = preflight.run()
    context.console.say(f"{context.label}: {outcome(result)}")
    return result


def failed_preflight(context: Context) -> Advice | None:
    """Run the preflight, if the job has one, and show its findings; return why the runs are not started, if so."""
    if not context.job.preflight.enabled:
        return None
    result = run_preflight(context)
    for finding in result.findings:
        # Each line begins with the scale: the lines of a job on Slurm are found by that.
        context.console.say(f"{context.label}: {finding.severity.upper()} {finding.line}")
    failed = result.failure
    return None if failed is None else Advice(f"{PREFLIGHT_FAILED}: {failed.in_words}", failed.next)


def _made(context: Context, spec: RunSpec, runs: RunsSoFar) -> Record | Assembly:
    """Run, if the time holds it. runs: known so far."""
    directory, needed_s = context.directory(spec), needed_for(spec, runs)
    if context.left_s <= 0 or context.left_s < needed_s:
        why = "the job's time was up before it could start"
        if context.left_s > 0:
            why = f"the job had {duration(context.left_s)} left for it, and it takes about {duration(needed_s)}"
        longer = f"raise {runtime_key(spec.stage)} and start snakemake again"
        return leave_out_run(directory, spec, "no time", why, longer)
    try:
        return run_on_free_port(context, directory, spec, runs)
    except VariantStopped:
        return _stopped(directory, spec, runs)
    except NotWritten as error:
        error.lost = f"the run {spec.name}; those that finished are kept"
        raise


def needed_for(spec: RunSpec, runs: RunsSoFar) -> float:
    """Return the seconds that a run and its record will take, by its other repeats; 0 if none has ended well yet."""
    like = (spec.variant, spec.mode, spec.scale)
    took_s = [wall_s for run, wall_s in runs.took_s() if (run.variant, run.mode, run.scale) == like]
    return LONGER * (max(took_s) + runs.assembling_s) if took_s else 0.0


def hang_bounds(hang: Hang | None, spec: RunSpec, runs: RunsSoFar) -> Hang | None:
    """Return when a run has hung: a plain baseline, of a script that may wait for its peers, has less time to begin.

    Without a run under the launcher to compare with it has the time of any run.
    """
    like = (REFERENCE_VARIANT, spec.mode)
    took_s = [wall_s for run, wall_s in runs.took_s() if (run.variant, run.mode) == like]
    if hang is None or hang.first_step_s is None or not spec.is_plain or not took_s:
        return hang
    return hang.replace(first_step_s=min(hang.first_step_s, max(PLAIN_AT_LEAST_S, PLAIN_TIMES * max(took_s))))


def run_on_free_port(context: Context, directory: RunDirectory, spec: RunSpec, runs: RunsSoFar) -> Record | Assembly:
    """Run; run again on another port if another process took the free one meanwhile.

    Not if the script has chosen the port. The record of a run that ended well is still being assembled.
    """
    for last in (False, False, True):
        made = _run(context, directory, spec, runs)
        if isinstance(made, Assembly):
            break
        if last or made.failure is None or made.failure.kind != "rendezvous port taken" or context.left_s <= 0:
            break
        context.console.say(f"{spec.name}: {made.failure.why}; starting again on another port")
    return made


def _set_aside(directory: RunDirectory, spec: RunSpec) -> int:
    """Move an earlier attempt's files to attempts/<n>/, so that nothing is lost; return the next attempt's number.

    A link of a chain finds its state where the last one left it.
    """
    done = len(list(directory.attempts.glob("*"))) if directory.attempts.exists() else 0
    names = (*RAW, "record.json") if spec.is_link else (*RAW, OWN_DIRECTORY)
    old = [directory.path / name for name in names if (directory.path / name).exists()]
    if old:
        done += 1
        target = directory.attempts / str(done)
        with writing(target):
            target.mkdir(parents=True)
            for path in old:
                path.rename(target / path.name)
    return done + 1


def leave_out_run(directory: RunDirectory, spec: RunSpec, kind: LeftOut, why: str, next_step: str) -> Record:
    """Return the record of a run that is not started, and set an earlier attempt's files aside."""
    _set_aside(directory, spec)
    return not_run(spec, kind, why, next_step)


def _run(context: Context, directory: RunDirectory, spec: RunSpec, runs: RunsSoFar) -> Record | Assembly:
    attempt = _set_aside(directory, spec)
    job = Job(id=context.nodes.job_id, attempt=attempt, run_id=uuid4().hex)
    write_job_script(context.job, spec, directory)
    for path in (directory.ranks, directory.nodes):
        make_directory(path)
    key, before = f"{job.id}.{job.attempt}.{spec.name}", RunDirectory(directory.attempts / str(attempt - 1))
    more: dict[str, Any] = {"repository": _repository(spec), "goes_on": _goes_on(before)}
    more |= {"hang": hang_bounds(context.job.hang, spec, runs), "monitor": context.job.monitor}
    if context.link is not None:
        more["link"] = context.link
    more |= {"is_witness": True} if context.is_witness else {"witness": Witnesses(context.results).told(spec)}
    if context.warn_before_s is not None:
        more["warn_at_s"] = time.time() + max(0.0, context.left_s - context.warn_before_s)
    if context.watch is not None:
        more["totals_every_s"] = context.watch.every_s
    try:
        run = write_run_file(context.nodes, context.job, spec, directory, job, key, **more)
    except NoRendezvous as error:
        return not_run(spec, "no nodes", str(error), error.next_step)
    context.console.started(spec)
    started_at_s, started_s = time.time(), time.monotonic()  # the clock may be set meanwhile
    interrupted: Interrupted | None = None
    try:
        outcome, ended_well = _supervise(context, directory, spec, run, runs)
    except Interrupted as error:
        interrupted, ended_well = error, False
        outcome = {"outcome": "interrupted", "found_at_s": error.at_s, "job_signal": str(error)}
    except NoRendezvous as error:
        record = not_run(spec, "no nodes", str(error), error.next_step)
        context.console.ended(record)
        return record
    if context.watch is not None:
        context.watch.end()
    join_logs(directory, run)
    for path in (directory.addresses, directory.one_ended):
        with suppress(OSError):
            path.unlink(missing_ok=True)
    ended_at_s = started_at_s + time.monotonic() - started_s
    end = RunEnd(**run.identity, host=socket.gethostname(), started_at_s=started_at_s, ended_at_s=ended_at_s, **outcome)
    check_room(directory.path)  # on a full disk other files are missing, and the run is not complete
    write_json(directory.ended, end.model_dump())
    if interrupted is not None:
        raise interrupted
    assembly = context.assembler.begin(directory, spec, end.wall_s)
    if ended_well:
        return assembly
    runs.settle()
    context.console.ended(assembly.record)  # what follows depends on why it failed
    return assembly.record


def _repository(spec: RunSpec) -> Repository | None:
    """Return the git state of the script's repository; of a module (-m), if it is in the start's directory."""
    script = Path(spec.script)
    if is_module(spec):
        module = Path(*spec.script[3:].strip().split("."))
        script = next((file for file in (module.with_suffix(".py"), module / "__main__.py") if file.exists()), module)
    state = git_state(script)
    return Repository(**state) if state else None


def _goes_on(before: RunDirectory) -> bool:
    """Return True if an earlier attempt reported that it saved its state: the script may resume, with fewer steps.

    before: the files of the last attempt, which says the same of those before it.
    """
    try:
        raw = read_raw_run(before)
    except (OSError, ValueError):
        return False
    return raw.run.goes_on or raw.spec.is_link or any(end.exit_code == os.EX_TEMPFAIL for end in raw.ends)


def _supervise(
    context: Context, directory: RunDirectory, spec: RunSpec, run: RunFile, runs: RunsSoFar
) -> tuple[Mapping[str, Any], bool]:
    """Run the agents to their end; return the outcome as ended.json has it, and whether all of them ended with 0.

    Prints why before it ends the processes.

    Raises Interrupted and VariantStopped, with the agents ended, and NoRendezvous if the nodes are gone, or Slurm does
    not answer.
    """
    stalls, signs, until_s = Stalls(directory, run), SignsOfLife(directory, run), context.deadline_s
    if context.watch is not None:
        context.watch.begin(directory, run)
    starters = context.nodes.starters(directory, spec)
    with running(starters, context.end_s) as exits:
        for _ in starters:
            while True:
                if until_s <= time.monotonic():
                    limits = {"asked_min": context.job.runtime_min, "slurm_s": context.slurm_s}
                    return {"outcome": "time limit", **limits}, False
                try:
                    code = exits.get(timeout=TICK_S)
                    break
                except Empty:
                    signs.look()
                    if stalls.is_hang(signs.files):
                        hang = hang_failure([*stalls.reports.values()], "")
                        context.console.ending(hang.in_words)
                        return {"outcome": "hang"}, False
                    if signs.silent:
                        context.console.ending(silence_in_words(signs.silent, run.nodes))
                        end = {"found_at_s": time.time(), "silent": signs.silent}
                        return {"outcome": "silent agent", **end}, False
                    if signs.orphan or signs.is_overdue:
                        context.console.ending(_overdue(signs))
                        return {"outcome": "finished"}, False
                    runs.look(spec.variant)
                    if context.watch is not None and (ends_s := context.watch.look()) is not None:
                        until_s = min(until_s, ends_s)
                    expected = expected_steps(spec, runs.records.values())
                    context.console.follow(directory.progress, expected, until_s - time.monotonic())
            if code == os.EX_CANTCREAT:
                return {"outcome": "not written"}, False
            if code < 0:
                what = "srun" if isinstance(context.nodes, Allocation) else "agent"
                context.console.ending(f"its {what} was ended by {signal_of(code)}")
                ended_by = {"found_at_s": time.time(), f"{what}_signal": signal_of(code)}
                return {"outcome": f"{what} ended", **ended_by}, False
            if code != 0:
                # The others would wait for the lost node until they time out.
                return {"outcome": "finished"}, False
    return {"outcome": "finished"}, True


def _overdue(signs: SignsOfLife) -> str:
    if signs.orphan:
        agent, end = signs.orphan
        return f"the slurmstepd of {agent} ({end.host}) has died"
    some = "one of its agents has failed" if any(end.failed for end in signs.ends.values()) else "all agents have ended"
    return f"{some}, and srun has not ended for {duration(SILENT_AFTER_S)}: srun, or a slurmstepd, is stopped"


def run_link(context: Context, warn_before_s: float) -> Record:
    """Run the script, with SIGUSR1 so long before the job's time is up; return its record. Raises Interrupted.

    Of a run that ended, the record as assembled stays beside its raw files: the next link moves both.
    """
    context = replace(context, warn_before_s=warn_before_s)
    (spec,) = context.job.runs
    directory = context.directory(spec)
    directory.record.unlink(missing_ok=True)  # of the link before: this one may be killed before it has its own
    failed = failed_preflight(context)
    if failed is not None:
        record = leave_out_run(directory, spec, "preflight failed", failed.why, failed.next)
    elif context.left_s <= warn_before_s:
        left, signal = duration(max(0.0, context.left_s)), duration(warn_before_s)
        why = f"when the script could start, the job had {left} left, and the signal comes {signal} before its end"
        longer = f"raise {runtime_key(spec.stage)}, or lower production.warn_before_s"
        record = leave_out_run(directory, spec, "no time", why, longer)
    else:
        runs = RunsSoFar(context.console, {}, {})
        made = run_on_free_port(context, directory, spec, runs)
        runs.add(made)
        runs.settle()
        record = made.record if isinstance(made, Assembly) else made
    write_record(directory.record, record)
    return record


# --- The job of a rehearsal: the script twice, each time until it is told that its time is nearly up.


def run_twice(context: Context, each_s: float, warn_before_s: float) -> tuple[RawRun, RawRun] | Failure:
    """Run the script twice; return the raw files of both starts, or why one was not started. Raises Interrupted.

    each_s: until the signal; warn_before_s: from there to the end. What an earlier rehearsal left is deleted: the first
    start has no state.
    """
    directory = context.directory(context.job.runs[0])
    shutil.rmtree(directory.path, ignore_errors=True)
    if failed := failed_preflight(context):  # once, and not within the time of a start
        return Failure(verdict="not run", why=failed.why, next=failed.next)
    context = replace(context, job=replace(context.job, preflight=Preflight(enabled=False)))
    context.console.expect(1)  # a second start
    for _ in range(2):
        deadline_s = min(context.deadline_s, time.monotonic() + each_s + warn_before_s)
        record = run_link(replace(context, deadline_s=deadline_s), warn_before_s)
        if record.job is None and record.failure is not None:
            return record.failure
    earlier = max(directory.attempts.iterdir(), key=lambda path: int(path.name))  # others found their port taken
    return read_raw_run(RunDirectory(earlier)), read_raw_run(directory)
