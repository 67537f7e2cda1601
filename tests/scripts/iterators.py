"""Loaders that nobody names, and loaders whose iterator is not made by DataLoader.__iter__; two epochs.

infinite and early are those of Ultralytics: it makes its only iterator on the first pass, formerly in its constructor.
"""

import sys
from itertools import cycle, islice

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, dataloader

KIND, WORKERS = sys.argv[1], int(sys.argv[2])
BATCHES = 12
DATA = TensorDataset(torch.arange(4 * BATCHES - 1), torch.randn(4 * BATCHES - 1, 4))


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
        self.iterator = self._get_iterator() if KIND == "early" else None

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)


class OwnIterator(DataLoader):
    def __iter__(self):
        kind = (
            dataloader._MultiProcessingDataLoaderIter if self.num_workers else dataloader._SingleProcessDataLoaderIter
        )
        return kind(self)


KINDS = {"infinite": InfiniteDataLoader, "early": InfiniteDataLoader, "own": OwnIterator}


def make_loader():
    return KINDS.get(KIND, DataLoader)(DATA, batch_size=4, shuffle=True, num_workers=WORKERS)


def drawn_one_by_one():
    """Yield the first batch of a loader for each."""
    for _ in range(BATCHES):
        yield next(iter(DataLoader(DATA, 4, sampler=SubsetRandomSampler(torch.randperm(40).tolist()))))


def main():
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    named = make_loader() if KIND in KINDS else None
    cycled = cycle(make_loader() if KIND == "cycle" else [])
    epochs = {
        "unnamed": lambda: make_loader(),
        "iterator": lambda: iter(make_loader()),
        "one_by_one": drawn_one_by_one,
        "cycle": lambda: islice(cycled, BATCHES),
    }
    for _ in range(2):
        tally.start()
        for index, x in epochs.get(KIND, lambda: named)():
            model(x).square().mean().backward()
            think()
            tally.seen(len(index))
            optimizer.step()
            optimizer.zero_grad()
            tally.step()
        tally.leave_epoch()
    tally.write()


if __name__ == "__main__":
    main()
