"""What a run used, in its record: from its files, and what is said where they are missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.records.record import read_record
from make_records import make_spec
from make_runs import edit_part, reassemble, write_run
from make_sampled_runs import write_sampled_run

FULL = 11e9  # of 12.5e9 bytes per second


def test_a_run_that_was_not_monitored_has_no_usage(tmp_path: Path) -> None:
    assert assemble(write_run(tmp_path, make_spec("1x1"))).usage is None


def test_a_calm_run(tmp_path: Path) -> None:
    run = write_sampled_run(tmp_path, make_spec("2x1"))
    record = assemble(run)
    used = record.usage
    assert (record.status, used.findings, used.notes) == ("ok", (), ())
    assert [node.node for node in used.nodes] == ["node0", "node1"]
    assert used.nodes[0].samples == 24  # of 50 s
    assert used.cpu_fraction == 0.35
    assert read_record(run.record) == record == assemble(run)


def test_gpus_of_the_ranks(tmp_path: Path) -> None:
    run = write_sampled_run(tmp_path, make_spec("2x2", device="cuda"), gpu_count=4)
    for rank in range(4):  # torch's UUID: the ranks of node 1 are on its GPUs 2 and 3
        edit_part(run, rank, "device", id=str((0, 1, 6, 7)[rank]))
    used = reassemble(run).usage
    assert [[gpu.rank for gpu in node.gpus] for node in used.nodes] == [[0, 1, None, None], [None, None, 2, 3]]
    assert used.gpu_busy_fraction == 0.97
    assert used.gpu_power_w == 340
    assert used.gpu_energy_j == pytest.approx(4 * 50 * 340, rel=0.02)  # the integral of the power


def test_stand_in_gpus_whose_uuids_no_rank_has_are_not_those_of_the_ranks(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES of the script's own led the ranks to other GPUs than the idle ones that were sampled."""
    run = write_sampled_run(tmp_path, make_spec("1x2", device="cuda"), gpu_count=2, gpu0_busy_fraction=0.0)
    for rank in range(2):
        edit_part(run, rank, "device", id=f"of-another-{rank}")
    used = reassemble(run).usage
    assert ([gpu.rank for gpu in used.nodes[0].gpus], used.gpus, used.findings) == ([None, None], (), ())
    assert used.notes == ("node0: ranks trained on GPUs that were not sampled",)


def test_too_few_samples_show_only_a_stand_in_gpu_that_is_throttled_in_each_of_them(tmp_path: Path) -> None:
    changes = {"gpu0_throttle_reasons": "thermal", "network_sent_bytes_per_s": FULL}
    run = write_sampled_run(tmp_path, make_spec("1x1", device="cuda"), gpu_count=1, seconds=10.0, **changes)
    (found,) = assemble(run).usage.findings
    assert found.in_words.startswith("GPU 0 of node0: throttled in 100 % of the few samples (thermal")


def test_damaged_samples_are_a_note_and_no_failure(tmp_path: Path) -> None:
    run = write_sampled_run(tmp_path, make_spec("2x1"))
    run.samples(1).write_text("")
    record = assemble(run)
    assert record.status == "ok"
    assert record.usage.notes == ("node1: node1.csv is damaged: it has no column time_s",)
