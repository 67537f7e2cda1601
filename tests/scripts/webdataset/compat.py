"""A WebLoader as webdataset 1.0 has it: stages behind a DataLoader, in one generator of samples after the other."""

import copy
import random
import sys
from itertools import islice

from torch.utils.data import DataLoader, IterableDataset, default_collate


class WebLoader(IterableDataset):
    def __init__(self, *args, **options):
        self.pipeline = [DataLoader(*args, **options)]
        self.repetitions, self.nsamples = 1, -1

    def compose(self, stage):
        result = copy.copy(self)
        result.pipeline = [*self.pipeline, stage]
        return result

    def unbatched(self):
        return self.compose(_unbatched)

    def shuffle(self, size, initial=100):
        return self.compose(lambda data: _shuffle(data, size, min(initial, size)))

    def batched(self, size):
        return self.compose(lambda data: _batched(data, size))

    def with_epoch(self, batches):
        self.repetitions, self.nsamples = sys.maxsize, batches
        return self

    def iterator(self):
        for _ in range(self.repetitions):
            source = iter(self.pipeline[0])
            for stage in self.pipeline[1:]:
                source = stage(source)
            yield from source

    def __iter__(self):
        return self.iterator() if self.nsamples < 0 else islice(self.iterator(), self.nsamples)


def _unbatched(data):
    for batch in data:
        yield from zip(*batch, strict=True)


def _shuffle(data, size, initial):
    buffer = []
    for sample in data:
        buffer.append(sample)
        if len(buffer) < size and (another := next(data, None)) is not None:
            buffer.append(another)
        if len(buffer) >= initial:
            yield buffer.pop(random.randrange(len(buffer)))
    random.shuffle(buffer)
    yield from buffer


def _batched(data, size):
    batch = []
    for sample in data:
        batch.append(sample)
        if len(batch) == size:
            yield default_collate(batch)
            batch = []
    if batch:
        yield default_collate(batch)
