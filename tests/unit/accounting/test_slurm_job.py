"""Parsers of sacct, sstat and scontrol, on what a real Slurm printed (tests/unit/slurm_output/README.md)."""

from __future__ import annotations

import time

import pytest
from ddp_ladder.accounting import ask
from ddp_ladder.accounting.slurm_job import (
    StepUse,
    energy_j,
    memory_bytes_per_node,
    parse_sacct,
    parse_scontrol,
    parse_sstat,
    seconds_of,
    size_bytes,
    with_maxima,
)
from ddp_ladder.slurm.query import SlurmError, Unreadable
from slurm_captured import CAPTURED


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm prints local times."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def captured(name: str) -> str:
    return (CAPTURED / f"{name}.txt").read_text()


def late(text: str) -> str:
    """The first job of sacct_jobs, whose end the database does not know yet."""
    changed = text.replace("|2026-11-22T14:12:02|12|5|", "|Unknown|12|5|")
    assert changed != text
    return changed


def test_sacct_of_a_job_with_several_steps() -> None:
    job = parse_sacct(captured("sacct_jobs"))["1"]
    assert (job.source, job.state, job.exit_code, job.name[:3]) == ("sacct", "COMPLETED", "0:0", "2x2")
    assert (job.nodes, job.node_list, job.cpus, job.gpus) == (2, "node[1-2]", 4, 4)
    assert job.submit_s == 1_795_356_709
    assert (job.elapsed_s, job.limit_s, job.cpu_s) == (12, 300, 9.389)
    assert job.memory_bytes == 6000 * 1024**2
    assert [step.step for step in job.steps] == ["batch", "0", "1"]


def test_memory_per_node_is_that_of_the_largest_step_and_of_the_batch_step_beside_it() -> None:
    """Step 0 has a task on each node; step 1 has two smaller ones, which together need more."""
    job = parse_sacct(captured("sacct_jobs"))["1"]
    assert memory_bytes_per_node(job.steps, job.nodes) == 11_214_848 + 2 * 113_737_728
    without_second = [step for step in job.steps if step.step != "1"]
    assert memory_bytes_per_node(without_second, job.nodes) == 11_214_848 + 213_729_280
    assert memory_bytes_per_node(job.steps[:1], job.nodes) is None


def test_sacct_with_units() -> None:
    with_units, without = (parse_sacct(captured(name))["1"] for name in ("sacct_units", "sacct_jobs"))
    assert with_units == without


def test_cancelled_jobs_in_sacct_and_scontrol() -> None:
    jobs = parse_sacct(captured("sacct_jobs"))
    assert [(jobs[k].state, jobs[k].elapsed_s, jobs[k].is_over) for k in "23"] == [("CANCELLED", 0, True)] * 2
    assert jobs["3"].node_list == ""
    for line in captured("job").splitlines()[1:]:
        shown = parse_scontrol(line)
        assert shown is not None
        assert (shown.state, shown.elapsed_s, shown.is_over) == ("CANCELLED", 0, True)


def test_scontrol_and_sacct_agree() -> None:
    shown, accounted = parse_scontrol(captured("job")), parse_sacct(captured("sacct_jobs"))["1"]
    assert shown == accounted.replace(source="scontrol", cpu_s=None, steps=())


def test_scontrol_without_accounting_shows_the_gpus_that_were_asked_for() -> None:
    """TRES then holds none; on each of two nodes the job had gres:gpu:2."""
    text = captured("job_without_accounting")
    job, typed = parse_scontrol(text), parse_scontrol(text.replace("gres:gpu:2", "gres/gpu:a100:4"))
    assert job is not None
    assert typed is not None
    assert (job.gpus, job.nodes, job.cpus, job.memory_bytes) == (4, 2, 4, 6000 * 1024**2)
    assert typed.gpus == 8


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "PENDING"])
def test_a_job_that_runs_is_not_over(state: str) -> None:
    text = captured("job").splitlines()[0]
    running = parse_scontrol(text.replace("JobState=COMPLETED", f"JobState={state}"))
    assert running is not None
    assert not running.is_over
    assert not parse_sacct(late(captured("sacct_jobs")))["1"].is_over
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified") is None


