"""States of Slurm jobs, from what Slurm 22.05 printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.slurm import jobs
from ddp_ladder.slurm.jobs import GONE, JobEnd, JobState, advice, ask, read_job_end
from make_files import put_on_path, write_programs

SQUEUE_HEADER = "ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON"
SQUEUE = f"""\
{SQUEUE_HEADER}
ddp-ladder|2|COMPLETED|2026-11-20T21:51:43|node1|None
ddp-ladder|1|FAILED|2026-11-20T21:51:43|node1|NonZeroExitCode
ddp-ladder|6|PENDING|N/A||Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions
ddp-ladder|7|PENDING|N/A||PartitionNodeLimit
ddp-ladder|8|PENDING|2026-11-20T23:40:00||Resources
ddp-ladder|5|RUNNING|2026-11-20T21:51:43|node[1-2]|None
"""
SACCT_HEADER = "JobIDRaw|State|NodeList|Reason"
SACCT = f"""\
{SACCT_HEADER}
1|FAILED|node1|None
3|PREEMPTED|node1|None
4|CANCELLED by 0|node2|None
6|PENDING|None assigned|None
"""


def test_squeues_lines_captured_from_a_real_slurm(tools: Path) -> None:
    prints(tools, "squeue", SQUEUE)
    states, start = ask("125678"), "2026-11-20T21:51:43"
    assert states["6"].reason.startswith("Nodes required for job are DOWN, DRAINED")
    assert {job: state for job, state in states.items() if job != "6"} == {
        "2": JobState("COMPLETED", "", "node1", start), "1": JobState("FAILED", "NonZeroExitCode", "node1", start),
        "7": JobState("PENDING", "PartitionNodeLimit"), "5": JobState("RUNNING", "", "node[1-2]", start),
        "8": JobState("PENDING", "Resources", "", "2026-11-20T23:40:00"),
    }  # fmt: skip


BANNERS = ["*** Maintenance | on Monday | at 9 | a.m. | ***\n", "\n5|RUNNING\n", "|||||\n"]


@pytest.mark.parametrize("banner", BANNERS)
def test_what_a_site_prints_beside_the_answers_is_no_answer(tools: Path, banner: str) -> None:
    prints(tools, "squeue", banner + SQUEUE.replace("|None\n", f"|None\n{banner}") + banner)
    prints(tools, "sacct", banner + SACCT.replace("|None\n", f"|None\n{banner}") + banner)
    states = "FAILED COMPLETED PREEMPTED CANCELLED RUNNING PENDING PENDING".split()
    assert [state.state for state in ask("1234567").values()] == states


def test_advice_names_the_key_of_the_stage() -> None:
    assert "stages.stage2.runtime" in advice(JobState("TIMEOUT"), "", "stage2", 10).next
    assert advice(JobState("SOMETHING_NEW"), "", "stage2", 10).why == "see JOB STATE CODES in `man squeue`"
    kept = {
        stage: advice(JobState("CANCELLED"), "", stage, 10).next.rpartition(": ")[2]
        for stage in ("stage2", "production")
    }
    assert kept == {"stage2": "finished runs are kept", "production": "what the script has saved is kept"}


@pytest.mark.parametrize(
    "words",
    [
        "Exceeded job memory limit",
        "Detected 1 oom_kill event in StepId=7.batch. Some of the step tasks have been OOM Killed.",
        "Detected 1 oom-kill event(s) in step 7.batch cgroup.",
    ],
)
def test_too_much_memory_is_found_in_slurms_words(words: str) -> None:
    assert "node.memory_mb" in advice(JobState("FAILED"), words, "stage1", 10).next
    assert "node.memory_mb" not in advice(JobState("FAILED"), "task 0: exited with exit code 1", "stage1", 10).next


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for stand-ins of Slurm's commands, the first on the path."""
    put_on_path(monkeypatch, tmp_path, scontrol="exit 0")
    return tmp_path


def prints(directory: Path, name: str, text: str) -> None:
    """A stand-in that prints this, whatever it is asked."""
    (directory / f"{name}.txt").write_text(text)
    write_programs(directory, **{name: f"cat {directory}/{name}.txt"})


def test_those_that_the_controller_has_forgotten_are_looked_up_in_the_accounting(tools: Path) -> None:
    prints(tools, "squeue", SQUEUE)
    row = "4|CANCELLED by 0|node2|None"
    write_programs(tools, sacct=f"echo \"$@\" >{tools}/asked; echo '{SACCT_HEADER}'; echo '{row}'")
    states = ask(["4", "5", "9"])
    assert [states[job].state for job in ("4", "5", "9")] == ["CANCELLED", "RUNNING", GONE]
    assert "--jobs=4,9" in (tools / "asked").read_text()


@pytest.mark.parametrize(
    ("sinfo", "why", "key"),
    [
        # Captured from a real Slurm after a node's link was cut; a node in two partitions has two lines.
        ("node1|idle node2|down* node2|down*", "node2 does not answer Slurm", "slurm.exclude: node2"),
        ("node1|idle node2|idle", "one of its nodes died", "sinfo --Node"),
        ("", "one of its nodes died", "sinfo --Node"),
    ],
)
def test_after_a_node_failure_the_dead_node_is_named(tools: Path, sinfo: str, why: str, key: str) -> None:
    prints(tools, "sinfo", "\n".join(f"ddp-ladder|{row}" for row in sinfo.split()))
    explained = advice(JobState("NODE_FAIL", nodes="node[1-2]"), "", "stage3", 10)
    assert explained.why.startswith(why)
    assert key in explained.next


def test_the_end_of_a_job_is_read_as_it_was_written_and_another_file_is_refused(tmp_path: Path) -> None:
    end = JobEnd("7", "stage1", "1x1", "TIMEOUT", "7.log", False, "node1", "TimeLimit", "its time was up", "raise it")
    assert read_job_end(tmp_path, "1x1") is None
    file = jobs.write_job_end(tmp_path, end)
    assert read_job_end(tmp_path, "1x1") == end
    assert file == jobs.job_end_file(tmp_path, "1x1")
    for text in ("{}", "[]", '{"other": 1}', "x"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"1x1\.json"):
            read_job_end(tmp_path, "1x1")
