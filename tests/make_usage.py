"""Make a node's samples for tests from a few figures: the files that a monitor leaves, and a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ddp_ladder.nodes.sampler import MonitorFile, columns
from ddp_ladder.nodes.usage import NodeSamples, StepTimes, Timeline, parse_samples, timeline

BEGIN_S = 1_800_000_000.0
EVERY_S = 2.0
MIB = 2**20
# An A100 as NVML describes it.
GPU: Mapping[str, Any] = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 81920 * MIB, "power_limit_w": 400.0}
# A node that trains without anything to find.
CALM: Mapping[str, Any] = {
    "cpu_fraction": 0.35,
    "cpu_busiest_fraction": 0.8,
    "node_memory_used_bytes": 60e9,
    "training_cpu_cores": 5.0,
    "training_rss_bytes": 20e9,
    "network_received_bytes_per_s": 1e6,
    "network_sent_bytes_per_s": 1e6,
}
CALM_GPU: Mapping[str, Any] = {
    "busy_fraction": 0.97,
    "memory_used_bytes": 60_000 * MIB,
    "power_w": 340.0,
    "temperature_c": 58,
    "sm_clock_mhz": 1410,
    "throttle_reasons": "none",
}


def make_monitor_file(node_rank: int = 0, gpu_count: int = 0, node: str | None = None, **changes: Any) -> MonitorFile:
    """Return the description of a node with 16 CPUs per GPU (16 without GPUs) and an interface of 100 Gbit/s."""
    cpus = 16 * max(1, gpu_count)
    usual: dict[str, Any] = {
        "schema_version": 1,
        "spec_hash": "5" * 64,
        "job": {"id": "local-7", "attempt": 1, "run_id": "6" * 32},
        "node_rank": node_rank,
        "node": node or f"node{node_rank}",
        "host": node or f"node{node_rank}",
        "every_s": EVERY_S,
        "interface": "ib0",
        "interface_bits_per_s": 100_000_000_000,
        "cpus": tuple(range(cpus)),
        "memory_bytes": 512 * 10**9,
        "fabrics": (),
        "gpus": tuple({**GPU, "index": k, "uuid": f"GPU-{4 * node_rank + k}"} for k in range(gpu_count)),
        "notes": (),
    }
    return MonitorFile.from_json({**usual, **changes})


def samples_text(about: MonitorFile, count: int = 60, **values: Any) -> str:
    """Return the CSV of a node: calm, but for ``values``: of a column one for all samples, or one for each."""
    header = columns(fabric=bool(about.fabrics), gpus=len(about.gpus))
    usual = {**CALM, **{f"gpu{k}_{name}": value for k in range(len(about.gpus)) for name, value in CALM_GPU.items()}}
    times_s = BEGIN_S + about.every_s * np.arange(count)
    given = {**usual, **values}
    rows = [[f"{times_s[k]:.3f}", *(_cell(given.get(name, ""), k) for name in header[1:])] for k in range(count)]
    return "".join(f"{','.join(row)}\n" for row in [header, *rows])


def _cell(value: Any, k: int) -> str:
    return str(value if isinstance(value, str | int | float) else value[k])


def make_samples(about: MonitorFile, count: int = 60, **values: Any) -> NodeSamples:
    return parse_samples(samples_text(about, count, **values), about)


def make_timeline(
    seconds: float = 120.0,
    step_s: float = 0.5,
    *,
    startup_s: float = 6.0,
    warmup_steps: int = 10,
    validations_s: Sequence[tuple[float, float]] = (),
) -> Timeline:
    """Return the timeline of a run of ``seconds``: steps from the end of the start-up to 2 s before the end.

    validations_s: begin and end of each, from the run's begin.
    """
    ended_at_s = BEGIN_S + np.arange(startup_s, seconds - 2, step_s)
    steps = StepTimes(
        ended_at_s,
        np.full(len(ended_at_s), step_s),
        warmup_steps,
        validations_s=[(BEGIN_S + begin, BEGIN_S + end) for begin, end in validations_s],
    )
    return timeline(BEGIN_S, BEGIN_S + seconds, steps)
