"""Gradient accumulation under DDP, with no_sync or another option; the last accumulation of an epoch is shorter."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tally import Tally, think
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(option):
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(210, 8), torch.randint(0, 3, (210,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=5, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 3), static_graph=option == "static_graph")
    if option == "comm_hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tally = Tally()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        tally.start()
        for index, (x, y) in enumerate(loader):
            is_last = index % 4 == 3 or index == len(loader) - 1
            with model.no_sync() if option == "no_sync" and not is_last else contextlib.nullcontext():
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
    main(sys.argv[1])
