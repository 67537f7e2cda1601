"""DistributedDataParallel with an option: static_graph, or a communication hook."""

import sys

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(option):
    dist.init_process_group("gloo")
    data = torch.randn(160, 4)
    loader = DataLoader(data, batch_size=5, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(4, 1), static_graph=option == "static_graph")
    if option == "comm_hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
