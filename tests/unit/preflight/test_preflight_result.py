"""The result of a preflight from raw files as its processes write them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.result import PreflightResult, by_scale, outcome, read_result, result_of
from ddp_ladder.settings.keys import Preflight
from make_preflight import BYTES_PER_S, LATENCY_S, write_preflight, write_result
from make_records import make_plan_of, make_specs
from result_table import long_text

CPU = {"cpus_per_node": 4, "threads_per_rank": 2}
JOB = replace(make_plan_of(make_specs(["2x2"], repeats=1, **CPU)).jobs[0], cpus=4, preflight=Preflight(enabled=True))


def result(tmp_path: Path, job: ScaleJob = JOB, **ranks: Mapping[str, Any] | None) -> PreflightResult:
    return read_result(write_preflight(tmp_path, job, **ranks))


def test_healthy_nodes(tmp_path: Path) -> None:
    found = result(tmp_path)
    assert [finding for finding in found.findings if finding.severity == "error"] == []
    assert [row.bytes for row in found.sizes][::8] == [4096, 256 * 1024**2]
    last = found.sizes[-1]
    assert last.busbw_gb_per_s == pytest.approx(1.5 * 5, rel=0.01)  # as nccl-tests: four ranks
    assert (found.alpha_s, found.beta_s_per_byte) == pytest.approx((LATENCY_S, 1 / BYTES_PER_S))
    assert [row.node for row in found.nodes] == ["node1", "node2"]
    assert "passed" in outcome(found)
    assert re.search(r"268435456 +0.0537 +7.50", long_text(found))


def _pair(nodes: list[int], time_s: float | None, alone: bool = False) -> dict[str, Any]:
    return {"nodes": nodes, "bytes": 4 * 10**9, "time_s": time_s, "alone": alone}


def test_each_pair_of_nodes_is_as_fast_as_its_slowest_rank_and_untested_ones_are_named(tmp_path: Path) -> None:
    job = replace(
        make_plan_of(make_specs(["3x1"], repeats=1, **CPU)).jobs[0], cpus=4, preflight=Preflight(enabled=True)
    )
    first, second, third = [0, 1], [1, 2], [0, 2]
    found = result(
        tmp_path,
        job,
        rank0={"pairs": [_pair(first, 1.0), _pair(third, None), _pair(first, 0.5, alone=True)]},
        rank1={"pairs": [_pair(first, 2.0), _pair(second, 1.0), _pair(first, 0.8, alone=True)]},
        rank2={"pairs": [_pair(second, 1.0), _pair(third, None)]},
    )
    assert [(row.nodes, row.time_s, row.busbw_gb_per_s, row.alone_busbw_gb_per_s) for row in found.pairs] == [
        (("node1", "node2"), 2.0, 2.0, 5.0),
        (("node1", "node3"), None, None, None),
        (("node2", "node3"), 1.0, 4.0, None),
    ]
    assert found.status == "warned"
    assert "2 of 3 pairs of neighbouring nodes tested" in outcome(found)
    assert "1 of 3 pairs of neighbouring nodes not tested: node1 and node3" in long_text(found)
    stopped = result(tmp_path, job, rank0={"doing": "all-reducing"}, rank1={"pairs": [_pair(first, None)]})
    assert not any("not tested" in finding.measured for finding in stopped.findings)  # a consequence


PAIR = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534]"
MISMATCHED = "Detected mismatch between collectives on ranks. Rank 3 is running collective: CollectiveFingerPrint(...)"
LATE_RANK = {"doing": "all-reducing", "step": 5, "error": "not over after 60 s"}
FAULTS: Mapping[str, tuple[Mapping[str, Mapping[str, Any] | None], str, str]] = {
    "shared device": (
        {f"rank{k}": {"device": {"kind": "cuda", "index": 0, "name": "A", "id": "GPU-0"}} for k in (0, 1)}, "node1",
        "ranks 0, 1 share one device of node1: GPU-0",
    ),
    "another torch": (
        {"rank3": {"versions": {"torch": "2.7.0", "cuda": None, "nccl": None}}}, "node2",
        "torch 2.7.0 on node2, and torch 2.8.0 on others",
    ),
    "wrong value": (
        {"rank1": {"sizes": [{"bytes": 4096, "time_s": 1e-3, "wrong": ["int64, round 1: 1 of 512"]}]}}, "node1",
        "an all-reduce of 4096 bytes returned wrong values on rank 1: int64, round 1: 1 of 512",
    ),
    "silent rank": ({"rank3": None}, "node2", "no report came from rank 3 on node2"),
    "rank that raised": (
        {"rank2": {"doing": "joining the process group", "error": "ValueError: odd\nand more", "step": 3}}, "node2",
        "rank 2 failed while joining the process group: ValueError: odd",
    ),
    "a line that any rank may print, and which names no node": (
        {"rank3": {"doing": "all-reducing", "step": 5, "error": f"RuntimeError: {MISMATCHED}"}}, "",
        "the ranks made different collective calls: ",
    ),
    "rank that was stopped": (
        {f"rank{k}": LATE_RANK | {"error": None} if k == 3 else LATE_RANK for k in range(4)}, "node2",
        "rank 3 is still all-reducing, and fell silent",
    ),
    "rank that was killed": (
        {
            "rank1": {"doing": "all-reducing", "step": 5},
            "rank2": LATE_RANK | {"error": f"RuntimeError: {PAIR} Connection closed by peer [10.0.0.1]:8133"},
        },
        "node1",
        "rank 1 is still all-reducing, and fell silent",
    ),
    "all ranks hang": (
        {f"rank{k}": LATE_RANK for k in range(4)}, "", "all ranks are still all-reducing after 60 s",
    ),
    "one rank hangs elsewhere": (
        {f"rank{k}": LATE_RANK | {"frame": "wait (a.py:8)" if k == 2 else "all_reduce (c.py:9)"} for k in range(4)},
        "node2", "rank 2 is still all-reducing in wait (a.py:8) after 60 s",
    ),
    "rank that hangs": (
        {
            f"rank{k}": LATE_RANK | {"doing": doing, "step": step}
            for k, (doing, step) in enumerate([("joining", 4), ("joining", 4), ("importing torch", 1), ("joining", 4)])
        },
        "node2",
        "rank 2 is still importing torch after 60 s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_the_first_finding(tmp_path: Path, fault: str) -> None:
    ranks, node, said = FAULTS[fault]
    found = result(tmp_path, **ranks)
    assert found.status == "failed"
    assert found.failure is not None
    assert said in found.failure.measured
    assert found.failure.place == node
    assert said in " ".join(long_text(found).replace("|", "").split())


def test_a_result_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    file = write_preflight(tmp_path, JOB)
    assert result_of(tmp_path, "2x2") == read_result(file)
    assert result_of(tmp_path, "4x2") is None
    shutil.copy(file, tmp_path / "preflight/4x2.json")
    with pytest.raises(ValueError, match="copied here"):
        result_of(tmp_path, "4x2")
    (tmp_path / "preflight/1x2.json").write_text("{}")
    found, warnings = by_scale(tmp_path, ["1x2", "2x2", "4x2"])
    assert [*found] == ["2x2"]
    assert ["snakemake preflight --config preflight_scale=1x2" in each for each in warnings] == [True, False]


@pytest.mark.parametrize(
    ("said", "place", "named"),
    [
        ("srun: error: Task launch for StepId=20.1 failed on node node2: Communication failure", "node2", ""),
        (
            "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-20T17:22:38 DUE TO NODE FAILURE ***",
            "", "one of the job's nodes (node[1-2])",
        ),
    ],
)  # fmt: skip
def test_the_node_that_slurm_names_is_named_and_else_all(tmp_path: Path, said: str, place: str, named: str) -> None:
    write_preflight(tmp_path, JOB, rank0=None, rank1=None, rank2=None, rank3=None)
    log = RunDirectory(tmp_path / "preflight/2x2").launcher_log
    log.parent.mkdir(exist_ok=True)
    log.write_text(f"{said}\nsrun: error: node1: task 0: Killed\n")
    found = write_result(tmp_path, JOB)
    assert found.failure is not None
    assert found.failure.place == place
    assert named in found.failure.measured
    assert f"slurm.exclude: {place}" in found.failure.next or not place
