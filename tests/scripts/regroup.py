"""A script that leaves the process group, makes a new one, and then trains a new model."""

import os

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(tally, epochs):
    data = torch.randn(80, 4)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        tally.start()
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            think(0.006)
            tally.seen(len(x))
            optimizer.step()
            tally.step()
        tally.leave_epoch()


if __name__ == "__main__":
    tally = Tally()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # One store for every group: another rank may still be leaving the group before.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=rank == 0)
    for epochs in (1, 2, 40):
        dist.init_process_group("gloo", store=dist.PrefixStore(f"group{epochs}", store), rank=rank, world_size=size)
        train(tally, epochs if epochs < 40 else 1)
        dist.destroy_process_group()
    tally.write()
