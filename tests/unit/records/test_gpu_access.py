"""What is said where torch sees no GPU. No GPU is needed: a rank's words are torch's own, and its facts are edited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.records.failures import is_too_old
from ddp_ladder.records.record import Failure
from make_records import make_spec
from make_runs import edit, reassemble, write_run

NO_GPUS = "No CUDA GPUs are available"
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11070). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
CPU_ONLY = "Torch not compiled with CUDA enabled"
A100 = {"name": "NVIDIA A100-SXM4-40GB", "driver": "535.129.03", "power_limit_w": 400.0}


@pytest.mark.parametrize(
    ("driver", "cuda", "too_old"),
    [
        ("515.43.04", "11.7", False),
        ("515.43.04", "12.1", True),
        ("525.60.13", "12.8", False),
        ("575.57.08", "13.0", True),
        ("580.65.06", "13.2", False),
        ("1.2", "99.1", False),  # a CUDA that is not in the table
    ],
)
def test_the_driver_that_a_cuda_needs(driver: str, cuda: str, too_old: bool) -> None:
    assert is_too_old(driver, cuda) is too_old


def blind(tmp_path: Path, gpus: list[dict[str, Any]], **seen: Any) -> Failure:
    run = write_run(tmp_path, make_spec("1x2", device="cuda"))
    told = {"count": 0, "built_for": "12.8", "visible": None, "why": NO_GPUS, **seen}

    def sees_none(end: dict[str, Any]) -> None:
        end["device"] = {"kind": "cpu", "index": None, "name": "EPYC", "id": "cpu:1"}
        end.update(gpus_seen=told, exit_code=1, ended_by="exception", exception=f"RuntimeError: {told['why']}")

    edit(run.ranks / "rank1.json", sees_none)
    edit(run.nodes / "node0.json", lambda end: end.update(gpus=gpus, exit_code=1))
    failure = reassemble(run).failure
    assert failure is not None
    assert (failure.verdict, failure.place) == ("torch sees no GPU", "rank 1 on node0")
    return failure


@pytest.mark.parametrize(
    ("gpus", "seen", "why", "next_step"),
    [
        ([A100], {"built_for": None, "why": CPU_ONLY}, "is built without CUDA", "install a torch with CUDA"),
        ([A100], {"why": TOO_OLD}, "driver 535.129.03 is too old for torch", "an older CUDA"),
        ([], {"why": TOO_OLD}, "driver is too old for torch", "an older CUDA"),
        ([A100], {"built_for": "13.0"}, "(wants 580.65.06 or newer)", "an older CUDA"),
        ([], {}, "nvidia-smi shows no GPU there; torch says: No CUDA GPUs are available", "check node.gres"),
        ([A100], {"visible": ""}, "CUDA_VISIBLE_DEVICES is ''", "check node.gres"),
        ([A100], {"why": "CUDA unknown error"}, "shows 1 x NVIDIA A100-SXM4-40GB, but torch", "srun --pty"),
    ],
    ids=["CPU-only", "too old", "too old, no nvidia-smi", "too old by the table", "no GPU", "hidden", "unknown"],
)
def test_fake_cuda_why_a_rank_sees_no_gpu(
    tmp_path: Path, gpus: list[dict[str, Any]], seen: dict[str, Any], why: str, next_step: str
) -> None:
    failure = blind(tmp_path, gpus, **seen)
    assert failure.why.startswith("rank 1: ")
    assert why in failure.why
    assert next_step in failure.next
    assert failure.next.endswith("then start snakemake again")


def test_fake_cuda_a_script_that_trains_on_the_cpu_beside_gpus_is_told_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x1", device="cuda"))
    cpu = {"kind": "cpu", "index": None, "name": "EPYC", "id": "cpu:1"}
    seen = {"count": 1, "built_for": "12.8", "visible": "0", "why": ""}
    edit(run.ranks / "rank0.json", lambda end: end.update(device=cpu, gpus_seen=seen))
    failure = reassemble(run).failure
    assert failure is not None
    assert "let the script train on cuda" in failure.next
