"""Before a start submits jobs, the look for those of an earlier one, with a stand-in for squeue; and its last boxes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import MOST_LINES, FailedJob, announcements, boxes, require_no_job_left
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings.load import CLUSTER, CONFIG, load_settings
from ddp_ladder.slurm.jobs import JobEnd, new_job_name, write_job_end
from ddp_ladder.slurm.lock import Lock, held
from make_files import write_files, write_programs
from make_runs import write_run


class Desk:
    """Results of an earlier start, and what squeue says of its job 7."""

    def __init__(self, path: Path) -> None:
        self.path, self.results = path, path / "results"
        self.squeue("")

    def squeue(self, state: str, code: int = 0) -> None:
        header, row = "ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON", f"ddp-ladder|7|{state}|N/A||None"
        name = new_job_name(self.results, "1x4")
        script = f"""
case "$*" in *%j*) header='{header}|NAME' row='{row}|{name}' ;; *) header='{header}' row='{row}' ;; esac
[ {code} = 0 ] || exit {code}
echo "$header"
[ -z "{state}" ] || echo "$row"
"""
        write_programs(self.path, squeue=script, scontrol="exit 0")

    def left(self) -> str:
        try:
            require_no_job_left(self.results, ["1x4"])
        except UserError as error:
            return str(error)
        return ""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("ddp_ladder.slurm.jobs.shutil.which", lambda name: None)  # no sacct
    return Desk(tmp_path)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_in_the_queue_is_reported(desk: Desk, state: str) -> None:
    desk.squeue(state)
    text = desk.left()
    assert "a job of an earlier start is not over" in text
    assert f"found    job 7 of 1x4: {state}\n" in text
    assert "`scancel 7`" in text
    assert text.count("found") == 1
    for ended in ("COMPLETED", "CANCELLED", ""):
        desk.squeue(ended)
        assert desk.left() == ""


def test_one_that_slurm_does_not_know_is_not_over_while_it_holds_its_lock_or_squeue_is_silent(desk: Desk) -> None:
    with held(Lock.of_scale(desk.results, "1x4", ""), "7", print, print):
        assert "found    job 7 of 1x4: unknown to squeue and sacct, but it holds its lock" in desk.left()
    assert desk.left() == ""
    desk.squeue("", code=1)
    assert desk.left().startswith("Slurm does not answer: ")


# The boxes at the end of a start that failed, beside those of closed gates

LOG = ".snakemake/log/x.log"


def texts(results: Path, *jobs: FailedJob, log: str = LOG, ended_by: str | None = None, **more: bool) -> list[str]:
    """The boxes, each on one line."""
    return [
        " ".join(word for word in box.split() if word != "|") for box in boxes(jobs, results, log, ended_by, **more)
    ]


@pytest.mark.parametrize("rule", ["doctor", "gate", "measure_stage1"])
def test_what_has_said_it_in_the_terminal_gets_no_box_unless_it_was_killed(tmp_path: Path, rule: str) -> None:
    assert texts(tmp_path, FailedJob(rule, f"logs/{rule}.log", 1)) == []
    (box,) = texts(tmp_path, FailedJob(rule, f"logs/{rule}.log", 137))
    assert f"the job {rule} failed: exit code 137 (SIGKILL) printed its log is empty" in box
    assert "because memory ran out" in box
    assert f"Snakemake's: {LOG}" in box


def test_a_slurm_job_is_reported_by_the_gate_or_in_the_executors_words(tmp_path: Path) -> None:
    job = FailedJob("measure_stage1", "logs/measure_1x1.log", None, "job 12 ended CANCELLED. Next: x.")
    (box,) = texts(tmp_path, job)
    assert "the job measure_1x1 failed found job 12 ended CANCELLED. Next: x. log logs/measure_1x1.log" in box
    end = JobEnd("12", "stage1", "1x1", "FAILED", "12.log", why="the search needs more time", next="raise the runtime")
    write_job_end(tmp_path, end)
    (box,) = texts(tmp_path, job)  # the disk was too full for the gate
    assert "found job 12 ended FAILED: the search needs more time log logs/" in box
    assert box.endswith("next raise the runtime +" + "-" * 94 + "+")
    write_files(tmp_path, {"gates/stage1.closed.json": "{}"})
    assert texts(tmp_path, job) == []
    assert len(texts(tmp_path, replace(job, rule="search_batch", log="logs/fit_1x1.log"))) == 1  # no gate says it


def test_every_job_that_has_not_said_it_has_a_box_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "prepare_data.log"
    log.write_text("".join(f"line {number}\n" for number in range(20)))
    box, other = texts(tmp_path, FailedJob("prepare_data", str(log), 1), FailedJob("plan", "", 2), log="")
    assert "workload.prepare failed: exit code 1" in box
    assert f"line {20 - MOST_LINES} " in box
    assert "line 19 " in box
    assert f"line {19 - MOST_LINES} " not in box
    assert "Snakemake's: none was written" in other


def test_a_changed_key_is_one_warning_also_where_its_value_differs_from_run_to_run(tmp_path: Path) -> None:
    settings = load_settings(CONFIG, CLUSTER)
    settings = replace(settings, experiment=settings.experiment.replace(results=str(tmp_path)))
    ladder = Ladder.of(settings)
    trained = [run for run in ladder.plan.runs if not run.is_plain]
    for number, run in enumerate(trained):
        write_run(tmp_path, run.replace(seed=100 + number), 1000.0)
    (warning,) = [line for line in announcements(ladder, ladder.plan.stages) if "measured again" in line]
    assert warning.startswith(f"warning: {len(trained)} finished runs will be measured again (default/weak/1x1/r1, ")
    assert f"changed: seed: was 100, is {trained[0].seed} (default/weak/1x1/r1; the others in the same keys)" in warning
