"""Shared by scripts that run on one rank or several."""

import os

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def together(model):
    """Wrap the model in DDP with Gloo if there are several ranks."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return model
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return DistributedDataParallel(model)
