"""Batches drawn ahead by the training thread: one (to overlap copies to a GPU) or several."""

import sys
from collections import deque

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 11


class Prefetcher:
    """Prefetcher: it draws the next batch before it returns the previous one, as if it copied it meanwhile."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        first = True
        for (following,) in self.loader:
            if not first:
                yield batch  # noqa: F821
            first = False
            batch = following * 2
        yield batch


class Preloading:
    """Prefetcher with a next() method instead of an iterator; it returns None at the end."""

    def __init__(self, loader, depth=3):
        self.iterator, self.batches = iter(loader), deque()
        for _ in range(depth):
            self.preload()

    def preload(self):
        for (batch,) in self.iterator:
            self.batches.append(batch)
            return

    def next(self):
        batch = self.batches.popleft() if self.batches else None
        self.preload()
        return batch

    def __iter__(self):
        return iter(self.next, None)


HOW = {"one": Prefetcher, "three": Preloading}


def main(how, accumulate, what):
    data = TensorDataset(torch.randn(4 * BATCHES, 4))
    loader = DataLoader(data, batch_size=4)
    val = DataLoader(data, batch_size=20)
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    for _ in range(3):
        model.train()
        tally.start()
        if what != "carried":
            optimizer.zero_grad()
        for index, x in enumerate(HOW[how](loader)):
            loss = model(x).mean()
            think(0.01)
            loss.backward()
            tally.seen(len(x))
            whole = tally.pending >= 4 * accumulate
            if not whole and (index < BATCHES - 1 or what in ("dropped", "carried")):
                continue
            optimizer.step()
            optimizer.zero_grad()
            tally.step()
            if what == "cut_short" and index >= 7:
                break
        if what == "dropped":
            tally.drop()
        elif what == "carried":
            tally.stop()
        else:
            tally.leave_epoch()
        model.eval()
        with torch.no_grad():
            for x in HOW[how](val):
                model(x)
                think(0.02)
    tally.write()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
