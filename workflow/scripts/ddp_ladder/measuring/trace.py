"""Exposed communication in the trace of a rank's profiled steps, for scripts whose communication DDP does not time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ddp_ladder.common.files import read_bytes
from ddp_ladder.measuring.pauses import covered_s

HOST, KERNEL, STEP = "cpu_op", "kernel", "ProfilerStep#"


def exposed_comm_fraction(trace: Path) -> float | None:
    """Return the share of the traced steps in which NCCL or Gloo worked and no computation did.

    None without a collective or a step. Computation is that of the GPU's kernels; on CPUs that of torch's operators.
    Raises OSError, EOFError, zlib.error, ValueError or KeyError for a damaged file.
    """
    events = [each for each in json.loads(gzip.decompress(read_bytes(trace)))["traceEvents"] if "dur" in each]
    steps = _spans(each for each in events if each["name"].startswith(STEP))
    collectives = [each for each in events if _is_collective(each)]
    kernels = [each for each in events if each.get("cat") == KERNEL and not _is_collective(each)]
    operators = [each for each in events if each.get("cat") == HOST and each["name"].startswith("aten::")]
    if not steps or not collectives:
        return None
    computed, edges = _spans(kernels or operators), np.array([min(steps)[0], max(end for _, end in steps)])
    both, alone = covered_s(edges, [*computed, *_spans(collectives)]), covered_s(edges, computed)
    return float((both - alone).sum() / (edges[1] - edges[0]))


def _is_collective(event: dict[str, Any]) -> bool:
    """Return True for a kernel of NCCL or RCCL, and for the time that Gloo's thread works on a collective."""
    name = event["name"]
    return name.startswith("gloo:") or (event.get("cat") == KERNEL and name.startswith("nccl"))


def _spans(events: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return begin and end of each, in microseconds."""
    return [(float(each["ts"]), float(each["ts"]) + float(each["dur"])) for each in events]
