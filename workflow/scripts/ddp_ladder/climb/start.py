"""What a start of Snakemake checks and says before it begins and before it submits jobs, and why it stopped.

Among it the data of the training, which one process at a time prepares.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ddp_ladder.climb.ladder import Ladder, runs_of_edited_scripts, runs_of_other_settings, short_runtimes
from ddp_ladder.common.files import (
    ChangedFiles,
    RunDirectory,
    filesystem,
    is_shared,
    nearest,
    profile,
    read_as,
    readable,
    write_json,
)
from ddp_ladder.common.findings import Severity
from ddp_ladder.common.formats import count, in_short, signal_of, significant
from ddp_ladder.common.messages import Problem, UserError, box, did_you_mean, notify, stop
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.diagnosis.signatures import last_lines
from ddp_ladder.gates.gate import Verdict, closed_box, gate_files, outcome_line
from ddp_ladder.measuring.fingerprint import OTHER_PLACE, spec_changes
from ddp_ladder.node.launch import Places, python_command
from ddp_ladder.node.software import SetUpError, container_binds, environment
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.preflight.admission import Admission, check_jobs, read_partitions
from ddp_ladder.records.raw_models import Slow, SlowFile
from ddp_ladder.run.nodes import local_job_id
from ddp_ladder.settings.checks import check_variables
from ddp_ladder.settings.keys import Experiment, Notice, Notify, Settings, Site
from ddp_ladder.slurm.jobs import AGAIN, GO_ON, GONE, JobEnd, NamedJob, ask, job_left, jobs_by_name, read_job_end
from ddp_ladder.slurm.lock import Lock, held, living
from ddp_ladder.slurm.query import SlurmError

UNREAD_FILES = "their files cannot be read (damaged, or written by another version of ddp-ladder)"


def warnings_before_runs(ladder: Ladder, stages: Sequence[str], on_nodes: bool, dry_run: bool) -> list[Problem]:
    """Return doubts on the data, secrets, variables and run times of what a start has to measure.

    on_nodes: whether the training may run on other machines. Raises UserError for what no run can
    begin without; a dry run only warns.
    """
    if not ladder.measures(stages):
        return []
    missing = [name for name in ladder.settings.experiment.workload.secrets if name not in os.environ]
    what, where = "a secret that is not in the environment of this start", ladder.settings.config.where
    advice = "export {}=... and start again"
    wrong = [Problem(where("workload", "secrets"), what, name, next=advice.format(name)) for name in missing]
    doubts = list[Problem]()
    experiment = ladder.settings.experiment
    if found := data_problem(experiment, on_nodes):
        (wrong if found[0] == "error" else doubts).append(found[1])
    if wrong and not dry_run:
        raise UserError(wrong)
    doubts += check_variables(ladder.settings, os.environ)
    config = str(ladder.settings.experiment.file)
    return [*wrong, *doubts, *short_runtimes(ladder.plan, stages, ladder.to_do, ladder.runs, config)]


def announcements(ladder: Ladder, stages: Sequence[str]) -> list[str]:
    """Return the lines that a start prints before it begins."""
    lines = []
    if not ladder.measures(stages):
        lines.append("nothing to measure: every run has a good record of these settings; the gates are judged again")
    if ladder.plan.batch_search is None:  # else the runs are kept if the same batch is chosen again
        lines += _measured_again(ladder, stages)
    lines += ladder.runs.changes_of_rules()
    edited = [run for run in runs_of_edited_scripts(ladder.plan, ladder.runs) if run.stage in stages]
    for script in dict.fromkeys(run.script for run in edited):
        names = in_short([run.name for run in edited if run.script == script])
        kept = "these runs are kept, and not compared with runs of another version"
        repeat = f"To repeat them, delete their directories below {ladder.results}/runs"
        lines.append(f"warning: {script} has changed since it ran as {names}; {kept}. {repeat}")
    return lines


def _measured_again(ladder: Ladder, stages: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each set of changed keys that makes finished runs be measured again."""
    changes: dict[tuple[str, ...], dict[str, str]] = {}  # by changed keys, of each run
    for now, then in runs_of_other_settings(ladder.to_do, ladder.runs):
        if now.stage in stages:
            of_run = {"": UNREAD_FILES} if then is None else spec_changes(then, now)
            changes.setdefault(tuple(of_run), {})[now.name] = "; ".join(of_run.values())
    keep = f"undo the change, or name another directory as `results` in {ladder.settings.experiment.file}"
    for keys, of_runs in changes.items():
        first, *others = dict.fromkeys(of_runs.values())
        why = first if keys == ("",) else f"changed: {first or OTHER_PLACE}"
        why += f" ({next(iter(of_runs))}; the others in the same keys)" if others else ""
        again = f"{count(len(of_runs), 'finished run')} will be measured again ({in_short([*of_runs])})"
        yield f"warning: {again}, {why}. To keep the results, {keep}"


