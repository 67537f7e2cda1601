from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.steps import csv_of
from ddp_ladder_instrument.contract import HEADER
from make_records import make_spec
from make_runs import STEPS, edit, read_steps, write_content, write_run, write_steps

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


def test_steps_whose_end_is_not_known(run: RunDirectory) -> None:
    """Such as those that a program reports itself."""
    assert read_raw_run(run).ranks[0].steps.ended_at_s is None
    write_steps(run, 0, [[*row[:5], END] for row in read_steps(run, 0)])
    assert (read_raw_run(run).ranks[0].steps.ended_at_s == 1_800_000_000.125).all()


def test_figures_are_those_of_float_to_the_bit(run: RunDirectory) -> None:
    written = ["0.066119324", "5.0e-1", "123456789.123456789", "0.1000000000000000055511151231257827", "1"]
    rows = [[*row[:3], written[k % 5], "0.25"] for k, row in enumerate(read_steps(run, 0))]
    write_steps(run, 0, rows)
    assert read_raw_run(run).ranks[0].steps.step_time_s.tolist() == [float(row[3]) for row in rows]


def test_ddps_times_of_some_steps(run: RunDirectory) -> None:
    rows = [[*row, END, *(["0.01", "0.02", "0.03", "0.004"] if k % 2 else [""] * 4)]
            for k, row in enumerate(read_steps(run, 0))]  # fmt: skip
    write_steps(run, 0, rows)
    ddp_s = read_raw_run(run).ranks[0].steps.ddp_s
    assert ddp_s is not None
    assert np.isnan(ddp_s[::2]).all()
    assert ddp_s[1::2].tolist() == [[0.01, 0.02, 0.03, 0.004]] * (STEPS // 2)
    assert read_raw_run(run).ranks[1].steps.ddp_s is None


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


def test_a_matrix_that_is_none(run: RunDirectory) -> None:
    write_content(run, 1, b"\0" * 8 * (len(HEADER) + 1), 1)
    assert read_raw_run(run).problems == ("ranks/rank1.steps is damaged: it has 96 bytes, which is no number of rows",)


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


def test_the_csv_that_people_open(run: RunDirectory) -> None:
    rows = [[*row[:5], END, *(["0.01", "0.02", "0.03", "0.004", "0.25"] if k % 2 else [])]
            for k, row in enumerate(read_steps(run, 0))]  # fmt: skip
    write_steps(run, 0, rows)
    header, first, second, *_ = csv_of(read_raw_run(run).ranks[0].steps).splitlines()
    assert header == ",".join(HEADER)
    assert first == f"1,64,0,{float(rows[0][3]):.9f},{float(rows[0][4]):.9f},{END}000,,,,,0.000000000"
    assert second.endswith(f"{END}000,0.010000000,0.020000000,0.030000000,0.004000000,0.250000000")
    assert csv_of(read_raw_run(run).ranks[1].steps).splitlines()[1].endswith(",nan,,,,,0.000000000")
