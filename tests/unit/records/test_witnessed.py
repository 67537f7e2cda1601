"""Runs whose script a witness run has followed: their samples are those that it saw, or their count is doubtful."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.common.files import RunDirectory
from make_records import make_spec
from make_runs import STEPS, edit, edit_rank, write_run

TRAIN, OTHER = (["/work/train.py:31", "0a1b2c3d"], ["/work/train.py:48", "4e5f6071"])
DRAWN = 64 * STEPS
LEAVES_OUT = "in 20 steps the witness saw 800 samples that were trained on, where the rules count 1,280"


def seen(lines: list[str], samples: int, trained: int, counted: int) -> dict[str, Any]:
    """Return what a witness saw of a place that drew batches of 64 in 20 steps."""
    of_passes = {"passes": 1, "passes_that_train": int(trained > 0), "batches": 20, "trained": 20 * (trained > 0)}
    counts = {"samples": samples, "samples_trained": trained, "counted": counted, "targets": 0}
    return {"lines": lines, **of_passes, **counts, "sizes": {"64": 20}, "batches_of_a_step": {"1": 20}}


def place(lines: list[str], samples: int, trained: int) -> dict[str, Any]:
    return {"lines": lines, "batches": STEPS, "samples": samples, "trained": trained}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of two ranks; each draws a batch of 64 for each step, and the rules doubt their own count."""
    directory = write_run(tmp_path, make_spec("1x2"))
    doubts = {"drawn": 60, "untrained": 0, "unclear": 60}
    for rank in (0, 1):
        edit_rank(directory, rank, places=[place(TRAIN, DRAWN, DRAWN)], batches=doubts)
    return directory


def told(run: RunDirectory, status: str, *places: dict[str, Any], why: str = "") -> tuple[float, list[tuple[str, str]]]:
    """Return samples/s and the remarks on them of a run with this witness."""
    edit(run.run, lambda data: data.update(witness={"status": status, "why": why, "places": places}))
    record = assemble(run)
    assert record.throughput is not None
    return record.throughput.samples_per_s, [(remark.kind, remark.measured) for remark in record.remarks]


def test_what_the_witness_saw_settles_what_the_rules_doubt(run: RunDirectory) -> None:
    rate, remarks = told(run, "not followed", why="out of memory")
    assert [name for name, _ in remarks] == ["doubtful count"]
    same, remarks = told(run, "witnessed", seen(TRAIN, 1280, 1280, 1280))
    assert (same, remarks) == (rate, [])


def test_where_it_saw_others_its_share_of_each_place_is_taken(run: RunDirectory) -> None:
    """Of what the first place draws, 800 of 1,280 samples are trained on; the second never trains."""
    rate, _ = told(run, "not followed")
    for rank in (0, 1):  # a run that draws more often at the second place than the witness did
        edit_rank(run, rank, places=[place(TRAIN, DRAWN, DRAWN), place(OTHER, 9 * DRAWN, 0)])
    places = seen(TRAIN, 1280, 800, 1280), seen(OTHER, 1280, 0, 0)
    found, remarks = told(run, "differs", *places, why=LEAVES_OUT)
    assert found == pytest.approx(rate * 800 / 1280, rel=1e-3)
    assert remarks == [("witness", f"the samples are those that the witness run saw: {LEAVES_OUT}")]
    record = assemble(run)
    assert [rank.samples for rank in record.ranks] == [DRAWN * 800 // 1280] * 2
    assert record.fingerprint.batch_per_gpu == 40


@pytest.mark.parametrize(
    ("status", "places", "why", "doubt"),
    [
        (
            "witnessed",
            [seen(OTHER, 1280, 1280, 1280)],
            "",
            "the witness run never came to /work/train.py:31, where batches were drawn",
        ),
        (
            "witnessed",
            [seen(TRAIN, 1280, 640, 640)],
            "",
            "100 % of the samples that /work/train.py:31 draws are counted on rank 0, and 50 % in the witness run",
        ),
        ("doubtful", [seen(TRAIN, 1280, 640, 1280)], "batches again (3)", "the witness run saw batches again (3)"),
    ],
    ids=["a place that it never met", "another share", "its own doubt"],
)
def test_where_it_may_not_hold_the_count_is_doubtful(
    run: RunDirectory, status: str, places: list[dict[str, Any]], why: str, doubt: str
) -> None:
    rate, _ = told(run, "not followed")
    same, remarks = told(run, status, *places, why=why)
    assert same == rate
    assert remarks == [("doubtful count", f"the number of samples is doubtful: {doubt}")]


def test_a_number_in_the_settings_is_compared_with_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2", samples_per_step=64))
    for rank in (0, 1):
        edit_rank(run, rank, source="samples_per_step", places=[place(TRAIN, DRAWN, DRAWN)])
    _, remarks = told(run, "differs", seen(TRAIN, 1280, 800, 1280), why=LEAVES_OUT)
    assert remarks == [
        (
            "doubtful count",
            f"the number of samples is doubtful: they are what workload.samples_per_step says, and {LEAVES_OUT}",
        )
    ]


def test_flops_are_those_of_the_witness_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x1", count_flops=True))
    counted = {
        "forward": 8.0,
        "backward": 16.0,
        "recomputed": 0.0,
        "precisions": {"fp32": 1.0},
        "steps": 20,
        "spread": 0.3,
    }
    witness: dict[str, Any] = {"status": "witnessed", "places": [], "flops": counted}
    edit(run.run, lambda data: data.update(witness=witness))
    record = assemble(run)
    assert record.flops is not None
    assert record.flops.of_model == 24.0
    assert [remark.measured for remark in record.remarks if remark.kind == "flops"] == [
        "the FLOPs per sample of the witness run's batches differ by 30 %: TFLOP/s is as uncertain"
    ]
    edit(run.run, lambda data: data.update(witness={"status": "off", "why": "measure.witness_steps is off"}))
    why = assemble(run).flops
    assert why is not None
    assert why.why == "they are counted in a witness run: measure.witness_steps is off"