# What is asked for on the command line


def no_such_target(asked: Iterable[str], targets: Collection[str]) -> Problem | None:
    """Return the problem of a target that is no rule's name, and does not look like a file."""
    for name in sorted(set(asked) - set(targets)):
        if "/" not in name and "." not in name and not Path(name).exists():
            guess = did_you_mean(name, targets) or "`snakemake --list` explains them"
            return Problem(f"snakemake {name}", "there is no such target", None, ", ".join(targets), guess)
    return None


# Before jobs are submitted to Slurm


def check_before_submission(ladder: Ladder, needed: Sequence[Any]) -> None:
    """Ask Slurm whether it takes these jobs of Snakemake; print on stderr when it would start them, and which wait.

    Exits with a message for jobs that Slurm would refuse or never start, without Slurm, and while a job of an earlier
    start that makes other runs goes on.
    """
    if not needed:
        return
    asked = needed[0].resources.items()  # by --default-resources and the like
    if unused := [f"{name}={value}" for name, value in asked if name.startswith("slurm_") or name == "runtime"]:
        slurm = ladder.settings.site.slurm
        keys = f"slurm.account: {slurm.account or 'null'}, slurm.partition: {slurm.partition or 'null'}"
        where = f"{ladder.settings.site.file} ({keys}) and the stages of {ladder.settings.experiment.file}"
        notify(f"warning: no job uses {', '.join(unused)}; all ask for what is in {where}")
    scales = {job.wildcards.scale for job in needed}
    try:
        require_no_job_left(Path(ladder.results), scales, is_same_plan=not ladder.plan_to_write)
        jobs = [job for job in ladder.plan.jobs if str(job.scale) in scales]
        admission = require_admission(jobs, ladder.settings)
    except UserError as error:
        stop(error)
    if admission.starts_in_words:
        notify(f"Slurm would start them, if submitted now: {admission.starts_in_words}")


def require_admission(jobs: Sequence[ScaleJob], settings: Settings) -> Admission:
    """Ask Slurm whether it takes these jobs, and print which wait. Raises UserError for one that it refuses."""
    admission = check_jobs(jobs, settings, read_partitions())
    for problem in admission.waits:
        notify(f"warning: {problem}\n")
    if admission.refused:
        raise UserError(admission.refused)
    return admission


def require_no_job_left(results: Path, scales: Collection[str], is_same_plan: bool = False) -> None:
    """Raise UserError while a job of an earlier start goes on, whether or not that start has recorded it.

    is_same_plan: as of that start; then the executor follows a job that was recorded and has not yet begun to end.
    """
    try:
        queue = jobs_by_name(results)
        problems = [problem for scale in sorted(scales) for problem in _left(results, scale, queue, is_same_plan)]
    except SlurmError as silent:
        advice = "start it where Slurm answers, on a login node, or climb on this machine: snakemake --profile "
        raise UserError(Problem("Slurm does not answer", str(silent), next=advice + profile("local"))) from None
    if problems:
        raise UserError(problems)


def require_every_job_over(results: Path) -> None:
    """Call require_no_job_left for every scale, if this machine has Slurm."""
    scales = [file.stem for file in (results / "jobs").glob("*.json")]
    if scales and shutil.which("squeue"):
        require_no_job_left(results, scales)


def _left(results: Path, scale: str, queue: Sequence[NamedJob], is_same_plan: bool) -> Iterator[Problem]:
    left = job_left(results, scale) if is_same_plan else None
    states = {job.id: job.state for job in queue if job.scale == scale}
    alive = living(Lock.of_scale(results, scale, ""))
    holder = alive.slurm_id if alive is not None else None
    if holder and holder not in states:
        states |= ask([holder])
    for job_id, state in states.items():
        if left and job_id == left.job_id and state.state not in (GONE, "COMPLETING"):
            continue
        if state.phase != "ended" or (state.state == GONE and job_id == holder):
            what = "a job of an earlier start is not over, and a second one would write to the same files"
            seen = "unknown to squeue and sacct, but it holds its lock" if state.state == GONE else state.state
            advice = f"wait for it, or end it with `scancel {job_id}`; then start snakemake again"
            yield Problem(f"{results}, {scale}", what, f"job {job_id} of {scale}: {seen}", next=advice)


# The boxes at the end of a start that failed. A closed gate has a box of its own (gates.gate.closed_box).

MOST_LINES = 8


