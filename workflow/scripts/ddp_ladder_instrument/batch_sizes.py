"""The number of samples in a batch: what its loader took from the dataset, unless fewer arrived, or else what it shows.

What a loader puts together is samples: one for each index, or for each item of a stream. A collate_fn may leave some
out: rows that are fewer, but more than half as many, are what arrived. It may pack them into fewer rows: they are as
many samples as before. If there are more rows, alike in all tensors, an item may have been a batch itself: the count is
then a guess, and is recorded as one.

Without collation (batch_size=None) an index is one sample, and a list of them is as many. A stream then has no indices:
an item may be one sample or a batch that the dataset has made, so its first dimension is a guess.

A digest of each of the first batches that a rank trains on: ranks with common digests draw from the same data.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

DEEPEST = 6
"""Levels of a batch that are searched; objects may refer to each other in a cycle."""

FIRST_BATCHES = 12
EXAMINED_EVERY = 16
"""The first batches are examined as a whole, then every 16th, if the first tensor alone does not tell the number."""

LEAVES = (str, bytes, int, float)
MOST_ELEMENTS = 8192  # of a tensor that are in a digest


class BatchSizes:
    """The sizes of the batches of one pass."""

    def __init__(self, items: bool = False, real: int | None = None, is_stream: bool = False) -> None:
        self.items = items  # it puts nothing together: it gives what the dataset has for an index, or a list of them
        self.is_stream = is_stream  # its last batch, of each worker, has what is left
        self.real = real  # batches before those with which the sampler pads; None: no batch is padding
        self.lengths: list[int] = []  # different ones of input_ids, up to two; 0: a batch without one length
        self.seen = 0  # batches
        self.unclear: list[int] = []  # sizes that an unclear batch of this loader may have; empty: all were clear
        self._left_out = False  # indices whose samples did not arrive
        self._settled = False  # the number can be had without a look at the whole batch
        self._whole = False  # a batch has shown as many rows as were taken

    def measure(self, batch: object, announced: int | None) -> tuple[int, int]:
        """Return the samples in a batch, and how many of ``announced`` (the sampler's indices; None: unknown) are not.

        The size is 0 if nothing tells it.
        """
        self.seen += 1
        try:
            with torch._C.DisableTorchFunctionSubclass():  # a subclass's own functions may raise anything
                size, dropped = self._measure(batch, announced)
                if len(self.lengths) < 2 and (length := tokens_of(batch, size)) not in self.lengths:
                    self.lengths.append(length)
        except Exception:  # so may what another library has put into the batch
            size, dropped = announced or 0, 0
            self.unclear += [] if self.unclear else [size]
        return (0, size + dropped) if self.real is not None and self.seen > self.real else (size, dropped)

    def _measure(self, batch: object, announced: int | None) -> tuple[int, int]:
        first = first_size(batch)
        if first == announced:
            self._whole = True
            return first, 0
        expected = first if announced is None else announced
        if self._settled and self.seen % EXAMINED_EVERY:
            return expected, 0
        content = Content(batch)
        if announced is None:
            size, unclear = _read(content, self.items)
        elif batch is None:
            size, unclear = 0, ()
        elif self.items and announced == 1:
            size, unclear = 1, _doubted(content, 1)
        else:
            size, unclear = _compared(content, announced)
            self._whole = self._whole or announced in content.sizes
            if self.is_stream and self._whole and len(content.sizes) == 1:
                size, unclear = min(announced, *content.sizes), ()
        if not self.unclear:
            self.unclear += unclear
        dropped = 0 if announced is None else announced - size
        self._left_out = self._left_out or dropped > 0
        self._settled = size == expected and self.seen > FIRST_BATCHES and not self._left_out
        return size, dropped


class Content:
    """What a batch holds that may show its size."""

    def __init__(self, batch: object) -> None:
        self.firsts: list[tuple[int, int]] = []  # first and number of dimensions of each tensor
        self.seconds: set[int] = set()  # second dimensions
        self.lengths: list[int] = []  # of all lists, outermost first
        self._search(batch, 0)
        kinds = {_kind(item) for item in batch} if isinstance(batch, (list, tuple)) else {None}
        # The length of a list of samples that were not put together: mappings, tuples or objects of one kind.
        self.records = self.lengths[0] if self.lengths and len(kinds) == 1 and None not in kinds else None
        # What may be the number of samples.
        self.sizes = {size for size, _ in self.firsts} or {*self.lengths}
        if self.records and self.firsts:
            self.sizes.add(self.records)

    def _search(self, batch: Any, depth: int) -> None:
        if isinstance(batch, LEAVES) or batch is None or depth > DEEPEST + 1:
            return
        shape = _shape(batch)
        if shape is not None:
            if shape:
                self.firsts.append((shape[0], len(shape)))
                self.seconds.update(shape[1:2])
            return
        if isinstance(batch, (list, tuple)) and batch:
            self.lengths.append(len(batch))
        for item in parts(batch):
            self._search(item, depth + 1)


def _kind(item: Any) -> object:
    """Return what samples of one kind have in common; None for what is no sample by itself."""
    if isinstance(item, LEAVES) or item is None or _shape(item) is not None:
        return None
    if isinstance(item, Mapping):
        return tuple(item)
    return type(item), len(item) if isinstance(item, (list, tuple)) else 0


def tokens_of(batch: object, size: int) -> int:
    """Return the tokens of each of ``size`` samples, padding included: the second dimension of input_ids.

    0 if there is none: input_ids may have the time first.
    """
    shape = _shape(batch["input_ids"]) if isinstance(batch, Mapping) and "input_ids" in batch else None
    return shape[1] if shape is not None and len(shape) == 2 and shape[0] == size else 0


def first_size(batch: object, depth: int = 0) -> int:
    """Return the first dimension of a batch's first tensor or array, or the batch's own size; 0: there is none."""
    if isinstance(batch, Tensor):
        return batch.size(0) if batch.dim() else 0
    if isinstance(batch, LEAVES) or batch is None:
        return 0
    shape = _shape(batch)
    if shape is not None:
        return shape[0] if shape else 0
    if depth <= DEEPEST:
        for item in parts(batch):
            size = first_size(item, depth + 1)
            if size:
                return size
    return 0


def parts(batch: Any) -> Collection[Any]:
    """Return the parts of a batch: a sequence's items, a mapping's values, a plain object's attributes."""
    if isinstance(batch, (list, tuple)):
        return batch
    if isinstance(batch, Mapping):
        return batch.values()
    return list((_asked(batch, "__dict__") or {}).values())


def _shape(batch: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor or an array; of what knows its own size (graphs, tensordicts) that size alone."""
    if isinstance(batch, Tensor):
        return (batch.size(0),) if batch.is_nested else tuple(batch.shape)
    if isinstance(batch, PackedSequence):
        return (int(batch.batch_sizes[0]),)
    if isinstance(batch, (list, tuple, dict)):
        return None
    for name in ("num_graphs", "batch_size"):
        size = _asked(batch, name)
        size = size[0] if isinstance(size, (list, tuple)) and size else size
        if isinstance(size, int) and size > 0:
            return (size,)
    shape = _asked(batch, "shape")
    return shape if isinstance(shape, tuple) else None


def _asked(thing: Any, name: str) -> Any:
    """Return an attribute of another library's object; None if it has none, or raises when it is asked."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def _read(content: Content, items: bool) -> tuple[int, tuple[int, ...]]:
    """Return the size of a batch that nobody announced, and all sizes that it may have, if there are several."""
    sizes = {1, *content.sizes} if items and content.sizes else content.sizes
    unclear = tuple(sorted(sizes)) if len(sizes) > 1 else ()
    if not content.firsts or (unclear and content.records):
        return content.records or (content.lengths or [0])[0], unclear
    # Inputs have more dimensions than lengths and offsets.
    return max(content.firsts, key=lambda first: first[1])[0], unclear


def _doubted(content: Content, announced: int) -> tuple[int, ...]:
    """Return the sizes that a batch may have if its items look like batches; else nothing.

    They do if of several tensors, at least one with more dimensions than one, all have the same, larger size.
    """
    is_alike = len(content.firsts) > 1 and len(content.sizes) == 1 and min(content.sizes) > announced
    has_inputs = any(dimensions > 1 for _, dimensions in content.firsts)
    return tuple(sorted({announced, *content.sizes})) if is_alike and has_inputs else ()


def _compared(content: Content, announced: int) -> tuple[int, tuple[int, ...]]:
    """Return the size of a batch of ``announced`` indices or items, and what it may be if that is not clear."""
    sizes = content.sizes
    if announced in sizes or announced in content.lengths or announced in content.seconds:  # second: with time first
        return announced, ()
    near = [size for size in ({content.records} if content.records else sizes) if announced / 2 < size < announced]
    if not near and len(sizes) == 1 and min(sizes) < announced:
        near = [size for size, dimensions in content.firsts if dimensions == 1][:1]  # labels, for example
    if len(near) == 1:  # the others were left out
        return near[0], ()
    return announced, tuple(sorted({announced, *near})) if near else _doubted(content, announced)


def digest(batch: object) -> str | None:
    """Return a digest of a batch's tensors, of elements spread over all of each; None if there are none.

    There is none for a batch that is on a device already: reading it would wait for the device.
    """
    elements = hashlib.blake2b(digest_size=8)
    with torch._C.DisableTorchFunctionSubclass():  # of a subclass (MONAI's MetaTensor) the plain tensor
        tensors = list(tensors_of(batch))
        if not tensors or any(tensor.device.type != "cpu" or tensor.layout != torch.strided for tensor in tensors):
            return None
        for tensor in tensors:
            flat = tensor.detach().reshape(-1)
            plain = flat[:: max(1, flat.numel() // MOST_ELEMENTS)].contiguous()
            size = plain.numel() * plain.element_size()
            if size and not plain.data_ptr():  # a wrapper of other tensors
                return None
            if size:
                elements.update((ctypes.c_char * size).from_address(plain.data_ptr()))
    return elements.hexdigest()


def tensors_of(batch: object, depth: int = 0) -> Iterator[Tensor]:
    """Yield the tensors of a batch."""
    if isinstance(batch, Tensor):
        if not batch.is_nested:
            yield batch
        return
    if isinstance(batch, LEAVES) or batch is None or depth > DEEPEST:
        return
    for item in parts(batch):
        yield from tensors_of(item, depth + 1)
