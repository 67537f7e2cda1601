"""Digests of the first samples that a rank trains on: ranks with common digests draw from the same data."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator

import torch

from ddp_ladder_instrument.batch_sizes import DEEPEST, LEAVES, parts

MOST_DIGESTS = 32
PER_BATCH = 8
MOST_BYTES = 65_536  # of one sample's tensor


def digests(batch: object) -> list[str]:
    """Return a digest for each of the batch's first samples, or one for the batch if it cannot be split.

    There are none for a batch that is on a device already: reading it would wait for the device.
    """
    tensors = list(_tensors(batch, 0))
    if not tensors or any(tensor.device.type != "cpu" or tensor.layout != torch.strided for tensor in tensors):
        return []
    sizes = {tensor.size(0) if tensor.dim() else 0 for tensor in tensors}
    if len(sizes) > 1 or sizes == {0}:
        return [_digest(tensors)]
    return [_digest([tensor[row] for tensor in tensors]) for row in range(min(sizes.pop(), PER_BATCH))]


def _digest(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        plain = _thinned(tensor.detach()).contiguous()
        size = plain.numel() * plain.element_size()
        if size:
            digest.update((ctypes.c_char * size).from_address(plain.data_ptr()))
    return digest.hexdigest()


def _thinned(tensor: torch.Tensor) -> torch.Tensor:
    """Halve the longest side, by taking every second element, until the tensor is small enough.

    This covers all of a large sample, whose beginning may be an empty border, and copies little of a strided one.
    """
    while tensor.numel() * tensor.element_size() > MOST_BYTES:
        longest = max(range(tensor.dim()), key=tensor.size)
        tensor = tensor[(slice(None),) * longest + (slice(None, None, 2),)]
    return tensor


def _tensors(batch: object, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    if isinstance(batch, LEAVES) or batch is None or depth > DEEPEST:
        return
    for item in parts(batch):
        yield from _tensors(item, depth + 1)
