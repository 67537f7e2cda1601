"""A script that starts its own ranks with torch.multiprocessing, as scripts before torchrun and notebooks do."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tally import Tally, think
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def worker(rank, world_size, length):
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    data = torch.randn(length, 4)
    loader = DataLoader(data, batch_size=5, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
    if "fail" in sys.argv:
        raise RuntimeError("out of coffee")
    dist.destroy_process_group()


if __name__ == "__main__":
    start_method, world_size = sys.argv[1], int(sys.argv[2])
    arguments = (world_size, 60 * world_size)
    if start_method == "spawn":
        mp.spawn(worker, args=arguments, nprocs=world_size)
    else:
        mp.start_processes(worker, args=arguments, nprocs=world_size, start_method=start_method)
    print("all ranks are done")
