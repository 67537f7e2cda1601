"""What fails after a complete training is a remark with its cause; what may have cut it short is a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.records.record import Record
from make_records import make_spec
from make_runs import STARTED_AT_S, edit, edit_agent, edit_rank, reassemble, write_run

CRASHED = {"rank": 3, "local_rank": 1, "pid": 7, "exit_code": -11, "signal": "SIGSEGV", "ended_at_s": STARTED_AT_S + 9}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Two nodes with two ranks each."""
    return write_run(tmp_path, make_spec("2x2"))


def raised(
    run: RunDirectory, number: int, *, after_training: bool, exit_code: int = 1, text: str | None = None
) -> None:
    edit_rank(run, number, exit_code=exit_code, ended_by="exception", exception=text, after_training=after_training)
    edit_agent(
        run, number // 2, exit_code=1, failed_ranks=[{**CRASHED, "rank": number, "exit_code": 1, "signal": None}]
    )


def the_remark(record: Record) -> str:
    assert (record.status, record.failure) == ("ok", None)
    (remark,) = (remark for remark in record.remarks if remark.name == "end")
    return remark.what


def test_a_crash_at_the_interpreters_shutdown(run: RunDirectory) -> None:
    """As of a public training of a tokenizer: its record is written, then the process dies and torchrun fails."""
    before = reassemble(run)
    edit_agent(run, 1, exit_code=1, failed_ranks=[CRASHED])
    edit_agent(run, 0, exit_code=-15, signal="SIGTERM")  # the job ends the other agents
    after = reassemble(run)
    assert the_remark(after) == (
        "after its training, which is complete and counts, a rank crashed: rank 3 (node 1, node1): ended by SIGSEGV"
    )
    assert (after.throughput, after.timing) == (before.throughput, before.timing)
    assert [check.measured for check in after.checks if check.name == "exit codes"] == [
        "after the training: node 0: SIGTERM, node 1: 1"
    ]


def test_an_exit_handler_that_fails(run: RunDirectory) -> None:
    failed = {**CRASHED, "exit_code": 3, "signal": None}
    edit_agent(run, 1, exit_code=1, failed_ranks=[failed])
    run.agent_log(Agent(1), 2).write_text("cannot upload the summary\n")
    assert "exit code 3, after the script's end; the last line that was printed: cannot upload" in the_remark(
        reassemble(run)
    )


def test_a_clean_up_that_raises(run: RunDirectory) -> None:
    for number in range(4):
        raised(run, number, after_training=True, text="RuntimeError: no such tracker")
    assert "the script raised an exception: rank 0: RuntimeError: no such tracker" in the_remark(reassemble(run))
    raised(run, 1, after_training=False, text="ValueError: bad batch")
    assert reassemble(run).status == "failed"


def test_what_may_have_cut_the_training_short_is_a_failure(run: RunDirectory) -> None:
    raised(run, 3, after_training=False, exit_code=75)  # it saved its state
    assert reassemble(run).status == "failed"
    edit_rank(run, 3, exit_code=0, ended_by="script")
    edit_agent(run, 1, exit_code=-15, signal="SIGTERM")  # a script may end early, and well, when it is told to
    edit_agent(run, 0, exit_code=-15, signal="SIGTERM")
    assert reassemble(run).status == "failed"
    edit_agent(run, 1, exit_code=1, signal=None, failed_ranks=[CRASHED])
    assert reassemble(run).status == "ok"
    edit_agent(run, 1, failed_ranks=[])  # the launcher itself failed
    assert reassemble(run).status == "failed"
    edit_agent(run, 1, failed_ranks=[CRASHED])
    (run.ranks / "rank2.json").unlink()  # the launcher ended it because of the crash
    assert reassemble(run).status == "failed"


@pytest.mark.parametrize(("later_s", "status"), [(1, "failed"), (600, "ok")])
def test_an_end_that_hangs(run: RunDirectory, later_s: float, status: str) -> None:
    edit(run.ended, lambda end: end.update(outcome="time limit", ended_at_s=end["ended_at_s"] + later_s))
    assert reassemble(run).status == status
