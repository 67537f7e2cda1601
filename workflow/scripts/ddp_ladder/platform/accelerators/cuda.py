"""CUDA: GPUs of NVIDIA, through nvidia-smi and NVML. GPUs of AMD, which torch calls cuda, too, are neither shown nor
sampled."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ddp_ladder.common.formats import fields
from ddp_ladder.platform.accelerators.accelerator import WITHIN_S, Accelerator, Gpus, NodeGpu, answer
from ddp_ladder.platform.accelerators.nvml import open_nvidia, visible_gpus

QUERY = ("--query-gpu=uuid,name,driver_version,power.limit,memory.used", "--format=csv,noheader,nounits")


class Cuda(Accelerator):
    """GPUs that torch reaches through CUDA or ROCm."""

    name = "cuda"
    is_for = "for NVIDIA and AMD GPUs"
    title = "CUDA"
    backend = "nccl"
    clock = "CUDA events"
    visible_variable = "CUDA_VISIBLE_DEVICES"
    program = "nvidia-smi"
    commands: ClassVar = {"nvidia-smi-q.txt": ("nvidia-smi", "-q"), "topo.txt": ("nvidia-smi", "topo", "-m")}

    def described(self, answers: Mapping[str, str]) -> str | None:
        query = answers.get("nvidia-smi-q.txt", "")
        gpus = Counter(re.findall(r"^\s+Product Name\s+: (.+?)\s*$", query, re.MULTILINE))
        kinds = ", ".join(f"{number} x {name}" for name, number in gpus.items())
        return f"{kinds} (driver {fields(query).get('Driver Version')})" if kinds else None

    def gpus(self, within_s: float = WITHIN_S) -> tuple[NodeGpu, ...]:
        command = shutil.which(self.program)
        printed = "" if command is None else answer((command, *QUERY), within_s)
        rows = [line.split(", ") for line in printed.splitlines() if line.count(", ") == 4]
        return tuple(
            NodeGpu(
                index=index,
                uuid=uuid,
                name=name,
                driver=driver,
                power_limit_w=_number(limit),
                memory_used_mib=_number(used),
            )
            for index, (uuid, name, driver, limit, used) in enumerate(rows)
        )

    def visible_gpus(self, value: str | None, uuids: Sequence[str]) -> list[int]:
        """With MIG, whose devices are parts of GPUs, all."""
        return visible_gpus(None if "MIG-" in (value or "") else value, uuids)

    def monitor(self, environment: Mapping[str, str]) -> Gpus:
        return open_nvidia(environment)


def _number(text: str) -> float | None:
    """Return a figure; None for one that is not known (``[N/A]``, ``[Unknown Error]``)."""
    return None if text.startswith("[") else float(text)
