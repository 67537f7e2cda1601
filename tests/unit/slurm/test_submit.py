"""Submitting with an sbatch that loses its answers, and a squeue that knows late: stand-ins for both on the PATH."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from ddp_ladder.slurm import jobs as submit
from ddp_ladder.slurm import query
from ddp_ladder.slurm.jobs import NotSubmitted, Stopped, Submission, Submitter, jobs_by_name, new_job_name
from make_files import write_programs

# Slurm 22.05.8
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
# Of Slurm 24.11.5, where a site may limit each user's requests.
LIMITED = "sbatch: error: Batch job submission failed: Rate limit exceeded, please retry momentarily"
BUSY = "sbatch: error: Batch job submission failed: Unable to create job record, try again"
FAILS = "echo '{}' >&2; exit 1"

# Each call of sbatch is a line of `calls`; what it submits is a line of `queue`, which squeue shows.
SBATCH = """
echo x >>calls
n=$(wc -l <calls)
id=$((100 + n))
name=$(echo "$@" | sed 's/.*--job-name //')
submit() { echo "ddp-ladder|$id|PENDING|N/A||None|$name" >>queue; }
cat >script
"""
SQUEUE = """
echo x >>asked
echo 'ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON|NAME'
"""


class Slurm:
    """What its commands do, in shell, and a start that submits scale 1x4."""

    def __init__(self, path: Path) -> None:
        self.path, self.said = path, list[str]()
        self.results = path / "results"
        self.submitter = Submitter(self.results, self.said.append)
        self.name = new_job_name(self.results, "1x4")
        self.does("scancel", 'echo "$@" >>cancelled')
        self.does("squeue", "cat queue 2>/dev/null || true")

    def does(self, command: str, script: str) -> None:
        begin = {"sbatch": SBATCH, "squeue": SQUEUE}.get(command, "")
        write_programs(self.path, **{command: begin + script})

    def submit(self) -> str:
        argv = ["sbatch", "--parsable", "--job-name", self.name]
        return self.submitter.submit(Submission("stage2 1x4", "1x4", self.name, argv, "#!/bin/sh\ntrain\n"))

    def count(self, what: str) -> int:
        file = self.path / what
        return len(file.read_text().splitlines()) if file.exists() else 0

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(submit, "PAUSES_S", (0.3, 0.3, 0.3))
    monkeypatch.setattr(submit, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(submit, "STOP_WITHIN_S", 0.3)
    monkeypatch.setattr(query, "GIVEN_UP_EVERY_S", 0.1)
    return Slurm(tmp_path)


def test_a_job_is_submitted_under_its_name_with_its_script(slurm: Slurm) -> None:
    slurm.does("sbatch", "submit; echo $id")
    assert slurm.submit() == "101"
    assert (slurm.path / "script").read_text() == "#!/bin/sh\ntrain\n"
    assert [job.id for job in jobs_by_name(slurm.results)] == ["101"]
    assert slurm.said == []


def first(times: int, does: str) -> str:
    """Shell of an sbatch that does this in its first calls, and in the next one submits and answers."""
    return f"[ $n -le {times} ] && {{ {does}; }}; submit; echo $id"


LOOKED = "stage2 1x4: {}; looking whether it was submitted"
# What sbatch and squeue do, how often sbatch is called, and what is said of it how often.
FOLLOWED: dict[str, tuple[str, str, int, str, int]] = {
    "beside a banner": ("submit; echo '** on 12 May **'; echo; echo $id; echo 3 jobs left", "cat queue", 1, "", 0),
    "with a cluster": ('submit; echo "$id;cluster2"', "cat queue", 1, "", 0),
    "no answer": ("submit", "cat queue", 1, "", 0),
    "an answer without an id": ("submit; echo Submitted", "cat queue", 1, "", 0),
    "two numbers": ("submit; echo 12; echo $id", "cat queue", 1, "", 0),
    "lost": (f"submit; {FAILS.format(TIMED_OUT)}", "cat queue", 1, "job 101 is in the queue all the same", 1),
    "known late": (f"submit; {FAILS.format(TIMED_OUT)}", "[ $(wc -l <asked) -lt 4 ] || cat queue", 1, "", 0),
    "not in the queue": (first(2, FAILS.format(TIMED_OUT)), "cat queue", 3, LOOKED.format(TIMED_OUT), 2),
    "busy": (first(1, FAILS.format(BUSY)), "cat queue", 2, LOOKED.format(BUSY), 1),
    "limited": (first(1, FAILS.format(LIMITED)), "cat queue", 2, LOOKED.format(LIMITED), 1),
    "a silent squeue delays a second try": (
        first(1, FAILS.format(TIMED_OUT)),
        "k=$(wc -l <asked); [ $k = 1 ] || [ $k -gt 9 ] || exit 1; cat queue",
        2,
        "",
        0,
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_one_job_is_followed_and_sbatch_is_tried_again_only_where_none_is_in_the_queue(slurm: Slurm, name: str) -> None:
    sbatch, squeue, calls, said, times = FOLLOWED[name]
    slurm.does("sbatch", sbatch)
    slurm.does("squeue", f"{squeue} 2>/dev/null || true" if squeue.endswith("cat queue") else squeue)
    assert slurm.submit() == str(100 + calls)
    assert slurm.count("calls") == calls
    assert not said or slurm.text.count(said) == times
    assert slurm.count("asked") > (9 if "silent" in name else 0)


def test_a_job_of_another_start_of_the_same_results_is_not_joined(slurm: Slurm) -> None:
    line = f"ddp-ladder|7|RUNNING|N/A|node1|None|{new_job_name(slurm.results, '1x4')}"
    slurm.does("squeue", f"echo '{line}'")
    slurm.does("sbatch", "submit; echo $id")
    with pytest.raises(NotSubmitted, match=r"job 7 of another start is not over \(RUNNING\)") as caught:
        slurm.submit()
    assert "`scancel 7`" in caught.value.next
    assert slurm.count("calls") == 0
    # Jobs of others are no hindrance.
    other = slurm.results / "other"
    names = (new_job_name(slurm.results, "1x2"), new_job_name(other, "1x4"), "interactive", f"{slurm.name}|x")
    rows = [f"ddp-ladder|{k}|RUNNING|N/A|n|None|{name}" for k, name in enumerate(names)]
    rows.append(f"ddp-ladder|9|TIMEOUT|N/A|n|None|{new_job_name(slurm.results, '1x4')}")
    slurm.does("squeue", f"printf '%s\\n' {' '.join(map(repr, rows))}; cat queue 2>/dev/null || true")
    assert slurm.submit() == "101"


def started(slurm: Slurm) -> tuple[threading.Thread, list[type]]:
    """A thread that submits, once it has called what touches `called`, and the exception that will end it."""
    ended: list[type] = []

    def run() -> None:
        try:
            slurm.submit()
        except (Stopped, NotSubmitted) as error:
            ended.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    while not (slurm.path / "called").exists():
        assert thread.is_alive()
        thread.join(0.02)
    return thread, ended


@pytest.mark.parametrize("command", ["sbatch", "squeue"])
def test_an_end_does_not_wait_for_a_command_that_hangs(slurm: Slurm, command: str) -> None:
    slurm.does("sbatch", "submit; echo $id")
    slurm.does(command, "touch called; exec sleep 100")
    thread, ended = started(slurm)
    slurm.submitter.stop()
    thread.join(20)
    assert ended, "it still waits"


@pytest.mark.parametrize("heard", ["submit; echo $id", f"submit; {FAILS.format(TIMED_OUT)}"])
def test_what_is_being_submitted_when_ctrl_c_comes_is_cancelled(slurm: Slurm, heard: str) -> None:
    slurm.does("sbatch", f"touch called; while [ ! -e go ]; do sleep 0.02; done; {heard}")
    thread, ended = started(slurm)
    assert slurm.submitter.stop() == set()
    (slurm.path / "go").touch()
    thread.join()
    assert ended == [Stopped]
    assert (slurm.path / "cancelled").read_text() == "--quiet 101\n"
    assert "cancelled: 101" in slurm.text
