"""The figures of a long run, whose steps are in blocks, are those of all its steps."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from ddp_ladder.assembly.assemble import record_of
from ddp_ladder.assembly.run_records import write_tables
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.measuring.owners import in_equal_rows
from ddp_ladder.records import raw_files
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import Record
from ddp_ladder.records.steps import csv_of
from ddp_ladder_instrument.contract import HEADER, SINGLE_ROWS
from ddp_ladder_instrument.table import DdpTimes, StepTable
from make_records import make_spec
from make_runs import STARTED_AT_S, edit_rank, write_content, write_run

STEPS, STEP_S, PAUSE_S = 50_000, 0.01, 0.4
EPOCH = 5_000
TOLERANCE = 0.002  # of medians: those of the means of blocks


def columns(rank: int, steps: int = STEPS) -> list[np.ndarray]:
    """Return the columns of a rank: noise, slow steps at first and later on, and an epoch's begin now and then."""
    random = np.random.default_rng(rank)
    times_s = STEP_S * random.lognormal(0.0, 0.05, steps)
    times_s[:300] *= 3
    times_s[steps // 2 :: 97] *= 4
    idle_s = np.where(np.arange(steps) % EPOCH == 0, PAUSE_S, 0.0)
    ends_s = STARTED_AT_S + 10 + np.cumsum(times_s + idle_s)
    samples = np.where(np.arange(steps) % EPOCH == EPOCH - 1, 17, 64)
    zeros = np.zeros(steps)
    return [samples, zeros, times_s, 0.1 * times_s, ends_s, 0.05 * times_s]


def as_blocks(of_rank: list[np.ndarray], ddp: bool) -> np.ndarray:
    table = StepTable()
    for samples, padding, *times_s in zip(*(column.tolist() for column in of_rank), strict=True):
        table.add(int(samples), int(padding), *times_s, 1, 1, 1, times_s[2])
    if ddp:
        table.ddp = {row: DdpTimes(0.003, 0.004, 0.003, 0.002) for row in range(0, SINGLE_ROWS, 4)}
    return np.array(table.columns())


def as_steps(of_rank: list[np.ndarray], ddp: bool) -> np.ndarray:
    matrix = np.full((len(HEADER), len(of_rank[0])), np.nan)
    matrix[0] = np.arange(1, len(of_rank[0]) + 1)
    matrix[1:6], matrix[-1] = of_rank[:5], of_rank[5]
    if ddp:
        matrix[6:10, 0:SINGLE_ROWS:4] = np.array([[0.003, 0.004, 0.003, 0.002]]).T
    return matrix


def record(run: RunDirectory, matrices: list[np.ndarray], count: int = STEPS) -> Record:
    for rank, matrix in enumerate(matrices):
        write_content(run, rank, matrix.astype("<f8").tobytes(), count)
        end_s = float(matrix[5][-1]) + 0.3
        phases = {"epoch_steps": [*range(1, STEPS, EPOCH)], "validations_s": [], "saves_s": []}
        edit_rank(run, rank, ended_at_s=end_s, training_s=end_s - float(matrix[5][0]), phases=phases)
    return record_of(read_raw_run(run))


@pytest.mark.parametrize("ddp", [False, True])
def test_blocks_have_the_figures_of_their_steps(tmp_path: Path, ddp: bool) -> None:
    run = write_run(tmp_path, make_spec("1x2", warmup_steps=20))
    ranks = [columns(rank) for rank in (0, 1)]
    full = record(run, [as_steps(each, ddp) for each in ranks])
    found = record(run, [as_blocks(each, ddp) for each in ranks])
    assert len(read_raw_run(run).ranks[0].steps.size) < 20_480
    assert (found.status, found.failure) == (full.status, full.failure)
    for ours, true in ((found.throughput, full.throughput), (found.timing, full.timing)):
        assert ours
        assert true
    now, then = found.throughput, full.throughput
    assert now
    assert then
    assert now.statistic == then.statistic
    assert now.samples_per_s_end_to_end == pytest.approx(then.samples_per_s_end_to_end, rel=1e-12)
    assert now.samples_per_s == pytest.approx(then.samples_per_s, rel=TOLERANCE)
    ours, true = found.timing, full.timing
    assert ours
    assert true
    assert ours.warmup_steps == pytest.approx(true.warmup_steps, abs=8)
    assert ours.measured_steps + ours.warmup_steps == true.measured_steps + true.warmup_steps == STEPS
    assert ours.step_time_s == pytest.approx(true.step_time_s, rel=TOLERANCE)
    assert ours.data_wait_fraction == pytest.approx(true.data_wait_fraction, rel=1e-9)
    for one, other in zip(found.ranks, full.ranks, strict=True):
        assert (one.steps, one.samples) == (other.steps, other.samples) == (STEPS, other.samples)
    assert found.fingerprint == full.fingerprint
    assert found.owners_s["between passes"] == pytest.approx(9 * PAUSE_S, abs=0.01)
    assert found.owners_s == pytest.approx(full.owners_s, rel=0.05, abs=0.05)
    assert [remark.kind for remark in found.remarks] == [remark.kind for remark in full.remarks]
    assert found.step
    assert full.step
    assert found.step.timed_steps == (full.step.timed_steps if ddp else 0)
    assert found.step.step_s == pytest.approx(full.step.step_s, rel=0.03)


@pytest.mark.parametrize("joins", [False, True])
def test_ranks_that_made_different_numbers_of_steps_have_the_same_blocks(tmp_path: Path, joins: bool) -> None:
    """One has blocks of two, the other one of four; the last one is not full."""
    run = write_run(tmp_path, make_spec("1x2", warmup_steps=20))
    for rank, count in enumerate((30_001, 40_000)):
        matrix = as_blocks(columns(rank, count), ddp=False)
        write_content(run, rank, matrix.astype("<f8").tobytes(), count)
        edit_rank(run, rank, joins_uneven=joins)
    raw = read_raw_run(run)
    assert [files.steps.block for files in raw.ranks.values()] == [2, 4]
    (fewer, more) = (files.steps for files in in_equal_rows(raw).ranks.values())
    rows = len(fewer.size) - 1
    assert fewer.size[:rows].tolist() == more.size[:rows].tolist()
    assert (fewer.count, fewer.samples.sum()) == (30_001, raw.ranks[0].steps.samples.sum())
    assert csv_of(fewer).splitlines()[-1].startswith("30001,")
    found = record_of(raw)
    if joins:
        assert [rank.steps for rank in found.ranks] == [30_000, 30_000]
        assert "the first 30000 steps of every rank" in " ".join(remark.measured for remark in found.remarks)
    else:
        assert found.failure
        assert found.failure.verdict == "the ranks made different numbers of steps"


@pytest.mark.parametrize("ddp", [False, True])
def test_many_ranks_are_held_in_fewer_rows_with_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ddp: bool
) -> None:
    """Rank by rank: the memory is that of the rows that are held, not of the files. One rank made fewer steps."""
    ranks, steps, most = 12, 20_000, 2**14
    run = write_run(tmp_path, make_spec(f"1x{ranks}", warmup_steps=20))
    matrices = [as_steps(columns(rank, steps), ddp) for rank in range(ranks)]
    full = record(run, matrices, steps)
    monkeypatch.setattr(raw_files, "MOST_ROWS_OF_ALL", most)
    tracemalloc.start()
    raw = read_raw_run(run)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < sum(file.stat().st_size for file in run.ranks.glob("*.steps")) / 2
    rows = [files.steps.size.tolist() for files in raw.ranks.values()]
    assert rows == [rows[0]] * ranks
    assert len(rows[0]) <= 1.25 * most / ranks
    assert rows[0][:10] == [1] * 10
    found = record_of(raw)
    assert (found.status, found.failure, found.fingerprint) == (full.status, full.failure, full.fingerprint)
    assert [(each.steps, each.samples) for each in found.ranks] == [(each.steps, each.samples) for each in full.ranks]
    assert found.throughput
    assert full.throughput
    assert found.throughput.samples_per_s_total == pytest.approx(full.throughput.samples_per_s_total, rel=0.005)
    assert found.throughput.samples_per_s == pytest.approx(full.throughput.samples_per_s, rel=0.03)
    assert found.throughput.samples_per_s_end_to_end == pytest.approx(full.throughput.samples_per_s_end_to_end)
    assert found.step
    assert full.step
    assert bool(found.step.timed_steps) == ddp
    assert found.step.step_s == pytest.approx(full.step.step_s, rel=0.05)
    assert found.owners_s == pytest.approx(full.owners_s, rel=0.1, abs=0.2)
    write_tables(raw)
    assert len((run.ranks / f"rank{ranks - 1}.csv").read_text().splitlines()) == 1 + steps
    short = as_steps(columns(0, 500), ddp)
    record(run, [short, *matrices[1:]], steps)
    write_content(run, 0, short.astype("<f8").tobytes(), 500)
    first, second = (read_raw_run(run).ranks[k].steps.size.tolist() for k in (0, 1))
    assert (sum(first), first[:-1]) == (500, second[: len(first) - 1])