def test_samples_of_sstat_keep_the_maxima_of_each_step() -> None:
    first, second = (parse_sstat(captured(name)) for name in ("sstat_1", "sstat_2"))
    lower = [step.replace(max_rss_bytes=1, cpu_s=0.0) for step in first]
    steps = {step.step: step for step in with_maxima(with_maxima(with_maxima([], first), lower), second)}
    assert set(steps) == {"batch", "0", "1"}
    assert (steps["0"].max_rss_bytes, steps["0"].cpu_s) == (213_786_624, 6.0)
    assert memory_bytes_per_node(steps.values(), 2) == 11_108_352 + 2 * 113_766_400


def test_what_cannot_be_read() -> None:
    for parse in (parse_sacct, parse_sstat):
        with pytest.raises(Unreadable):
            parse("Welcome to the cluster")
    assert parse_sacct("Welcome\n" + captured("sacct_jobs")).keys() == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("", None), ("0", 0), ("10952K", 11_214_848), ("1.50G", 1_610_612_736), ("2M", 2_097_152), ("16?", None)],
)
def test_sizes(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("UNLIMITED", None),
        ("213503982334-14:25:51", None),  # no value, in milliseconds
        ("00:09.389", 9.389),
        ("1-02:03:04", 93_784.0),
        ("00:05:00", 300.0),
    ],
)
def test_times(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("shown", "joules"), [("", None), ("0", None), ("18446744073709551614", None), ("4096", 4096.0)]
)
def test_energy_of_the_run_steps_alone(shown: str, joules: float | None) -> None:
    """The batch step's node is in theirs too; nothing, 0 and Slurm's mark for no value are no energy."""
    text = captured("sacct_jobs").replace("|213729280|0", f"|213729280|{shown}").replace("11214848|0", "11214848|900")
    assert energy_j(parse_sacct(text)["1"].steps) == joules


class Answers:
    """Slurm's commands, each with its output, or its error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **outputs: str | SlurmError) -> None:
        self.asked: list[str] = []
        self._outputs = outputs
        monkeypatch.setattr(ask, "run_command", self._run)
        monkeypatch.setattr(ask, "AGAIN_S", 0.01)

    def _run(self, argv: list[str], within_s: float | None = None) -> str:
        self.asked.append(argv[0])
        output = self._outputs[argv[0]]
        if isinstance(output, SlurmError):
            raise output
        return output


def test_sacct_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Answers(monkeypatch, sacct=SlurmError("Slurm accounting storage is disabled"))
    assert ask.accounted_jobs(["1"], wait_s=60) is None
    assert slurm.asked == ["sacct"]


def test_sacct_that_is_late_is_asked_again_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Answers(monkeypatch, sacct=late(captured("sacct_jobs")))
    assert set(ask.accounted_jobs(["1", "2"], wait_s=0.1) or {}) == {"2"}
    assert 1 < len(slurm.asked) < 12
    slurm.asked.clear()
    ask.accounted_jobs(["1"])
    assert slurm.asked == ["sacct"]


@pytest.mark.parametrize("missing", ["end", "steps"])
def test_a_job_whose_steps_come_later_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """The database has the end of a job seconds before that of its last step, and what the step used."""
    whole = captured("sacct_jobs")
    if missing == "end":
        early = whole.replace("|2026-11-22T14:12:02|6|", "|Unknown|6|")
    else:
        early = "".join(line for line in whole.splitlines(keepends=True) if not line.startswith("1."))
    assert early != whole
    monkeypatch.setattr(ask, "AGAIN_S", 0.01)
    answers = iter([early, early, whole])
    monkeypatch.setattr(ask, "run_command", lambda *_: next(answers))
    assert (ask.accounted_jobs(["1"], wait_s=60) or {})["1"] == parse_sacct(whole)["1"]
    assert next(answers, None) is None


@pytest.mark.parametrize(
    ("gathered", "storage", "needed"),
    [
        ("jobacct_gather/linux", "accounting_storage/none", True),
        ("jobacct_gather/cgroup", "accounting_storage/slurmdbd", False),
        ("jobacct_gather/none", "accounting_storage/none", False),
    ],
)
def test_sstat_is_asked_only_where_it_is_the_only_source(
    monkeypatch: pytest.MonkeyPatch, gathered: str, storage: str, needed: bool
) -> None:
    config = f"JobAcctGatherType       = {gathered}\nAccountingStorageType   = {storage}\n"
    Answers(monkeypatch, scontrol=config)
    assert ask.samples_are_needed() is needed


def test_no_answer_of_sstat(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, sstat=SlurmError("sstat: No such file or directory"))
    assert ask.memory_of_steps("1") == []
    unknown = StepUse(step="0", tasks=1, max_rss_bytes=None)
    assert with_maxima([unknown], [unknown]) == (unknown,)
