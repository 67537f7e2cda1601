"""How the throughput is known: record, gate and report say so, and a run that showed nothing is told why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.gates.gate import judge
from ddp_ladder.records.record import Record, weakest
from make_records import make_plan_of, make_spec
from make_runs import edit, reassemble, write_run, write_steps

REGEX = r"throughput: ([0-9.]+)"


UNSEEN: dict[str, Any] = {"source": "metrics", "backend": None, "parameters": None, "ddp": None, "loader": None}
"""What a rank leaves that never imported torch."""


def with_ends(directory: RunDirectory, **values: Any) -> Record:
    for path in directory.ranks.glob("rank*.json"):
        edit(path, lambda end: end.update(values))
    return reassemble(directory)


def test_the_weakest_rank_decides() -> None:
    assert weakest(["counted", "none"]) == "counted"
    assert weakest(["counted", "metrics", "samples_per_step"]) == "metrics"
    assert weakest(["guessed", "counted"]) == "guessed"


@pytest.mark.parametrize("source", ["samples_per_step", "metrics", "guessed"])
def test_weaker_evidence_is_said_by_record_gate_and_report(tmp_path: Path, source: str) -> None:
    spec = make_spec("1x1")
    record = with_ends(write_run(tmp_path, spec), source=source)
    assert record.status == "ok"
    assert record.throughput is not None
    assert record.throughput.source == source
    verdict = judge(make_plan_of([spec]), "stage1", tmp_path)
    assert verdict.is_open
    (point,) = verdict.points
    assert "weaker evidence: " in point.note


def test_program_without_torch_is_judged_on_what_it_wrote(tmp_path: Path) -> None:
    record = with_ends(write_run(tmp_path, make_spec("1x2")), **UNSEEN)
    assert record.status == "ok", record.failure
    names = [check.kind for check in record.checks]
    assert "evidence" in names
    assert "equal parameters" not in names


def test_throughput_read_from_the_log(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("1x2").replace(throughput_regex=REGEX, warmup_steps=1))
    for rank in (0, 1):
        write_steps(directory, rank, [])
    record = reassemble(directory)
    assert record.failure is not None
    assert record.failure.verdict == "throughput printed"
    assert REGEX in record.failure.why
    directory.log.write_text("throughput: 1\nthroughput: 900\nthroughput: 1000\nthroughput: 1100\n")
    record = with_ends(directory, **UNSEEN)
    assert record.status == "ok", record.failure
    assert record.throughput is not None
    assert (record.throughput.samples_per_s, record.throughput.source) == (1000, "log")


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ({}, "in the process that the launcher started"),
        ({"not_measured": ["steps: torch was imported unseen"]}, "torch was imported unseen"),
    ],
)
def test_nothing_seen_is_told(tmp_path: Path, ends: dict[str, object], why: str) -> None:
    directory = write_run(tmp_path, make_spec("1x2"))
    for rank in (0, 1):
        write_steps(directory, rank, [])
    record = with_ends(directory, parameters=None, source="none", **ends)
    assert record.failure is not None
    assert record.failure.verdict == "no training step was seen"
    assert record.failure.why.endswith(why)
    assert 'workload.directory: "{run_dir}"' in record.failure.next  # it may have gone on from a checkpoint
