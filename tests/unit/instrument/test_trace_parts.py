"""The parts of profiled steps, from the events of a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_ladder_instrument.trace_parts import NoSteps, align_steps, minus, summary, union

CAPTURED = Path(__file__).parent / "captured" / "a100_ddp_step.json.gz"


def event(kind: str, name: str, begin: float, end: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": begin, "dur": end - begin, "tid": thread}


def step(number: int, begin: float, end: float) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", begin, end)


def parts_us(events: list[dict[str, Any]]) -> dict[str, float]:
    return {part.removesuffix("_s"): round(1e6 * s, 6) for part, s in summary(events)["parts_s"].items()}


def test_parts_of_constructed_events_of_a_gpu() -> None:
    events = [
        step(1, 0, 50),
        step(2, 50, 100),
        event("user_annotation", "DistributedDataParallel.forward", 0, 100),  # it is Python too
        event("cpu_op", "aten::mm", 5, 12),
        event("cuda_runtime", "cudaLaunchKernel", 8, 10),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 8, 20, 7),
        event("kernel", "ampere_sgemm_128x64_nn", 10, 40, 7),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30, 60, 9),
        event("gpu_user_annotation", "nccl:all_reduce", 30, 60, 9),
        event("gpu_memset", "Memset (Device)", 55, 65, 7),
        event("cpu_op", "c10d::allreduce_", 62, 70),
        event("kernel", "of_the_next_step", 95, 120, 7),
    ]
    expected = {"kernels": 35.0, "communication": 20.0, "copies": 2.0 + 5.0, "gaps": 3.0 + 5.0, "python": 30.0}
    assert parts_us(events) == expected
    found = summary(events)
    assert found["communication_total_s"] == pytest.approx(30e-6)
    assert found["steps_s"] == pytest.approx([50e-6, 50e-6])
    longest = [(each["name"][:5], each["communication"]) for each in found["longest"][:2]]
    assert longest == [("amper", False), ("ncclD", True)]


def test_parts_of_constructed_events_of_a_cpu() -> None:
    events = [
        step(1, 0, 100),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10),
        event("cpu_op", "aten::linear", 10, 40),
        event("cpu_op", "aten::copy_", 20, 25),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 40, 60),
        event("cpu_op", "AddmmBackward0", 45, 55),
        event("user_annotation", "gloo:all_reduce", 50, 80, 2),
        event("cpu_op", "c10d::allreduce_", 50, 52, 2),
    ]
    expected = {"kernels": 25.0 + 10.0, "communication": 25.0, "copies": 5.0, "gaps": 5.0, "python": 30.0}
    assert parts_us(events) == expected
    longest = summary(events)["longest"]
    own = {each["name"]: each["time_s"] for each in longest}
    assert own["aten::linear"] == pytest.approx(25e-6)  # without the copy inside it
    assert [each["name"] for each in longest if each["communication"]] == ["c10d::allreduce_"]


def test_a_captured_step_of_two_a100s_is_divided_as_on_a_grid_of_microseconds() -> None:
    events = json.loads(gzip.decompress(CAPTURED.read_bytes()))["traceEvents"]
    found = summary(events)
    begin, length = 100_000.0, 25_000
    grid = np.full(length * 10, "python", dtype="<U13")  # tenths of a microsecond
    kinds = {
        "gaps": lambda e: e["cat"] in ("cpu_op", "cuda_runtime"),
        "copies": lambda e: e["cat"] in ("gpu_memcpy", "gpu_memset"),
        "communication": lambda e: e["cat"] == "kernel" and e["name"].startswith("ncclKernel_"),
        "kernels": lambda e: e["cat"] == "kernel" and not e["name"].startswith("ncclKernel_"),
    }
    for part, is_of in kinds.items():  # the last one that covers a place wins
        for each in filter(is_of, events):
            first, last = (round(10 * (edge - begin)) for edge in (each["ts"], each["ts"] + each["dur"]))
            grid[max(0, first) : max(0, last)] = part
    for part, seconds in found["parts_s"].items():
        assert seconds == pytest.approx(1e-7 * np.count_nonzero(grid == part.removesuffix("_s")), abs=2e-5), part
    assert sum(found["parts_s"].values()) == pytest.approx(0.025)
    assert found["parts_s"]["communication_s"] > 0.006  # NCCL's kernels, which the launches of kernels do not hide
    assert found["longest"][0]["name"].startswith("ncclKernel_AllReduce_RING_LL_Sum_float")


def test_a_trace_without_steps() -> None:
    with pytest.raises(NoSteps):
        summary([event("kernel", "sgemm", 0, 1)])


def test_steps_do_not_overlap_the_optimizer_in_whose_hook_they_end() -> None:
    events = [
        step(1, 0, 49),
        step(2, 49, 100),
        event("user_annotation", "Optimizer.step#SGD.step", 40, 50),
        event("user_annotation", "Optimizer.step#SGD.step", 90, 100),
    ]
    align_steps(events)
    assert [(each["ts"], each["dur"]) for each in events[:2]] == [(0, 50), (50, 50)]


def test_spans() -> None:
    assert union([(3, 4), (0, 1), (1, 2), (5, 5)]) == [(0, 2), (3, 4)]
    assert minus([(0, 10), (12, 14)], [(1, 2), (4, 13)]) == [(0, 1), (2, 4), (13, 14)]
    assert minus([(0, 1)], []) == [(0, 1)]