@dataclass(frozen=True)
class FailedJob:
    """One of Snakemake's jobs."""

    rule: str
    log: str
    exit_code: int | None  # of its command; None if the executor reported the end
    message: str = ""  # of the executor

    @property
    def name(self) -> str:
        """The name of its log without the suffix: ``measure_1x2``, ``gate_stage1``."""
        return Path(self.log).stem if self.log else self.rule


def boxes(
    jobs: Iterable[FailedJob], results: Path, log: str, ended_by: str | None, of_chain: bool = False
) -> Iterator[str]:
    """Yield the box of a start that a signal ended, or one for each failed job that has not told it itself.

    log: Snakemake's, empty if there is none. of_chain: it was a start of production.
    """
    log = log or "none was written"
    if ended_by:
        by = "Ctrl-C" if ended_by == signal.SIGINT.name else "a signal"
        yield box((("verdict", f"ended by {by} ({ended_by})"), ("log", log), ("next", GO_ON if of_chain else AGAIN)))
        return
    for job in jobs:
        # Of a job of Slurm (fit_1x1).
        end = None if job.exit_code is not None else read_job_end(results, job.name.rpartition("_")[2])
        if not _has_told(job, end, results):
            yield box(_rows(job, end, log, GO_ON if of_chain else AGAIN))


def _has_told(job: FailedJob, end: JobEnd | None, results: Path) -> bool:
    """Return True if the terminal shows it: printed by the ladder's own command, or in the box of a closed gate."""
    if job.exit_code is None:
        # Else the disk is full, most likely: its end is not recorded, or the gate could not be written.
        if end is None or job.name != f"measure_{end.scale}":
            return False
        return any(file.exists() for file in gate_files(results / "gates", end.stage))
    return job.exit_code == 1 and job.rule != "prepare_data"


def _rows(job: FailedJob, end: JobEnd | None, log: str, again: str) -> Iterator[tuple[str, str]]:
    name = None if job.exit_code is None else signal_of(job.exit_code)
    what = "workload.prepare" if job.rule == "prepare_data" else f"the job {job.name}"
    code = "" if job.exit_code is None else f": exit code {job.exit_code}"
    yield "verdict", f"{what} failed{code}{f' ({name})' if name else ''}"
    if end or job.message:
        yield "found", end.in_words if end else job.message
    else:
        yield "printed", "\n".join(last_lines(Path(job.log), MOST_LINES) if job.log else []) or "its log is empty"
    yield "log", f"{job.log}\nSnakemake's: {log}"
    killed = "it was killed, most often because memory ran out; " if name == signal.SIGKILL.name else ""
    yield "next", end.next if end else f"{killed}read its output, here or above; then {again}"


LOCK = ".prepare"
A_DAY_S = 86_400.0  # a download takes long


def data_problem(experiment: Experiment, on_nodes: bool) -> tuple[Severity, Problem] | None:
    """Return the problem with data that no ``prepare`` writes: an error if they are missing, a warning if they may be.

    on_nodes: whether the training runs on other machines, which have disks of their own.
    """
    wanted = experiment.workload.data_dir
    if wanted is None or experiment.workload.prepare is not None:
        return None
    try:
        os.stat(wanted)
        return None
    except OSError as error:
        parent = nearest(Path(wanted).absolute())
        found = f"{wanted}: {error.strerror}; {parent} is there"
    where = f"{experiment.file}: workload.data_dir"
    if on_nodes and not parent.is_relative_to(Path.cwd()) and not is_shared(filesystem(parent)):
        look = f"if only compute nodes have it, look there: srun --nodes=1 ls {wanted}; else correct the path"
        return "warning", Problem(where, "there is no such directory on this machine", found, next=look)
    return "error", Problem(
        where,
        "the training data are missing",
        found,
        next="correct the path, or name in `workload.prepare` the script that writes it; for a script that downloads "
        f"its data itself, make the directory: mkdir -p {wanted}",
    )


def prepare_data(spec: RunSpec, site: Site, command: Sequence[str], marker: Path) -> int:
    """Run ``command``, workload.prepare, with the software of the training; return its exit code.

    It starts where Snakemake was started, in the container if there is one; its output goes to standard output.
    marker: in the directory of the data, written after a good end. Of two starts on one directory the second one
    waits.

    Raises UserError if it cannot be started, and while a start on another machine prepares the same data.
    """
    data = marker.parent
    lock = Lock(data, LOCK, f"workload.data_dir {data}", "these data", A_DAY_S)
    with held(lock, local_job_id(), notify):
        code = _run(spec, site, command, data)
        if code == 0:
            write_json(marker, {"command": list(command)})
        return code


def prepare_argv(spec: RunSpec, command: Sequence[str], data: Path) -> tuple[str, ...]:
    """Return the argument list of workload.prepare: the Python of the training, in its container with its binds."""
    preparing = spec.replace(script=command[0], directory=None)
    places = Places.here(data)
    return (*python_command(preparing, places, container_binds(preparing, places)), *command)


