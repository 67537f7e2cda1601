from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder.climb import snakemake as executor
from ddp_ladder.climb.job_watch import ASK_EVERY_S, GONE_AFTER_S, JobWatch, WatchedJob
from ddp_ladder.climb.snakemake import LadderJobs, ladder_executor
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.ledger.jobs import accounted
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.run.progress import LAST_WORDS_OF, Console
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.jobs import GONE, JobEnd, JobState, Submission
from ddp_ladder.slurm.lock import Held, Holder
from ddp_ladder.slurm.query import SlurmError
from make_files import write_programs
from make_records import make_plan_of, make_specs
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_executor_plugin_slurm.submit_string import get_submit_command

STAGE1: Any = SimpleNamespace(stage="stage1", scale="1x1", runtime_min=10)
NOTHING_NEEDED: Any = SimpleNamespace(dag=SimpleNamespace(needrun_jobs=tuple))


class Plugin:
    """What of the plugin's class the ladder needs."""

    def __init__(self, _workflow: Any, _logger: Any) -> None:
        self.errors: list[str] = []
        self.submitted: list[Any] = []
        self.slurm_logdir = Path()

    def report_job_error(self, _info: Any, msg: str, aux_logs: Sequence[str] = ()) -> None:
        self.errors.append(msg)

    def report_job_submission(self, info: Any) -> None:
        self.submitted.append(info)

    def run_job(self, job: Any) -> None:
        self.submitted.append(job)

    async def check_active_jobs(self, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        self.next_seconds_between_status_checks = 3600
        for info in active_jobs[1:]:
            yield info

    def cancel_jobs(self, active_jobs: Sequence[Any]) -> None:
        self.cancelled = list(active_jobs)


def executor_of(results: Path, rule: str) -> Any:
    looks_up = {"job": lambda _scale: STAGE1}
    ladder: Any = SimpleNamespace(results=str(results), plan_to_write=[], **looks_up)
    return ladder_executor(Plugin, ladder, {rule: rule.removeprefix("ladder_")})(NOTHING_NEEDED, None)


def job_of(rule: str) -> Any:
    named, wildcards = SimpleNamespace(name=rule), SimpleNamespace(scale="1x1")
    return SimpleNamespace(rule=named, wildcards=wildcards, is_group=lambda: False)


def looked(plugin: Any, jobs: Sequence[Any]) -> list[Any]:
    """The jobs that go on."""

    async def look() -> list[Any]:
        return [info async for info in plugin.check_active_jobs(jobs)]

    return asyncio.run(look())


def test_a_disk_that_takes_no_file_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, row = "ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON", "ddp-ladder|7|TIMEOUT|2026|node1|TimeLimit"
    named = "echo 'ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON|NAME'; exit"
    squeue = f"case \"$*\" in *%j*) {named};; esac; printf '%s\\n' '{header}' '{row}'"
    write_programs(tmp_path, squeue=squeue, scontrol="exit 0", sbatch="cat >/dev/null; echo 7")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "results").write_text("in the way")
    terminal = io.StringIO()
    monkeypatch.setattr(executor, "Console", lambda: Console(terminal))
    plugin = executor_of(tmp_path / "results", "measure_stage1")
    job = job_of("measure_stage1")
    wanted = Submission("stage1 1x1", "1x1", "name", ["sbatch"], "script")
    monkeypatch.setattr(LadderJobs, "_submission", lambda *_: (wanted, tmp_path))
    plugin.run_job(job)
    (info,) = plugin.submitted
    assert info.external_jobid == "7"
    assert looked(plugin, [info]) == []
    (message,) = plugin.errors
    assert "job 7 ended TIMEOUT on node1" in message
    not_kept = f"is not recorded: {tmp_path}/results/jobs/1x1.json cannot be written: Not a directory"
    assert not_kept in message
    assert terminal.getvalue().count(not_kept) == 1


def test_jobs_of_another_workflows_rules_stay_the_plugins(tmp_path: Path) -> None:
    others = [SimpleNamespace(job=job_of(name), external_jobid="1") for name in ("align", "sort")]
    group = SimpleNamespace(job=SimpleNamespace(is_group=lambda: True), external_jobid="2")
    plugin = executor_of(tmp_path / "results", "ladder_measure_stage1")
    plugin.run_job(others[0].job)
    assert plugin.submitted == [others[0].job]
    assert looked(plugin, [*others, group]) == [others[1], group]
    assert plugin.next_seconds_between_status_checks == 3600  # the plugin's own time
    plugin.cancel_jobs([*others, group])
    assert plugin.cancelled == [*others, group]


def test_the_installed_plugin_has_all_that_is_overridden_and_called() -> None:
    used = "run_job check_active_jobs cancel_jobs report_job_submission report_job_error report_job_success"
    assert [name for name in used.split() if not hasattr(SlurmExecutor, name)] == []


