"""webdataset's WebLoader: what the DataLoader inside yields fills a buffer, is shuffled and batched again."""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import IterableDataset, get_worker_info
from webdataset.compat import WebLoader

KIND, WORKERS = sys.argv[1], int(sys.argv[2])


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id if info else 0, 330, info.num_workers if info else 1):
            yield torch.tensor([index]), torch.randn(4)


def make_loader():
    loader = WebLoader(Stream(), batch_size=8, num_workers=WORKERS)
    if KIND == "plain":
        return loader
    loader = loader.unbatched().shuffle(100).batched(12)
    return loader.with_epoch(16) if KIND == "cut_short" else loader


def main():
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    loader = make_loader()
    for _ in range(2):
        tally.start()
        for _, x in loader:
            model(x).square().mean().backward()
            think()
            tally.seen(len(x))
            optimizer.step()
            optimizer.zero_grad()
            tally.step()
        tally.leave_epoch()
    tally.write()


if __name__ == "__main__":
    main()
