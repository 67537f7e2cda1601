"""Torch's flight recorder: its last collective calls, with their stacks, written where the user has enabled it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddp_ladder_instrument.files import write_atomically
from ddp_ladder_instrument.world import has_group

ENABLED_BY = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the second one is the older name


def write(directory: Path) -> None:
    """Write flight_<rank>, as torchfrtrace reads it; do nothing if the recorder is off. Raises OSError."""
    if not any(os.environ.get(name, "0") not in ("", "0") for name in ENABLED_BY) or not has_group():
        return
    c10d: Any = getattr(torch._C, "_distributed_c10d", None)
    dump = getattr(c10d, "_dump_nccl_trace" if "nccl" in str(dist.get_backend_config()) else "_dump_fr_trace", None)
    if dump is not None:  # torch 2.4 records NCCL only
        write_atomically(directory / f"flight_{dist.get_rank()}", [dump()])
