"""DistributedDataParallel around a model, and what that does to the names in its state dict."""

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
    """Average the gradients over the ranks in every backward pass; without a process group the model stays as it is.

    net.compile() comes before: torch.compile sees that DDP is around the model, and makes a graph for each bucket of
    gradients, so that one is sent while the next is computed.

    bucket_cap_mb: gradients are sent in buckets of about this size, each as soon as it is full; None: torch's 25.
    Larger ones suit networks of high latency, smaller ones start earlier.
    gradient_as_bucket_view: gradients live in the buckets, which saves their copy and as much memory.
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
    """The model itself, without what was put around it."""
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        inner: nn.Module = model.module
        return inner
    return model


def without_sync(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """For all backward passes of an accumulated step but the last: gradients are added up here, and sent once."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def agree_on_buffers(model: nn.Module) -> None:
    """Give every rank the first one's buffers, such as BatchNorm's running averages.

    Each rank updates its own by its own batches. DDP evens them out before the next forward pass, which an evaluation
    and a checkpoint come before.
    """
    if dist.is_initialized():
        for buffer in bare(model).buffers():
            dist.broadcast(buffer, 0)


def save_model(model: nn.Module, file: Path, state_format: str) -> None:
    """Write the parameters alone, for use elsewhere. On one rank only.

    serial  names as the model has them: what a program without DDP wants, and usually what you want
    ddp     with ``module.`` in front of every name, as ``DistributedDataParallel(...).state_dict()`` has them
    """
    prefix = {"serial": "", "ddp": "module."}[state_format]
    save({prefix + name: value for name, value in bare(model).state_dict().items()}, file)


def load_model(model: nn.Module, file: Path) -> None:
    """Read either format, into a model that is wrapped or not."""
    state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    consume_prefix_in_state_dict_if_present(state, "module.")
    bare(model).load_state_dict(state)