def test_tasks_per_gpu_of_the_plugin_reach_its_sbatch_and_not_the_ladders(tmp_path: Path) -> None:
    """Two processes with a GPU each need two tasks that see both: issues 342, 373 and 459 of the plugin."""
    asked = {"gpu": 2, "gres": "gpu:2", "tasks_per_gpu": 1, "slurm_extra": "--gpu-bind=single:1", "cpus_per_task": 4}
    job: Any = job_of("measure_stage1")
    job.name, job.threads, job.resources = "measure_stage1", 4, Resources(asked)
    params = {"run_uuid": "1", "slurm_logfile": "x", "comment_str": "x", "account": "", "partition": "", "workdir": ""}
    words = ("--ntasks-per-gpu=1", "--gpu-bind=single:1")
    assert all(word in get_submit_command(job, params) for word in words)
    planned = ScaleJob("stage2", Scale(1, 2), 5, (), 4, Slurm(), gres="gpu:2")
    places = {"results": tmp_path, "slurm_logdir": tmp_path, "workflow": SimpleNamespace(workdir_init=tmp_path)}
    looks_up = SimpleNamespace(job=lambda _scale: planned)
    ladder: Any = SimpleNamespace(ladder=looks_up, _is_same_plan=True, format_job_exec=lambda _job: "x", **places)
    submission, _ = LadderJobs._submission(ladder, job)
    options = [word for word in submission.argv if word.startswith(("--gpu", "--gres", "--ntasks-per-gpu"))]
    assert options == ["--gres=gpu:2"]


class Resources(dict[str, Any]):
    """A job's resources, as Snakemake gives them to the plugin."""

    __getattr__ = dict.__getitem__


# The watch over Slurm jobs, with a Slurm and a clock that say what the test wants

RUNNING = JobState("RUNNING", nodes="node1")


