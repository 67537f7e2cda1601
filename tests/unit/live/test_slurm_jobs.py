from __future__ import annotations

from collections.abc import Collection

from ddp_ladder.live.slurm_jobs import NO_COMMAND, SlurmJobs
from ddp_ladder.live.state import QueuedJob, SlurmAnswer
from ddp_ladder.slurm.query import SlurmError
from ddp_ladder.slurm.states import JobState

PENDING = QueuedJob(JobState("PENDING", "Priority"), 0.0, 1200.0)


class Slurm:
    """Stands in for squeue and the clock."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.now_s = 100.0
        self.is_silent = False
        self.jobs = SlurmJobs(self.ask, lambda: self.now_s, lambda: True)

    def ask(self, job_ids: Collection[str]) -> dict[str, QueuedJob]:
        self.asked.append(sorted(job_ids))
        if self.is_silent:
            raise SlurmError("Unable to contact slurm controller\n (connect failure)")
        return dict.fromkeys(job_ids, PENDING)

    def look(self, *job_ids: str) -> SlurmAnswer:
        self.jobs.look(job_ids)
        self.jobs.wait()
        return self.jobs.look(job_ids)


def test_all_jobs_are_one_question_in_ten_seconds() -> None:
    slurm = Slurm()
    assert slurm.look("12").jobs == {"12": PENDING}
    for _ in range(25):
        slurm.now_s += 1
        answer = slurm.look("12", "13")
    assert slurm.asked == [["12"], ["12", "13"], ["12", "13"]]
    assert set(answer.jobs) == {"12", "13"}


def test_a_silent_slurm_is_asked_less_often_and_keeps_its_last_answer() -> None:
    slurm = Slurm()
    slurm.look("12")
    slurm.is_silent = True
    for _ in range(200):
        slurm.now_s += 1
        answer = slurm.look("12")
    assert len(slurm.asked) == 1 + 1 + 4  # after 10, 30, 70, 130, 190 s
    assert answer.jobs == {"12": PENDING}
    why = "Slurm does not answer (Unable to contact slurm controller (connect failure)); asked again in 60 s"
    assert answer.problem == why
    slurm.is_silent = False
    slurm.now_s += 60
    assert slurm.look("12").problem == ""


def test_without_jobs_or_slurm_nothing_is_asked() -> None:
    slurm = Slurm()
    assert slurm.look() == SlurmAnswer()
    jobs = SlurmJobs(slurm.ask, has_command=lambda: False)
    assert jobs.look(["12"]) == SlurmAnswer(problem=NO_COMMAND)
    assert slurm.asked == []
