"""Precision of the arithmetic: fp32, tf32, bf16 or fp16."""

from __future__ import annotations

import contextlib

import torch

NAMES = ("fp32", "tf32", "bf16", "fp16")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The arithmetic of a training: ``with precision.autocast(): loss = ...``, then use ``precision.scaler``.

    fp32  plain, also for convolutions, which cuDNN otherwise computes in TF32
    tf32  float32 in memory, 10 bits of mantissa in the tensor cores (Ampere and newer)
    bf16  mixed precision with bfloat16: the range of float32, so gradients need no scaling
    fp16  mixed precision with float16: small gradients would become 0, so the loss is scaled up

    The scaler exists for all of them, and does nothing if it is not needed.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        tf32 = name == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True  # batches have a constant shape: cuDNN searches its fastest kernels once
        self._device_type = device.type
        self._dtype = _AUTOCAST.get(name)
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context for the forward pass and the loss; the backward pass needs none."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device_type, dtype=self._dtype)
