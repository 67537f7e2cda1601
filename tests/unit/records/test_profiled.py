"""The profile of a run: whose table and trace are kept, what is said if one is missing, and the hashes of before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory, canonical_sha256, write_json
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.profiled import drop_other_traces
from make_records import make_spec
from make_runs import edit, write_run

TOOK_S = 2.5
PARTS = {"kernels_s": 0.03, "communication_s": 0.02, "copies_s": 0.01, "gaps_s": 0.015, "python_s": 0.025}
TABLE = {
    "on_cuda": False,
    "steps_s": [0.06, 0.04],
    "parts_s": PARTS,
    "communication_total_s": 0.03,
    "longest": [{"name": "aten::mm", "calls": 4, "time_s": 0.02}],
}


def profiled_run(results: Path, exposed_comm_s: list[float]) -> RunDirectory:
    """Write a run of four ranks with profiles and traces; the ranks wait so long for their gradients."""
    spec = make_spec("1x4", max_steps=60, profile_steps=2)
    directory = write_run(results, spec, wobble=0.001)
    edit(directory.run, lambda run: run["measure"].update(profile_steps=2))
    for rank, wait_s in enumerate(exposed_comm_s):
        path = directory.ranks / f"rank{rank}.json"
        edit(path, lambda end: end.update(ended_by="max_steps"))
        edit(path, lambda end, wait_s=wait_s: end["ddp"].update(exposed_comm_s=wait_s))
        directory.trace(rank).write_bytes(b"trace")
        common = {key: json.loads(path.read_text())[key] for key in ("schema_version", "spec_hash", "job", "rank")}
        table = {**TABLE, "trace": {"file": directory.trace(rank).name, "bytes": 5}}
        write_json(directory.profile(rank), {**common, "problem": None, "took_s": TOOK_S, "table": table})
    return directory


def test_rank_0_and_the_slowest_rank_have_a_profile_and_keep_their_traces(tmp_path: Path) -> None:
    directory = profiled_run(tmp_path, [0.004, 0.004, 0.001, 0.004])  # the slowest waits the least
    record = assemble(directory)
    assert record.status == "ok", record.failure
    assert record.profile is not None
    assert [(each.rank, each.slowest) for each in record.profile.ranks] == [(0, False), (2, True)]
    assert record.profile.ranks[1].table.parts_s.model_dump() == PARTS
    assert record.timing
    ended = json.loads(directory.ended.read_text())
    assert record.timing.wall_s == pytest.approx(ended["ended_at_s"] - ended["started_at_s"] - TOOK_S)
    drop_other_traces(directory, record)
    assert sorted(path.name for path in directory.ranks.glob("*.gz")) == ["rank0.trace.json.gz", "rank2.trace.json.gz"]
    assert assemble(directory) == record


def test_one_trace_is_kept_if_rank_0_is_the_slowest(tmp_path: Path) -> None:
    directory = profiled_run(tmp_path, [0.001, 0.004, 0.004, 0.004])
    record = assemble(directory)
    assert record.profile
    assert [(each.rank, each.slowest) for each in record.profile.ranks] == [(0, True)]
    drop_other_traces(directory, record)
    assert [path.name for path in directory.ranks.glob("*.gz")] == ["rank0.trace.json.gz"]


def missing(directory: RunDirectory) -> None:
    directory.profile(0).unlink()


def damaged(directory: RunDirectory) -> None:
    directory.profile(0).write_text("{")


def of_another_run(directory: RunDirectory) -> None:
    edit(directory.profile(0), lambda file: file.update(spec_hash="0" * 64))


def without_a_table(directory: RunDirectory) -> None:
    edit(directory.profile(0), lambda file: file.update(table=None, problem="the script ended first"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (missing, "rank 0 left no table of its profiled steps"),
        (damaged, "rank 0: "),
        (of_another_run, "rank 0: rank0.profile.json is of another run or rank"),
        (without_a_table, "rank 0: the script ended first"),
    ],
)
def test_a_missing_profile_is_a_remark_on_a_good_run(tmp_path: Path, spoil: Any, said: str) -> None:
    directory = profiled_run(tmp_path, [0.004, 0.004, 0.001, 0.004])
    figures = assemble(directory).throughput
    spoil(directory)
    record = assemble(directory)
    assert (record.status, record.throughput) == ("ok", figures)
    (remark,) = [remark for remark in record.remarks if remark.name == "profile"]
    assert remark.what.startswith(f"not profiled: {said}")
    assert record.profile
    assert [each.rank for each in record.profile.ranks] == [2]


def test_a_spec_without_a_profile_has_the_hash_that_it_had_before_there_were_any() -> None:
    spec = make_spec()
    before = {name: value for name, value in spec if name != "profile_steps"}
    assert spec.hash == canonical_sha256(json.loads(json.dumps(before, default=dict)))
    assert RunSpec.from_json(spec.model_dump()) == spec
    profiled = spec.replace(profile_steps=3)
    assert profiled.hash != spec.hash
    assert RunSpec.from_json(profiled.model_dump()) == profiled