def _run(spec: RunSpec, site: Site, command: Sequence[str], data: Path) -> int:
    argv = prepare_argv(spec, command, data)
    try:
        env = environment(spec, os.environ)
        parent = os.getpid()
        with subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM, parent),
        ) as process:
            return process.wait()
    except SetUpError as error:
        raise UserError(_not_started(site, str(error))) from None
    except OSError as error:
        key = "software.python" if spec.container is None else "software.container"
        raise UserError(_not_started(site, f"{key}: {argv[0]} cannot be started: {error.strerror}")) from None


def _not_started(site: Site, why: str) -> Problem:
    return Problem(
        str(site.file),
        why,
        allowed="workload.prepare runs where Snakemake runs, with the software of the training",
        next="correct the key; if only compute nodes have that software, climb there (`snakemake eject`, then "
        "sbatch climb.sh), or put the data there yourself and set workload.prepare: null",
    )


# --- The command of ``notify``: what a person waits for is told, at a gate, at the end, and when a link is slow.
#
# It runs beside the climb, which waits for it only as its own last act, and for no longer than SENT_WITHIN_S each.


SENT_WITHIN_S = 20.0
LOOK_EVERY_S = 30.0  # at whether a link is slow
MOST_OF_ERROR = 200  # characters


class Notices:
    """What one start tells. A command that fails is reported once."""

    def __init__(self, keys: Notify, name: str) -> None:
        """name: of the results, which begins each subject."""
        self._keys, self._name = keys, name
        self._has_failed = False
        self._sender = ThreadPoolExecutor(1)  # one after the other, in their order

    def wants(self, what: Notice) -> bool:
        """Return True if this is to be told."""
        return bool(self._keys.command) and what in self._keys.at

    def tell(self, what: Notice, subject: str, text: str) -> None:
        """Run the command with this text on its standard input, if it is wanted."""
        if self.wants(what):
            line = " ".join(f"ddp-ladder {self._name}: {subject}".split())
            argv = [part.replace("{subject}", line) for part in self._keys.command or ()]
            self._sender.submit(self._run, argv, text)

    def _run(self, argv: Sequence[str], text: str) -> None:
        try:
            subprocess.run(
                argv, input=f"{text}\n", text=True, capture_output=True, timeout=SENT_WITHIN_S, check=True,
                start_new_session=True,
            )  # fmt: skip
            return
        except subprocess.CalledProcessError as error:
            why = f"exit code {error.returncode}: {error.stderr.strip()[-MOST_OF_ERROR:] or 'it printed nothing'}"
        except subprocess.TimeoutExpired:
            why = f"it took more than {SENT_WITHIN_S:.0f} s"
        except OSError as error:
            why = str(error)
        if not self._has_failed:
            self._has_failed = True
            notify(f"warning: notify.command ({argv[0]}) failed, and nothing was told: {why}")


class GateNotices:
    """The gates that this start judges: each verdict is told when it is new."""

    def __init__(self, notices: Notices, gates: Path, stages: Sequence[str]) -> None:
        self._notices = notices
        told = stages if notices.wants("gate") else ()
        self._files, self._changed = [file for stage in told for file in gate_files(gates, stage)], ChangedFiles()
        self._seen = self._gates()

    def look(self) -> None:
        """Tell what was judged since the last look."""
        before, self._seen = self._seen, self._gates()
        for was, gate in zip(before, self._seen, strict=True):
            if gate is not None and gate is not was:
                line = outcome_line(gate)
                self._notices.tell("gate", line, line if gate.is_open else closed_box(gate))

    def _gates(self) -> list[Verdict | None]:
        """Return the gates; None for one that is judged again, or damaged, which the report says."""
        return [self._changed.read(file, partial(read_as, Verdict)) for file in self._files]


@contextmanager
def of_slow_links(notices: Notices, directory: RunDirectory, label: str) -> Iterator[None]:
    """Tell each time that a link is found slower than promised, to the end of the block. directory: of its run."""
    if not notices.wants("slower"):
        yield
        return
    over = threading.Event()

    def look(told: float = 0.0) -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(LOOK_EVERY_S)
            last = _last(directory)
            if last is not None and last.at_s > told:
                rate = f"slower than promised: {significant(last.samples_per_s)} samples/s"
                notices.tell("slower", f"{label}: {rate}", f"{label}: {rate}: {last.why}")
                told = last.at_s

    before = _last(directory)
    thread = threading.Thread(target=look, args=(before.at_s if before else 0.0,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _last(directory: RunDirectory) -> Slow | None:
    """Return when a link was last found to be slow."""
    file = readable(SlowFile, directory.slow)
    return file.slow[-1] if file is not None else None
