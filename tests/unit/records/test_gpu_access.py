"""What is said where torch sees no GPU. No GPU is needed: a rank's words are torch's own, and its facts are edited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.records.record import Failure
from make_records import make_spec
from make_runs import edit, failure_of, write_run

NO_GPUS = "No CUDA GPUs are available"
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11070). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
CPU_ONLY = "Torch not compiled with CUDA enabled"
A100 = {"name": "NVIDIA A100-SXM4-40GB", "driver": "535.129.03", "power_limit_w": 400.0}


def blind(tmp_path: Path, gpus: list[dict[str, Any]], **seen: Any) -> Failure:
    run = write_run(tmp_path, make_spec("1x2", device="cuda"))
    told = {"count": 0, "built_for": "12.8", "visible": None, "why": NO_GPUS, **seen}

    def sees_none(end: dict[str, Any]) -> None:
        end["device"] = {"kind": "cpu", "index": None, "name": "EPYC", "id": "cpu:1"}
        end.update(gpus_seen=told, exit_code=1, ended_by="exception", exception=f"RuntimeError: {told['why']}")

    edit(run.ranks / "rank1.json", sees_none)
    edit(run.nodes / "node0.json", lambda end: end.update(gpus=gpus, exit_code=1))
    failure = failure_of(run)
    assert (failure.verdict, failure.place) == ("torch sees no GPU", "rank 1 on node0")
    return failure


@pytest.mark.parametrize(
    ("gpus", "seen", "why", "next_step"),
    [
        ([A100], {"built_for": None, "why": CPU_ONLY}, "is built for no CUDA and says: ", "install for"),
        ([A100], {"why": TOO_OLD}, "nvidia-smi shows 1 x NVIDIA A100-SXM4-40GB, driver 535.129.03", "install for"),
        ([], {}, f"says: {NO_GPUS}; nvidia-smi shows no GPU", "check node.gres"),
        ([A100], {"visible": ""}, "CUDA_VISIBLE_DEVICES is ''", "check node.gres"),
    ],
    ids=["CPU-only", "too old", "no GPU", "hidden"],
)
def test_fake_cuda_why_a_rank_sees_no_gpu(
    tmp_path: Path, gpus: list[dict[str, Any]], seen: dict[str, Any], why: str, next_step: str
) -> None:
    failure = blind(tmp_path, gpus, **seen)
    assert failure.why.startswith("rank 1: torch ")
    assert why in failure.why
    assert failure.next.startswith(next_step)
    assert failure.next.endswith("then start snakemake again")
