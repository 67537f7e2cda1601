"""One start of production: it submits the links of a chain one after the other, and follows them to its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import join

from ddp_ladder.climb.job_watch import LOOK_EVERY_S, JobWatch, WatchedJob, submission
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import Notices, of_slow_links, require_admission
from ddp_ladder.common.files import SCRIPTS, RunDirectory, make_directory, shown_path, write_json
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import count, signal_of
from ddp_ladder.common.messages import Problem, UserError, box, notify
from ddp_ladder.common.process import Interrupted, adopt_orphans, end_descendants
from ddp_ladder.ledger import jobs
from ddp_ladder.ledger.jobs import Kind
from ddp_ladder.plan.plan import Plan, ScaleJob
from ddp_ladder.preflight.result import bad_nodes, listed_bad_node, without_bad_nodes
from ddp_ladder.production import rehearsal as rehearsals
from ddp_ladder.production.chain import (
    Link,
    chain_directory,
    clock,
    completed,
    expected_end_s,
    forget_requests,
    hours_of,
    keep_links,
    over,
    read_links,
    stopped_as_asked,
    write_chain,
)
from ddp_ladder.production.plan import Production, dry_run_text, production_of
from ddp_ladder.run.interruption import END_S, KILLED_S, raise_on_signals, uninterrupted
from ddp_ladder.run.progress import Console
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.terms import PRODUCTION, REHEARSAL
from ddp_ladder.slurm import jobs as slurm_jobs
from ddp_ladder.slurm.jobs import JobEnd, NotSubmitted, Submitter, ask, cancel, job_left
from ddp_ladder.slurm.lock import START, Lock, held
from ddp_ladder.slurm.query import SlurmError, run_command, set_aside

RUN_LINK, REHEARSE = SCRIPTS / "run_link.py", SCRIPTS / "rehearse.py"
CTRL_C_S = 1.0  # a link in the same terminal gets the signal, too
GOES_ON = "follow it with the same command; end it with `scancel {job}`"


Command = Callable[[ScaleJob], list[str]]
"""The command of a job. It is started where Snakemake is."""


def _python(program: Path, directory: Path, *options: str) -> list[str]:
    return [sys.executable, str(program), "--plan", str(directory / "plan.json"), *options]


def link_command(directory: Path) -> Command:
    """Return the command of a link."""
    return lambda job: _python(RUN_LINK, directory, "--minutes", str(job.runtime_min))


class JobsHere:
    """Jobs on this machine, or in the allocation that this start is in; each ends with this process."""

    nodes = ""  # of the last job, in Slurm's short form

    def __init__(self, directory: Path, command: Command) -> None:
        self._directory, self._command = directory, command
        self._is_allocation = "SLURM_JOB_ID" in os.environ
        self._begun = 0

    def alive(self) -> str | None:
        return None

    def run(self, job: ScaleJob) -> Finding | None:
        """Run a job to its end; return why no other follows, None if the chain decides."""
        if self._is_allocation and self._begun:
            return over("error", "the allocation is used up", "a link took its time", "start it in a new allocation")
        self._begun += 1
        adopt_orphans()
        begun_s = time.monotonic()
        with uninterrupted():
            process = subprocess.Popen(self._command(job), stdin=subprocess.DEVNULL)
        try:
            code = process.wait()
        except Interrupted:
            with suppress(subprocess.TimeoutExpired):  # two signals at once: Python prints a traceback
                process.wait(CTRL_C_S)
            process.terminate()
            process.wait()
            raise
        if code < 0:
            end_descendants(KILLED_S, END_S)  # agents of a link that was killed: they would write beside the next one's
            jobs.note_end(self._directory, job, signal_of(code), time.monotonic() - begun_s)
        what = f"its process was ended by {signal_of(code)}" if code < 0 else f"it ended with exit code {code}"
        return None if code == 0 else over("error", "the link was ended", what, "start it again to go on")

    def interrupted(self) -> str:
        return "what the script has saved is kept; start it again to go on"


class JobsOnSlurm:
    """Jobs of Slurm, which go on if this start ends."""

    def __init__(self, planned: ScaleJob, directory: Path, command: Command) -> None:
        if notice := set_aside(os.environ):
            notify(notice)
        self._directory, self._command, self._stage = directory, command, planned.stage
        self._kind: Kind = "rehearsal" if planned.stage == REHEARSAL else "production"
        self._console = Console()
        self._watch = JobWatch(ask, self._console)
        self._submitter = Submitter(directory, self._console.say)
        self._job_id: str | None = None
        self._scale = str(planned.scale)
        self.nodes = ""

    def alive(self) -> str | None:
        """Return the job of an earlier start that is not over; None if there is none."""
        left = job_left(self._directory, self._scale)
        if left is None:
            return None
        return left.job_id if ask([left.job_id])[left.job_id].phase != "ended" else None

    def run(self, job: ScaleJob) -> Finding | None:
        try:
            end = self._followed(job)
        except NotSubmitted as error:
            return over("error", "the job was not submitted", str(error), error.next)
        slurm_jobs.write_job_end(self._directory, end)
        self._job_id, self.nodes = None, end.nodes
        if own := jobs.own_problem(self._directory, self._scale, end.job_id):
            return over("error", f"job {end.job_id} could not do its work", own.why, own.next)
        begun = any(file.job_id == end.job_id and file.has_begun for _, file in jobs.job_files(self._directory))
        return None if begun else over("error", f"job {end.job_id} began no link", end.in_words, end.next)

    def _followed(self, job: ScaleJob) -> JobEnd:
        """Submit the job, unless one of an earlier start goes on, and follow it to its end."""
        logs = self._directory / "logs"
        make_directory(logs)
        script = f"exec {join(self._command(job))}\n"
        wanted = submission(job, self._directory, logs.absolute(), os.getcwd(), script, self.alive())
        self._job_id = job_id = self._submitter.submit(wanted)
        log = Path(shown_path(logs / f"{job_id}.log"))
        submitted = JobEnd(job_id, self._stage, self._scale, slurm_jobs.SUBMITTED, str(log))
        jobs.submitted(self._directory, job, job_id, self._kind)  # first: what costs is known, whatever follows
        slurm_jobs.write_job_end(self._directory, submitted)
        self._watch.add(WatchedJob.of(job, job_id, log, self._directory))
        while not (ends := self._watch.look()):
            time.sleep(LOOK_EVERY_S)
        self._submitter.over(job_id)
        return ends[0]

    def interrupted(self) -> str:
        if self._job_id is None:
            return "no link goes on; start it again to go on"
        return f"job {self._job_id} goes on; {GOES_ON.format(job=self._job_id)}"


def run_production(production: Production, settings: Settings, directory: Path, on_slurm: bool) -> int:
    """Run the chain to its end; return the exit code: 0 if the training is complete, else 1. Raises UserError.

    What earlier jobs have held is counted before anything else is decided.
    """
    plan, chain = production.plan, production.chain
    rehearsals.rehearsed(directory.parent, production.job.runs[0], settings)
    raise_on_signals()
    notices, run = _notices(production, settings, directory)
    with held(Lock.of_chain(directory), START, notify):
        way = _way(plan, settings, directory, link_command(directory), on_slurm)
        write_chain(directory, chain)
        forget_requests(directory)
        if chain.promised_samples_per_s is None:
            notify(f"{PRODUCTION}: no speed is promised: {production.measured}")
        links = _links_so_far(directory, plan, way.alive())
        since = sum(link.end != "running" for link in links)
        try:
            while True:
                job, end = _following(production, directory, links, since)
                if way.alive() is None and end is not None:
                    break
                with of_slow_links(notices, run, PRODUCTION):
                    stopped = way.run(job)
                links = _links_so_far(directory, plan)
                if leaves_out_bad_node(directory, production.job, links, way.nodes):
                    since = len(links)
                _say_end(production, links)
                if stopped is not None and completed(links) is None:
                    end = stopped
                    break
        except Interrupted as interrupted:
            notify(f"{PRODUCTION}: {interrupted}: {way.interrupted()}")
            return 128 + interrupted.signum
    return _over(end, production, links, notices)


def run_own_link(production: Production, settings: Settings, directory: Path, script: Path, since: int | None) -> int:
    """Run the one link that this job of Slurm is; return 0 if the chain goes on or is complete, else 1.

    script: the batch script of a link, which is submitted for the next one before this one begins, and cancelled if
    the chain is over. since: as in decide; None: a person has submitted this job. Raises UserError.
    """
    plan, chain, job_id = production.plan, production.chain, os.environ["SLURM_JOB_ID"]
    rehearsals.rehearsed(directory.parent, production.job.runs[0], settings)
    raise_on_signals()
    notices, run = _notices(production, settings, directory)
    with held(Lock.of_chain(directory), job_id, notify):
        way = _way(plan, settings, directory, link_command(directory), on_slurm=False)
        write_chain(directory, chain)
        scale = Lock.of_scale(directory, chain.scale, f"{PRODUCTION} {chain.scale}")
        with held(scale, job_id, notify):  # a link of another start may still run
            _note_last_state(directory, production.job)
            links = _links_so_far(directory, plan, waiting=job_id)
        if since is None:
            forget_requests(directory)
            since = len(links)
        job, end = _following(production, directory, links, since)
        if end is not None:
            jobs.withdraw(directory, job_id)
            return _over(end, production, links, notices)
        following = _submit_next(script, job_id, since, production.job, directory)
        try:
            with of_slow_links(notices, run, PRODUCTION):
                stopped = way.run(job)
        except Interrupted as interrupted:
            notify(f"{PRODUCTION}: {interrupted}; {_follows(following, script)}")
            return 128 + interrupted.signum
        links = _links_so_far(directory, plan, waiting=following)
        _say_end(production, links)
        if leaves_out_bad_node(directory, production.job, links, os.environ["SLURM_JOB_NODELIST"]):
            _cancel_next(following, directory)
            following = _submit_next(script, job_id, len(links), production.job, directory)
            notify(f"{PRODUCTION}: {_follows(following, script)}")
            return 0
        end = _following(production, directory, links, since)[1] or stopped
        if end is None:
            notify(f"{PRODUCTION}: {_follows(following, script)}")
            return 0
        _cancel_next(following, directory)
        return _over(end, production, links, notices)


def _notices(production: Production, settings: Settings, directory: Path) -> tuple[Notices, RunDirectory]:
    """Return what is told of a chain, and the directory of its run."""
    notices = Notices(settings.experiment.notify, settings.experiment.results)
    return notices, RunDirectory(directory / "runs" / production.job.runs[0].name)


def _following(
    production: Production, directory: Path, links: Sequence[Link], since: int
) -> tuple[ScaleJob, Finding | None]:
    """Return the job of the next link, and why none follows, if so: also by what a person asks."""
    job, end = production.following(links, since)
    return job, end or stopped_as_asked(directory)


def leaves_out_bad_node(directory: Path, job: ScaleJob, links: Sequence[Link], nodes: str) -> bool:
    """Return True if one bad node kept the last link from training, and the next one leaves it out. Not twice in a row.

    nodes: of the last link, in Slurm's short form.
    """
    last = [link.job_id for link in links[-2:]]
    if not last or {*last} & {node.job for node in bad_nodes(directory)}:
        return False
    return listed_bad_node(directory, job, last[-1], nodes, notify, "the next link leaves {node} out")


def _submit_next(script: Path, job_id: str, since: int, job: ScaleJob, directory: Path) -> str | None:
    """Submit the next link, which waits for the end of this one; return its job, None if Slurm does not take it."""
    exclude = without_bad_nodes(job, directory).slurm.exclude
    options = [f"--dependency=afterany:{job_id}", *([f"--exclude={exclude}"] if exclude else [])]
    argv = ["sbatch", "--parsable", *options, str(script), "--since", str(since)]
    try:
        following = slurm_jobs.job_id_of(run_command(argv, slurm_jobs.SUBMIT_WITHIN_S))
    except SlurmError as error:
        notify(f"{PRODUCTION}: the next link is not submitted: {error}")
        return None
    jobs.submitted(directory, job, following, PRODUCTION)
    return following


def _cancel_next(job_id: str | None, directory: Path) -> None:
    if job_id is not None:
        notify(f"{PRODUCTION}: the next link: {cancel([job_id], 'it had not begun')}")
        jobs.withdraw(directory, job_id)


def _follows(job_id: str | None, script: Path) -> str:
    if job_id is None:
        return f"no job follows; submit it yourself: sbatch {script}"
    return f"the next link is job {job_id}; to end the chain: scancel {job_id}"


def _note_last_state(directory: Path, job: ScaleJob) -> None:
    """Keep the state of the last link's job, which nobody has followed, while Slurm's controller knows it."""
    *_, last = (None, *sorted((file for _, file in jobs.job_files(directory)), key=jobs.in_order))
    if last is None or not last.job_id.isdecimal():
        return
    state = slurm_jobs.JobState(slurm_jobs.GONE)
    with suppress(SlurmError):
        state = ask([last.job_id])[last.job_id]
    if state.phase == "ended" and state.state != slurm_jobs.GONE:
        end = JobEnd(last.job_id, job.stage, last.scale, state.state, "", nodes=state.nodes, reason=state.reason)
        slurm_jobs.write_job_end(directory, end)


def _links_so_far(
    directory: Path, plan: Plan, alive: str | None = None, waiting: str | None = None
) -> tuple[Link, ...]:
    """Account for the jobs of a chain, and return its links. Those of a chain of which no job goes on are read once.

    alive: the job that goes on. waiting: the one that has not begun its link. Raises UserError if Slurm does not tell
    what became of the others.
    """
    try:
        jobs.settle(directory, 60.0 * plan.jobs[0].runtime_min, waiting)
    except SlurmError as silent:
        what = "Slurm does not tell for how long earlier jobs of the chain held their nodes, so no other begins"
        advice = "see whether `squeue --me` answers; then start it again"
        raise UserError(Problem(str(directory), what, str(silent), next=advice)) from silent
    for warning in jobs.update_or_warn(directory)[1]:
        notify(f"warning: {warning}")
    links = read_links(directory, plan, time.time(), alive)
    if alive is None:
        keep_links(directory, links)
    return links


def _over(end: Finding, production: Production, links: Sequence[Link], notices: Notices) -> int:
    """Show why the chain is over, and tell it; return the exit code."""
    used = f"{hours_of(production.chain, links, production.job)}, {count(len(links), 'link')}"
    rows = {"verdict": end.measured, "why": " ".join(end.evidence), "used": used, "next": end.next}
    _show(**rows)
    notices.tell(
        "end", f"{PRODUCTION}: {end.measured}", "\n".join(f"{name}: {text}" for name, text in rows.items() if text)
    )
    return int(not end.ok)


def run_rehearsal(plan: Plan, settings: Settings, directory: Path, on_slurm: bool) -> int:
    """Run the rehearsal's job to its end and show its result; return 0 if it passed, else 1. Raises UserError."""
    raise_on_signals()
    keys = settings.experiment.production
    options = ("--each", str(keys.rehearse_s), "--warn", str(keys.warn_before_s))
    way = _way(plan, settings, directory, lambda job: _python(REHEARSE, directory, *options), on_slurm)
    (directory / rehearsals.FILE).unlink(missing_ok=True)
    try:
        stopped = way.run(plan.jobs[0])
    except Interrupted as interrupted:
        notify(f"{REHEARSAL}: {interrupted}: {way.interrupted()}")
        return 128 + interrupted.signum
    file = rehearsals.read_rehearsal(directory)
    if file is None:
        end = stopped or over("error", "the rehearsal left no result", "", "look at the log of its job")
        _show(verdict=end.measured, why=" ".join(end.evidence), next=end.next)
        return 1
    result, *seen = file.findings
    findings = "\n".join(finding.in_words for finding in seen)
    _show(verdict=f"rehearsal {file.in_words}", why=result.measured, seen=findings, next=result.next)
    return 0 if result.severity == "note" else 1


