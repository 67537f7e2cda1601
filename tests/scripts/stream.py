"""IterableDatasets: collated by the loader, or batches that the dataset makes itself; sharded over workers."""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORKERS, OWN_BATCHES = int(sys.argv[1]), sys.argv[2] == "own_batches"


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, count = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 64, count):
            yield torch.ones(index % 5 + 1, 4) if OWN_BATCHES else torch.ones(4)


def main():
    loader = DataLoader(Stream(), batch_size=None if OWN_BATCHES else 6, num_workers=WORKERS)
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    tally = Tally()
    tally.start()
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        think()
        tally.seen(len(x))
        optimizer.step()
        tally.step()
    tally.write()


if __name__ == "__main__":
    main()
