from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.records.raw_files import read_raw_run
from make_records import make_spec
from make_runs import STEPS, edit, read_steps, write_run, write_steps

END = "1800000000.125"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, make_spec("2x1"))


def test_a_whole_run(run: RunDirectory) -> None:
    raw = read_raw_run(run)
    assert raw.problems == ()
    assert (list(raw.agents), list(raw.ranks)) == ([Agent(0), Agent(1)], [0, 1])
    steps = raw.ranks[0].steps
    assert steps.count == STEPS
    assert steps.samples.tolist() == [64] * STEPS
    assert steps.padding_samples.sum() == 0
    assert steps.step_time_s.mean() == pytest.approx(0.125, rel=0.01)
    assert steps.data_wait_s.sum() == pytest.approx(0.02 * steps.step_time_s.sum(), rel=1e-6)


def test_with_an_agent_for_each_gpu_each_of_them_is_evidence(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("2x2", launcher="srun"), agents_per_node=2)
    assert read_raw_run(run).problems == ()
    run.agent_end(Agent(1, 0)).rename(run.agent_end(Agent(1)))
    assert read_raw_run(run).problems == (
        "nodes/node1.task0.json is missing",
        "nodes/node1.json is of a node that the plan does not have",
    )


@pytest.mark.parametrize(
    ("column", "cell"),
    [*((column, "-1") for column in (1, 2, 3, 4)), (3, "nan"), (4, "inf"), (1, ""), (4, "1e300"), (3, "0.0"),
     (3, "5e-324")],
)  # fmt: skip
def test_figures_that_cannot_be(run: RunDirectory, column: int, cell: str) -> None:
    rows = [[*row, END, "0.01", "0.02", "0.03", "0.004"] for row in read_steps(run, 1)]
    rows[20][column] = cell
    write_steps(run, 1, rows)
    (problem,) = read_raw_run(run).problems
    assert problem.startswith("ranks/rank1.steps is damaged: ")


def test_what_is_damaged_is_not_used(run: RunDirectory) -> None:
    (run.ranks / "rank1.steps").write_bytes(b"")
    run.agent_end(Agent(0)).write_text("{")
    raw = read_raw_run(run)
    assert (list(raw.agents), list(raw.ranks)) == ([Agent(1)], [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec_hash": "0" * 64}, "spec_hash is not that of its spec"),
        ({"spec": 3}, r"run\.json does not describe a run: spec"),
        ({"schema_version": 1}, "schema_version: 1, not 2: another version of ddp-ladder wrote this file"),
    ],
)
def test_without_run_json_nothing_can_be_said(run: RunDirectory, change: dict[str, Any], message: str) -> None:
    edit(run.run, lambda data: data.update(change))
    with pytest.raises(ValueError, match=message):
        read_raw_run(run)
    run.run.write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is not JSON"):
        read_raw_run(run)
    run.run.unlink()
    with pytest.raises(FileNotFoundError):
        read_raw_run(run)
