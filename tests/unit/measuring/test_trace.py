"""Exposed communication in a trace of torch.profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.assembly.assemble import exposed_comm_fraction


def event(name: str, begin: float, end: float, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": begin, "dur": end - begin}


STEPS = [event("ProfilerStep#21", 100, 200, "user_annotation"), event("ProfilerStep#22", 200, 300, "user_annotation")]
OUTSIDE = event("gloo:all_reduce", 0, 90, "user_annotation")
GLOO = [event("gloo:all_gather", 150, 220, "user_annotation"), event("gloo:all_gather", 160, 230, "user_annotation")]
OPERATORS = [event("aten::mm", 100, 160), event("aten::add", 110, 120), event("c10d::wait", 160, 230)]
NCCL = [event("ncclDevKernel_AllGather_RING_LL", 150, 250, "kernel")]
KERNELS = [event("gemm", 120, 180, "kernel"), event("elementwise", 200, 220, "kernel"), event("aten::mm", 100, 300)]
EVENTS = {
    "Gloo, two threads": ([*STEPS, *GLOO, *OPERATORS, OUTSIDE], 70 / 200),
    "NCCL beside kernels": ([*STEPS, *NCCL, *KERNELS, {"ph": "i", "name": "gloo:"}], 50 / 200),
    "covered": ([*STEPS, *GLOO, event("aten::mm", 100, 300)], 0.0),
    "no collective": ([*STEPS, *OPERATORS], None),
    "no step": ([*GLOO, *OPERATORS], None),
}


@pytest.mark.parametrize("name", EVENTS)
def test_collectives_that_no_computation_covers(name: str, tmp_path: Path) -> None:
    events, wanted = EVENTS[name]
    file = tmp_path / "rank0.trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    found = exposed_comm_fraction(file)
    assert found == (wanted if wanted is None else pytest.approx(wanted))
