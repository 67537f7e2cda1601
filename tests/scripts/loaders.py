"""Loaders of many kinds, two epochs each.

Streams (collated, packed, own_batches); batches that do not hold what the sampler gave (dropping); a dataset's own
items, one for each index (items), or tokens (texts); loaders that nobody names (unnamed, iterator, cycle), or from
which another thread draws (threaded); one whose only iterator is not made by DataLoader.__iter__ (infinite, as
Ultralytics'); webdataset's, in which what the DataLoader inside yields fills a buffer, is shuffled and batched again
(web_shuffled, web_cut_short).
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import torch
from loop import train
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

KIND, WORKERS = sys.argv[1], int(sys.argv[2])
BATCHES = 12
DATA = TensorDataset(torch.arange(4 * BATCHES - 1), torch.randn(4 * BATCHES - 1, 4))


class Stream(IterableDataset):
    """Samples, or batches of different sizes, sharded over the workers."""

    def __init__(self, length, sample):
        self.length, self.sample = length, sample

    def __iter__(self):
        info = get_worker_info()
        first, count = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.length, count):
            yield self.sample(index)


class Pictures(Dataset):
    """Samples as detectron2's, which are not put together."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"x": torch.randn(3, 4), "boxes": torch.randn(index % 3, 4), "height": 3}


def pair(index):
    return torch.tensor([index]), torch.randn(4)


def text(index):
    return {"input_ids": torch.arange(9) + index, "x": torch.randn(4)}


def without_bad(samples):
    """Leave out every eighth sample, wherever it is in the batch; a random one in eight is bad."""
    return default_collate([sample for sample in samples if sample[0] % 8 != 5])


class _RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
        self.iterator = None

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)


def packed(samples):
    """Put two samples into a row."""
    return torch.stack(samples).reshape(-1, 2, 4)


def of_data(kind=DataLoader):
    return kind(DATA, batch_size=4, shuffle=True, num_workers=WORKERS)


def dropping():
    data = TensorDataset(torch.arange(160), torch.randn(160, 4))
    return DataLoader(data, 8, shuffle=True, collate_fn=without_bad, num_workers=WORKERS)


def threaded():
    """Yield what another thread draws, as DataLoaderX and BackgroundGenerator do."""
    with ThreadPoolExecutor(1) as thread:
        batches = thread.submit(iter, of_data()).result()
        while (batch := thread.submit(next, batches, None).result()) is not None:
            yield batch


def web():
    from webdataset.compat import WebLoader

    loader = WebLoader(Stream(330, pair), batch_size=8, num_workers=WORKERS).unbatched().shuffle(100).batched(12)
    return loader.with_epoch(16) if KIND == "web_cut_short" else loader


def epochs():
    """Yield the batches of each epoch: from a loader that is kept, or from one that nobody names."""
    unnamed = {
        "unnamed": of_data,
        "iterator": lambda: iter(of_data()),
        "threaded": threaded,
        "cycle": lambda: islice(cycled, BATCHES),
    }
    kept = {
        "collated": lambda: DataLoader(Stream(64, lambda index: torch.ones(4)), 6, num_workers=WORKERS),
        "packed": lambda: DataLoader(
            Stream(60, lambda index: torch.ones(4)), 6, collate_fn=packed, num_workers=WORKERS
        ),
        "own_batches": lambda: DataLoader(
            Stream(64, lambda index: torch.ones(index % 5 + 1, 4)), batch_size=None, num_workers=WORKERS
        ),
        "items": lambda: DataLoader(Pictures(), batch_size=None, shuffle=True, num_workers=WORKERS),
        "dropping": dropping,
        "texts": lambda: DataLoader(list(map(text, range(47))), 4, shuffle=True, num_workers=WORKERS),
        "infinite": lambda: of_data(InfiniteDataLoader),
    }
    cycled = cycle(of_data()) if KIND == "cycle" else None
    loader = None if KIND in unnamed else kept.get(KIND, web)()
    for _ in range(2):
        yield unnamed[KIND]() if loader is None else loader


COUNTS = {"items": lambda batch: 1, "packed": lambda batch: 2 * len(batch)}


def inputs(batch):
    if isinstance(batch, dict):
        return batch["x"]
    return batch if isinstance(batch, torch.Tensor) else batch[1]


if __name__ == "__main__":
    train(epochs(), COUNTS.get(KIND, lambda batch: len(inputs(batch))), inputs)
