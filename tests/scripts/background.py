"""Batches that another thread draws: DataLoaderX, or a BackgroundGenerator around a DataLoader."""

import sys
import time

import torch
from prefetch_generator import BackgroundGenerator
from tally import Tally, think
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    """A dataset in which a batch of four takes some time, but less than a step."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((4,), float(index))


class DataLoaderX(DataLoader):
    def __iter__(self):
        return BackgroundGenerator(super().__iter__(), max_prefetch=3)


def main(how):
    loader = DataLoaderX(Slow(), 4) if how == "subclass" else DataLoader(Slow(), 4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    tally = Tally()
    for epoch in range(2):
        tally.start()
        if epoch:  # where the second epoch begins is not seen either
            tally.leave_epoch()
        for x in loader if how == "subclass" else BackgroundGenerator(loader):
            model(x).mean().backward()
            think(0.02)
            tally.seen(len(x))
            optimizer.step()
            optimizer.zero_grad()
            tally.step()
    tally.write()


if __name__ == "__main__":
    main(sys.argv[1])
