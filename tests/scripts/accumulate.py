"""Gradient accumulation under DDP, with and without no_sync; the last accumulation of an epoch is shorter."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tally import Tally, think
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(no_sync):
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(210, 8), torch.randint(0, 3, (210,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=5, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tally = Tally()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        tally.start()
        for index, (x, y) in enumerate(loader):
            is_last = index % 4 == 3 or index == len(loader) - 1
            with contextlib.nullcontext() if is_last or not no_sync else model.no_sync():
                F.cross_entropy(model(x), y).backward()
            think(0.003)
            tally.seen(len(x))
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                tally.step()
        tally.leave_epoch()
    tally.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(no_sync=sys.argv[1] == "no_sync")