def _way(plan: Plan, settings: Settings, directory: Path, command: Command, on_slurm: bool) -> JobsHere | JobsOnSlurm:
    """Return where the jobs run, after writing their plan. Raises UserError if Slurm would not take them."""
    if on_slurm and shutil.which("sbatch"):
        require_admission(plan.jobs, settings)
    make_directory(directory)
    write_json(directory / "plan.json", plan.to_json())
    return JobsOnSlurm(plan.jobs[0], directory, command) if on_slurm else JobsHere(directory, command)


def _say_end(production: Production, links: Sequence[Link]) -> None:
    if not links:
        return
    chain, job, last = production.chain, production.job, links[-1]
    end_s = expected_end_s(chain, links, time.time(), job.runs[0].global_batch)
    end = clock(end_s) if chain.training_samples else "unknown without report.samples, epochs or steps"
    until = "" if last.end == "complete" else f"; expected end of the training: {end}"
    notify(f"{PRODUCTION}: {last.in_words}: {last.cause}; {hours_of(chain, links, job)}{until}")


def _show(**rows: str) -> None:
    shown = [(label, text) for label, text in rows.items() if text]
    print(box(shown, sys.stderr), file=sys.stderr, flush=True)


def production_text(ladder: Ladder) -> str:
    """Return what `snakemake production` would do, and what it can cost. Raises UserError for settings without a chain.

    Without a rehearsal, the start is refused; what it would cost is told all the same.
    """
    results = Path(ladder.results)
    on_slurm = shutil.which("sbatch") is not None  # a dry run does not tell
    production = production_of(ladder.settings, ladder.plan, results, ladder.runs, on_slurm)
    directory = chain_directory(results)
    links = read_links(directory, production.plan, time.time())
    try:
        rehearsal = rehearsals.rehearsed(results, production.job.runs[0], ladder.settings)
    except UserError as error:
        problem = error.problems[0]
        rehearsal = f"{problem.what}, so no job begins: {problem.next}"
    return dry_run_text(production, links, rehearsal)
