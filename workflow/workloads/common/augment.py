"""Augmentation and normalisation of a whole batch of images at once, on the training device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Prepare = Callable[[Tensor], Tensor]
"""Function from the loader's batch (n x c x h x w, any type, on the host or the device) to the model's input."""


def preparation(
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
    memory_format: torch.memory_format = torch.contiguous_format,
    change: Prepare | None = None,
) -> Prepare:
    """Return a function that moves images to the device, changes them there (crop, flip) and normalises each channel.

    mean, std: per channel, in the units of the stored pixels (0..255 for uint8).
    """
    shape = (1, -1, 1, 1)
    shift = torch.tensor(mean, device=device).view(shape)
    scale = 1 / torch.tensor(std, device=device).view(shape)

    def prepare(images: Tensor) -> Tensor:
        images = images.to(device, non_blocking=True)
        if change is not None:
            images = change(images)
        return ((images.float() - shift) * scale).contiguous(memory_format=memory_format)

    return prepare


def crop_and_flip(images: Tensor, padding: int = 4) -> Tensor:
    """Shift each image by up to ``padding`` pixels in each direction, filled with black; mirror it with chance 1/2.

    This equals torchvision's RandomCrop and RandomHorizontalFlip on each image; one gather does both for the batch.
    """
    count, channels, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding,) * 4)
    top, left = torch.randint(0, 2 * padding + 1, (2, count, 1, 1), device=device)
    mirrored = torch.rand(count, 1, 1, device=device) < 0.5
    rows = torch.arange(height, device=device).view(1, height, 1)
    columns = torch.arange(width, device=device).view(1, 1, width)
    columns = torch.where(mirrored, width - 1 - columns, columns)
    pixel = (rows + top) * padded.size(3) + columns + left
    pixels = pixel.view(count, 1, height * width).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixels).view(images.shape)
