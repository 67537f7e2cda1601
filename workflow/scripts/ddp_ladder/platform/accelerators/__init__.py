"""The accelerators by name, as ``node.device`` of cluster.yaml and torch have it.

A new one is a file here, and its place below; in the training process, what ``ddp_ladder_instrument.accelerator`` asks.
"""

from __future__ import annotations

from ddp_ladder.platform.accelerators.accelerator import Accelerator
from ddp_ladder.platform.accelerators.cpu import Cpu
from ddp_ladder.platform.accelerators.cuda import Cuda

ACCELERATORS: dict[str, Accelerator] = {kind.name: kind for kind in (Cuda(), Cpu())}


def is_gpu(kind: str) -> bool:
    """Return True if a torch device of this kind is a GPU; False also for one that is none of ours."""
    return kind in ACCELERATORS and ACCELERATORS[kind].is_gpu
