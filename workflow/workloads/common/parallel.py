"""DistributedDataParallel around a model, and its effect on the names in the state dict."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DataParallel, DistributedDataParallel

from common.distributed import World
from common.files import save

STATE_FORMATS = ("serial", "ddp")


def distribute(model: nn.Module, world: World, bucket_cap_mb: float | None, gradient_as_bucket_view: bool) -> nn.Module:
    """Wrap the model in DDP, which averages gradients over the ranks; return it unchanged without a process group.

    Call net.compile() before: torch.compile then detects DDP around the model and makes one graph for each bucket of
    gradients, so that one bucket is sent while the next is computed.

    bucket_cap_mb: gradients are sent in buckets of about this size, each as soon as it is full; None: torch's 25.
    Larger ones suit networks of high latency, smaller ones start earlier.
    gradient_as_bucket_view: gradients are views of the buckets, which saves a copy and its memory.
    """
    if not dist.is_initialized():
        return model
    return DistributedDataParallel(
        model,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        bucket_cap_mb=bucket_cap_mb,
        gradient_as_bucket_view=gradient_as_bucket_view,
    )


def bare(model: nn.Module) -> nn.Module:
    """Return the model without its DDP or DataParallel wrapper."""
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        inner: nn.Module = model.module
        return inner
    return model


def without_sync(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return a context for all but the last backward pass of an accumulated step: gradients are then sent only once."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def agree_on_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers, such as BatchNorm's running averages, to all ranks.

    Each rank updates its own from its own batches. DDP synchronises them only before the next forward pass, which is
    too late for an evaluation or a checkpoint.
    """
    if dist.is_initialized():
        for buffer in bare(model).buffers():
            dist.broadcast(buffer, 0)


def save_model(model: nn.Module, file: Path, state_format: str) -> None:
    """Write only the parameters, for use elsewhere. Call this on one rank only.

    serial  the model's own names: for a program without DDP, and usually the right choice
    ddp     every name begins with ``module.``, as in ``DistributedDataParallel(...).state_dict()``
    """
    prefix = {"serial": "", "ddp": "module."}[state_format]
    save({prefix + name: value for name, value in bare(model).state_dict().items()}, file)


def load_model(model: nn.Module, file: Path) -> None:
    """Load either format into a model, wrapped or not."""
    state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    consume_prefix_in_state_dict_if_present(state, "module.")
    bare(model).load_state_dict(state)