class Cluster:
    """States that Slurm would tell, and how often it was asked."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.silent = ""
        self.asked = 0
        self.now_s = 0.0

    def ask(self, jobs: Iterable[str]) -> Mapping[str, JobState]:
        self.asked += 1
        if self.silent:
            raise SlurmError(self.silent)
        return {job: self.states.get(job, JobState(GONE)) for job in jobs}


class Desk:
    """A watch over job 7, with everything around it."""

    def __init__(self, log: Path, stream: io.StringIO) -> None:
        self.cluster, self.stream = Cluster(), stream
        self.watch = JobWatch(self.cluster.ask, Console(self.stream), lambda: self.cluster.now_s)
        self.log = log
        self.cluster.states["7"] = JobState("PENDING", "Priority")
        self.is_held = False  # the scale's lock
        self.is_left = False  # its holder has ended without releasing it
        self.watch.add(WatchedJob("7", "stage2", "1x4", log, 10, self.held))

    def held(self) -> Held:
        holder = replace(Holder.here("7"), ended=not (self.is_held or self.is_left))
        return Held(holder, self.is_held)

    def later(self, seconds: float, state: JobState | None = None) -> list[JobEnd]:
        self.cluster.now_s += seconds
        if state is not None:
            self.cluster.states["7"] = state
        return self.watch.look()

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "7.log", io.StringIO())


def test_a_good_job_from_end_to_end(desk: Desk) -> None:
    assert desk.later(0) == []
    assert desk.later(60, JobState("PENDING", "Resources", start="2026-11-20T23:40:00")) == []
    assert desk.later(60, RUNNING) == []
    (end,) = desk.later(90, JobState("COMPLETED", nodes="node1"))
    assert end.ok
    assert desk.text.splitlines() == [
        f"stage2 1x4: job 7 submitted; its log: {desk.log}",
        "stage2 1x4: job 7 waits: Priority: jobs of higher priority are before it",
        "stage2 1x4: job 7 waits: Resources: it is next, and waits for nodes to become free; "
        "Slurm expects it to start at 2026-11-20 23:40:00",
        "stage2 1x4: job 7 runs on node1",
        "stage2 1x4: job 7 ended COMPLETED on node1; it ran 1 min 30 s",
    ]


def test_a_job_that_could_not_do_its_work_says_why_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to one who sees of it only what Slurm tells: FAILED, NonZeroExitCode."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    job = make_plan_of(make_specs(["1x1"])).jobs[0]
    cluster = Cluster()
    watch = JobWatch(cluster.ask, Console(io.StringIO()))
    watch.add(WatchedJob.of(job, "7", tmp_path / "7.log", tmp_path))
    why = Problem(
        "stage1 1x1, workload.batch_per_gpu", "the search needs more time", next="raise stages.stage1.runtime"
    )
    with suppress(UserError), accounted(tmp_path, job, "7", "fit"):
        raise UserError(why)
    cluster.states["7"] = JobState("FAILED", "NonZeroExitCode", "node1")
    (end,) = watch.look()
    assert end.in_words == (
        "job 7 ended FAILED on node1: stage1 1x1, workload.batch_per_gpu: the search needs more time (NonZeroExitCode)"
    )
    assert end.next == "raise stages.stage1.runtime"


def test_a_bad_end_says_why_and_what_to_do(desk: Desk) -> None:
    desk.later(0, RUNNING)
    (end,) = desk.later(60, JobState("TIMEOUT", "TimeLimit", "node1"))
    assert not end.ok
    assert end.in_words == "job 7 ended TIMEOUT on node1: its time was up (TimeLimit)"
    assert "stages.stage2.runtime in config.yaml (now 10), or shorten its runs with measure.max_steps" in end.next


@pytest.mark.parametrize("ends", [JobState("TIMEOUT", "TimeLimit", "node1"), JobState("TIMEOUT", nodes="node1")])
def test_a_job_that_was_shortened_has_not_asked_for_too_little(desk: Desk, ends: JobState) -> None:
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 50))
    desk.later(0, replace(RUNNING, start=start))
    (end,) = desk.later(60, ends)
    assert re.search(r"its time was up \d+ s after its start, and it had asked for 10 min: someone", end.in_words)
    assert "runtime" not in end.next


def test_a_bad_end_without_words_is_that_of_a_full_disk_if_there_is_one(desk: Desk, tmp_path: Path) -> None:
    """No file can be made in /sys, whoever asks, and below it no directory."""
    places = (tmp_path, Path("/sys/results"))
    desk.watch.add(WatchedJob("8", "stage2", "2x4", tmp_path / "8.log", 10, lambda: None, places))
    desk.cluster.states["8"] = JobState("FAILED", "NonZeroExitCode", "node1")
    (end,) = desk.later(60, RUNNING)
    assert end.in_words.startswith("job 8 ended FAILED on node1: /sys/results: it cannot be written: ")
    assert "start snakemake again: it repeats what is missing" in end.next


def test_the_jobs_own_lines_are_passed_on_whole_and_once(desk: Desk) -> None:
    desk.log.write_bytes(b"Building DAG of jobs...\nstage2 1x4 [1/1] default/weak/r1: star")
    desk.later(1, RUNNING)
    assert "star" not in desk.text
    with desk.log.open("ab") as file:
        file.write(b"ted\nstage3 2x4: of another job\n")
    desk.later(1)
    desk.later(1)
    assert desk.text.count("stage2 1x4 [1/1] default/weak/r1: started\n") == 1
    assert "Building" not in desk.text
    assert "stage3" not in desk.text


def test_slurm_is_asked_seldom_and_at_once_when_the_job_says_so(desk: Desk) -> None:
    desk.later(0)
    desk.later(ASK_EVERY_S["waiting"] - 1)
    assert desk.cluster.asked == 1
    desk.log.write_text("stage2 1x4 [1/1] default/weak/r1: started\n")  # so it runs
    desk.later(0, RUNNING)
    assert desk.cluster.asked == 2
    desk.later(ASK_EVERY_S["running"] - 1)
    assert desk.cluster.asked == 2
    with desk.log.open("a") as file:
        file.write(f"stage2 1x4: {LAST_WORDS_OF['measure']}\n")
    assert desk.later(0) == []
    assert desk.cluster.asked == 3
    (end,) = desk.later(1, JobState("COMPLETED"))
    assert end.ok


def test_a_job_that_nobody_knows_is_waited_for_a_while_only(desk: Desk) -> None:
    desk.later(0, RUNNING)
    assert desk.later(60, JobState(GONE)) == []
    assert desk.later(GONE_AFTER_S - 1) == []
    (end,) = desk.later(ASK_EVERY_S["running"])
    assert (end.ok, end.state) == (False, GONE)


def test_a_job_that_nobody_knows_is_not_gone_while_it_holds_its_lock(desk: Desk) -> None:
    desk.later(0, RUNNING)
    desk.later(60, JobState(GONE))
    desk.is_held = True
    for _ in range(20):
        assert desk.later(GONE_AFTER_S) == []
    assert desk.text.count("job 7 is unknown to squeue and sacct, but holds its lock: it goes on") == 1
    desk.is_held = False
    (end,) = desk.later(GONE_AFTER_S)
    assert end.state == GONE


@pytest.mark.parametrize("state", [GONE, "NODE_FAIL"])  # Slurm may lose the node of the batch step at the very end
def test_a_forgotten_job_that_had_said_all_has_ended_well(desk: Desk, state: str) -> None:
    desk.later(0, RUNNING)
    desk.log.write_text(f"stage2 1x4: {LAST_WORDS_OF['measure']}\n")
    (end,) = desk.later(1, JobState(state, nodes="node1"))
    assert end.ok
