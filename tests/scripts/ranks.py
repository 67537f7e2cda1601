"""What scripts that run on one rank or several have in common."""

import os

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def together(model):
    """The model as it is on one rank; wrapped, over Gloo, where there are several."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return model
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return DistributedDataParallel(model)
