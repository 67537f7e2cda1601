from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ddp_ladder.assembly.assemble import assemble, not_run
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.measuring.fingerprint import OWN_DIRECTORY_ADVICE
from ddp_ladder.records.record import Failure, Fingerprint
from make_records import make_spec
from make_runs import (
    STEPS,
    edit_rank,
    failure_of,
    read_steps,
    reassemble,
    write_run,
    write_steps,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, make_spec("1x2"), samples_per_s=1600.0)


def test_a_good_run(run: RunDirectory) -> None:
    record = assemble(run)
    assert (record.status, record.failure) == ("ok", None)
    assert (record.spec, record.spec_hash) == (make_spec("1x2"), make_spec("1x2").hash)
    assert record.job
    assert (record.job.id, record.job.attempt) == ("local-1x2", 1)
    assert (record.world.size, record.world.backend, record.world.hosts) == (2, "gloo", ("node0",))
    assert record.throughput
    assert record.throughput.samples_per_s == pytest.approx(1600, rel=0.01)
    assert record.timing
    assert record.timing.measured_steps == STEPS - 10
    assert record.timing.wall_s == pytest.approx(STEPS * 128 / 1600 + 5)
    assert record.timing.startup_s == 4.2
    assert record.timing.exposed_comm_fraction == pytest.approx(0.001 / 0.08, rel=0.02)
    assert [rank.ddp and (rank.ddp.samples, rank.ddp.exposed_comm_s) for rank in record.ranks] == [(7, 0.001)] * 2
    rank = record.ranks[1]
    assert (rank.rank, rank.steps, rank.samples, rank.padding_samples) == (1, 60, 3840, 0)
    assert rank.data_wait_fraction == pytest.approx(0.02, rel=1e-3)
    assert record.fingerprint.batch_per_gpu == 64
    assert [check.kind for check in record.checks] == [
        "complete", "exit codes", "world size", "placement", "ranks agree",
        "distinct devices", "disjoint data", "finite", "equal parameters", "equal steps",
        "order of samples", "backend", "enough steps", "samples seen",
    ]  # fmt: skip
    assert all(check.ok for check in record.checks)


def test_the_warm_up_lasts_until_the_steps_are_steady_on_every_rank(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2"), samples_per_s=1600.0, steps=200, wobble=0)
    rows = read_steps(run, 1)
    for index, row in enumerate(rows[:40]):
        row[3] = f"{0.08 * (3 - index / 40 + index // 5 % 2):.9f}"
    write_steps(run, 1, rows)
    record = assemble(run)
    assert record.timing
    assert (record.timing.warmup_steps, record.timing.warmup_stable, record.timing.measured_steps) == (40, True, 160)
    assert record.throughput
    assert record.throughput.samples_per_s_total == pytest.approx(1600)
    assert record.throughput.samples_per_s_end_to_end == pytest.approx(2 * 199 * 64 / 16.4)
    assert record.ranks[1].step_time_s == pytest.approx(0.08)


def test_padding_is_counted_and_is_not_throughput(run: RunDirectory) -> None:
    for rank in (0, 1):
        write_steps(run, rank, [[row[0], "48", "16", *row[3:]] for row in read_steps(run, rank)])
    record = assemble(run)
    assert record.throughput
    assert record.throughput.samples_per_s == pytest.approx(1200, rel=0.01)
    assert (record.ranks[0].samples, record.ranks[0].padding_samples) == (48 * 60, 16 * 60)


OWN_END = "train longer (more epochs or data in workload.args), lower workload.batch_per_gpu"


@pytest.mark.parametrize(
    ("made", "ended_by", "advice"),
    [
        (25, "script", f"{OWN_END}, or lower measure.min_steps to 15 or less"),
        (25, "max_seconds", "raise measure.max_seconds, or lower measure.min_steps to 15 or less"),
        (8, "script", f"{OWN_END}, or lower measure.warmup_steps and measure.min_steps to 8 or less together"),
    ],
)
def test_too_few_steps_name_the_key(tmp_path: Path, made: int, ended_by: str, advice: str) -> None:
    run = write_run(tmp_path, make_spec("1x2", max_seconds=9.0))
    for k in (0, 1):
        write_steps(run, k, read_steps(run, k)[:made])
        edit_rank(run, k, ended_by=ended_by)
    assert failure_of(run) == Failure(
        kind="too few steps",
        verdict="enough steps",
        why=f"measured {made} optimizer steps, wanted at least 40 on every rank (measure.warmup_steps + "
        "measure.min_steps), equally many",
        next=f"{advice} in config.yaml, and start snakemake again\n{OWN_DIRECTORY_ADVICE}",
    )


def test_a_failed_run_keeps_the_figures_that_it_has(run: RunDirectory) -> None:
    edit_rank(run, 1, exit_code=3)
    record = assemble(run)
    assert record.status == "failed"
    assert record.throughput
    (run.ranks / "rank1.json").unlink()
    record = assemble(run)
    assert (record.throughput, record.timing) == (None, None)
    assert [rank.rank for rank in record.ranks] == [0]


def test_nothing_but_run_json(run: RunDirectory) -> None:
    for path in (run.ranks, run.nodes):
        shutil.rmtree(path)
    run.ended.unlink()
    record = reassemble(run)
    assert record.failure
    assert record.failure.verdict == "the job was killed"
    assert record.fingerprint == Fingerprint()
    assert not any(check.ok for check in record.checks)


def test_a_run_left_out_is_accounted_for() -> None:
    record = not_run(make_spec("1x2"), "variant stopped", "ring failed", "see it")
    assert (record.status, record.job) == ("failed", None)
    assert record.failure == Failure(kind="variant stopped", verdict="not run", why="ring failed", next="see it")
    assert json.loads(json.dumps(record.model_dump()))["spec_hash"] == make_spec("1x2").hash
