"""The number of samples in a batch: what the sampler gave, compared with what arrived, or else read from the batch.

A collate_fn may leave samples out, or pack them, so the number of indices is believed only if the batch shows it, as a
dimension or the length of a list. Fewer rows than indices are what arrived. If nothing in the batch tells the number,
or its tensors disagree, the count is a guess, and is recorded as one.

Digests of the first samples that a rank trains on: ranks with common digests draw from the same data.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

DEEPEST = 6
"""Levels of a batch that are searched; objects may refer to each other in a cycle."""

FIRST_BATCHES = 12
EXAMINED_EVERY = 16
"""The first batches are examined as a whole, then every 16th, if the first tensor alone does not tell the number."""

LEAVES = (str, bytes, int, float)
MOST_DIGESTS = 32
PER_BATCH = 8
MOST_BYTES = 65_536  # of one sample's tensor


class Findings:
    """What the record says of the batches of all passes of the training.

    dropped: indices whose samples did not arrive.
    unclear: the sizes that an unclear batch may have; empty if all were clear.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.unclear: tuple[int, ...] = ()

    def add(self, other: Findings) -> None:
        """Add what another pass found."""
        self.dropped += other.dropped
        self.unclear = self.unclear or other.unclear


class BatchSizes:
    """The sizes of the batches of one pass.

    usual: samples of a whole batch, if the loader puts them together. seen: number of batches.
    findings: of this pass, or of all that train.
    """

    def __init__(self, usual: int | None = None) -> None:
        self.usual = usual
        self.seen = 0
        self.findings = Findings()
        self._settled = False  # the number can be had without a look at the whole batch
        self._whole = False  # a batch of the usual size was seen

    def measure(self, batch: object, announced: int | None) -> tuple[int, int]:
        """Return the samples in a batch, and how many of ``announced`` (the sampler's indices; None: unknown) are not.

        The size is 0 if nothing tells it.
        """
        self.seen += 1
        first = first_size(batch)
        if first == announced:
            return first, 0
        expected = first if announced is None else announced
        if self._settled and self.seen % EXAMINED_EVERY:
            return expected, 0
        content = Content(batch)
        size, unclear = (
            _read(content, self.usual) if announced is None or batch is None else _compared(content, announced)
        )
        if self.usual is not None and announced is None:
            self._whole = self._whole or (size == self.usual and not unclear)
            smaller = [each for each in unclear if 0 < each < self.usual]
            if self._whole and len(smaller) == 1:  # the last batch
                size, unclear = smaller[0], ()
        self.findings.unclear = self.findings.unclear or unclear
        dropped = 0 if announced is None else announced - size
        self.findings.dropped += dropped
        self._settled = size == expected and self.seen > FIRST_BATCHES and not self.findings.dropped
        return size, dropped


class Content:
    """What a batch holds that may show its size.

    firsts: first and number of dimensions of each tensor. seconds: second dimensions.
    lists: how often each length occurs among lists of alike tensors or records: mappings with the same keys, objects,
        tuples of one length.
    samples: that of the first list of records, or of tensors that differ in length.
    texts: length of the first list without tensors.
    """

    def __init__(self, batch: object) -> None:
        self.firsts: list[tuple[int, int]] = []
        self.seconds: set[int] = set()
        self.lists: Counter[int] = Counter()
        self.samples: Optional[int] = None
        self.texts: Optional[int] = None
        self._search(batch, 0)
        self.sizes = {size for size, _ in self.firsts}

    def _search(self, batch: Any, depth: int) -> None:
        if isinstance(batch, LEAVES) or batch is None or depth > DEEPEST + 1:
            return
        shape = _shape(batch)
        if shape is not None:
            if shape:
                self.firsts.append((shape[0], len(shape)))
                self.seconds.update(shape[1:2])
        elif isinstance(batch, (list, tuple)):
            self._search_list(batch, depth)
        else:
            texts = self.texts
            for item in parts(batch):
                self._search(item, depth + 1)
            if not isinstance(batch, Mapping):  # an image's own size, for example
                self.texts = texts

    def _search_list(self, batch: Sequence[Any], depth: int) -> None:
        tensors, texts, samples = len(self.firsts), self.texts, self.samples
        for item in batch:
            self._search(item, depth + 1)
        shapes = [_shape(item) or () for item in batch]
        dimensions, lengths = {len(shape) for shape in shapes}, {shape[:1] for shape in shapes}
        is_records = (
            dimensions == {0} and len({_kind(item) for item in batch}) == 1 and not isinstance(batch[0], LEAVES)
        )
        is_alike = len(dimensions) == 1 and dimensions != {0}
        if is_records or is_alike:
            self.lists[len(batch)] += 1
        if is_records or (is_alike and len(lengths) > 1):
            self.samples = samples or len(batch)
        if len(self.firsts) == tensors and not any(isinstance(item, (list, tuple)) for item in batch):
            self.texts = texts or len(batch)


def _kind(item: Any) -> object:
    if isinstance(item, Mapping):
        return tuple(item)
    return type(item), len(item) if isinstance(item, (list, tuple)) else None


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
    return list(getattr(batch, "__dict__", {}).values())


def _shape(batch: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor or an array; of what knows its own size (graphs, tensordicts) that size alone."""
    if isinstance(batch, Tensor):
        return (batch.size(0),) if batch.is_nested else tuple(batch.shape)
    if isinstance(batch, PackedSequence):
        return (int(batch.batch_sizes[0]),)
    if isinstance(batch, (list, tuple, dict)):
        return None
    for name in ("num_graphs", "batch_size"):
        try:
            size: Any = getattr(batch, name, None)
            size = size[0] if isinstance(size, (list, tuple)) and size else size
            if isinstance(size, int) and size > 0:
                return (size,)
        except (AttributeError, RuntimeError, NotImplementedError):
            continue  # the batch's own property failed
    shape = getattr(batch, "shape", None)
    return shape if isinstance(shape, tuple) else None


def _read(content: Content, usual: int | None) -> tuple[int, tuple[int, ...]]:
    """Return the size of a batch that nobody announced, and all sizes that it may have, if there are several."""
    if not content.firsts:
        return content.texts or 0, ()
    sizes = content.sizes | ({content.samples} if content.samples else set())
    if usual is not None and usual in sizes:
        return usual, ()
    if len(content.sizes) > 1 and content.samples:
        size = content.samples
    else:  # inputs have more dimensions than lengths and offsets
        votes: Counter[int] = Counter()
        for first, dimensions in content.firsts:
            votes[first] += dimensions
        size = votes.most_common(1)[0][0]
    return size, tuple(sorted(sizes)) if len(sizes) > 1 else ()


def _compared(content: Content, announced: int) -> tuple[int, tuple[int, ...]]:
    """Return the size of a batch for which the sampler gave ``announced`` indices, and what it may be if unclear."""
    sizes, samples, texts = content.sizes, content.samples, content.texts
    if announced in (*sizes, *content.lists, texts):
        return announced, ()
    lone = next(iter(sizes)) if len(sizes) == 1 else announced
    if lone < announced and not samples and any(dimensions == 1 for _, dimensions in content.firsts):
        return lone, ()  # labels, for example
    if announced in content.seconds:  # sequences with their time first
        return announced, ()
    columns = max((each for each, count in content.lists.items() if count > 1 and each < announced), default=None)
    for left in (samples, columns, content.firsts[0][0] if sizes else None, texts):
        if left is not None and announced / 2 < left < announced:
            return left, ()
    if not sizes and texts is not None and texts < announced:
        return texts, ()
    return announced, tuple(sorted({announced, *sizes})) if sizes or texts else ()


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
