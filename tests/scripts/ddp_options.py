"""DistributedDataParallel with options: static_graph, find_unused_parameters, a communication hook, gradient views."""

import sys

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.sometimes = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x, both):
        return self.used(x) + self.sometimes(x) if both else self.used(x)


def main(option):
    dist.init_process_group("gloo")
    data = torch.randn(160, 4)
    loader = DataLoader(data, batch_size=5, sampler=DistributedSampler(data))
    options = {
        "static_graph": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
        "views": {"gradient_as_bucket_view": True, "broadcast_buffers": False},
    }
    model = DistributedDataParallel(Branches(), **options.get(option, {}))
    if option == "comm_hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    tally.start()
    for index, x in enumerate(loader):
        optimizer.zero_grad()
        model(x, both=option != "unused" or index % 2 == 0).mean().backward()
        think()
        tally.seen(len(x))
        optimizer.step()
        tally.step()
    tally.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
