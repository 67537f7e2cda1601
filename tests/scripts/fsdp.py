"""FSDP2: parameters, gradients and optimizer state sharded over the ranks with fully_shard."""

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    data = torch.randn(160, 16)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tally = Tally()
    tally.start()
    for x in loader:
        model(x).square().mean().backward()
        think()
        tally.seen(len(x))
        optimizer.step()
        optimizer.zero_grad()
        tally.step()
    tally.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
