from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from ddp_ladder.slurm import query
from ddp_ladder.slurm.query import SlurmError, answer, job_field, question_environment, run_command, set_aside
from make_files import put_on_path

# Slurm 22.05.8, with its controller switched off, and for a job that never was.
SILENT = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def failing(path: Path, words: str, times: int) -> list[str]:
    """A command that fails so many times and then answers."""
    calls = path / "calls"
    program = (
        f"import pathlib, sys; calls = pathlib.Path({str(calls)!r}); calls.open('a').write('x')\n"
        f"if len(calls.read_text()) <= {times}: sys.exit({words!r})\n"
        "print('node1')"
    )
    return [sys.executable, "-c", program]


def asked(job_id: str, argv: list[str], until_s: float = math.inf) -> str:
    return answer(job_id, lambda within_s: run_command(argv, within_s), until_s)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "AGAIN_S", 0.01)


def test_a_controller_that_restarts_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert asked("42", failing(tmp_path, SILENT, 2)) == "node1\n"
    assert capfd.readouterr().err == f"Slurm does not answer ({SILENT}); asking again for 300 s\n"


def test_a_command_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match=r"hang\(\): no answer within 0.2 s") as caught:
        run_command([sys.executable, "-c", "import signal; hang = signal.pause; hang()"], within_s=0.2)
    assert caught.value.is_undecided


def test_records_keep_blanks_inside_values_and_take_no_time_for_many() -> None:
    line = f"NodeName=n1 Gres= OS=Linux 6.1  #1 SMP Reason=a b {' ' * 300_000}{'c' * 300_000}"
    (record,) = query.records(f"Welcome!\n{line}", "NodeName")
    assert record.pop("Reason").startswith("a b")
    assert record == {"NodeName": "n1", "Gres": "", "OS": "Linux 6.1  #1 SMP"}


HEADER = "ddp-ladder|TIME_LEFT"


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        ([f"Welcome!\n{HEADER}\nddp-ladder|4:20\n3:30\n"], "4:20"),
        (["Welcome!", "", f"{HEADER}\nddp-ladder|4:20"], "4:20"),
        ([HEADER], ""),
    ],
)
def test_what_a_site_prints_beside_an_answer_is_skipped_and_what_it_prints_instead_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answers: list[str], left: str
) -> None:
    for number, text in enumerate(answers):
        (tmp_path / f"answer{number}").write_text(text)
    squeue = f"cd {tmp_path}; echo >>calls; cat answer$(($(wc -l <calls) - 1))"
    put_on_path(monkeypatch, tmp_path, squeue=squeue)
    assert job_field("42", "L") == left
    message = "squeue printed what cannot be read: 'Welcome!'" if len(answers) > 1 else ""
    assert message in capfd.readouterr().err


# The environment of a query

KEPT = dict.fromkeys(("PATH", "SLURM_CONF", "SLURM_JWT", "SLURMD_NODENAME", "SLURMISH"), "x")
DEFAULTS = dict.fromkeys(
    "SACCT_FORMAT SACCTMGR_X SALLOC_QOS SBATCH_SIGNAL SBATCH_TIMELIMIT SCANCEL_NAME SCONTROL_LOCAL SINFO_STATES "
    "SLURM_BITSTR_LEN SLURM_CLUSTERS SLURM_CPU_BIND SLURM_TIME_FORMAT SQUEUE_FORMAT SQUEUE_STATES SRUN_DEBUG".split(),
    "7",
)


def test_no_default_of_slurms_commands_reaches_a_question() -> None:
    assert question_environment({**KEPT, **DEFAULTS, "SLURM_JOB_ID": "42", "SLURM_NTASKS": "3"}) == KEPT


def test_who_submits_says_what_it_leaves_out() -> None:
    environment = {**KEPT, **DEFAULTS}
    said = set_aside(environment)
    assert said.startswith(f"set aside: {', '.join(sorted(DEFAULTS))} (")
    assert "\n" not in said
    assert (environment, set_aside(environment)) == (KEPT, "")


def test_in_the_shell_of_a_job_that_job_is_named_and_not_all_that_it_left() -> None:
    environment = {**KEPT, "SLURM_JOB_ID": "42", "SLURM_NTASKS": "3", "SBATCH_TIMELIMIT": "0:01"}
    said = set_aside(environment)
    assert said.startswith("set aside: SBATCH_TIMELIMIT, SLURM_* of job 42, in whose shell this was started (")
    assert environment == KEPT


# Slurm's ways to write amounts and names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", "node1"), ("node[08-10],login", "node08 node09 node10 login"), ("(null)", ""), ("", ""),
        ("r[1-2]n[1,3]", "r1n1 r1n3 r2n1 r2n3"),
    ],
)  # fmt: skip
def test_host_names(text: str, names: str) -> None:
    assert list(query.host_names(text)) == names.split()
