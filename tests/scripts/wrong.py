"""Two ranks that train correctly or incorrectly: the first argument selects how."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, TensorDataset

STEPS = 24


class Stream(IterableDataset):
    """Samples that differ between ranks, or with ``alike`` the same ones on every rank."""

    def __init__(self, alike):
        self.seed = 0 if alike else dist.get_rank()

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(STEPS * 8):
            yield torch.randn(4, generator=generator), torch.ones(1)


class Buckets(BatchSampler):
    """A sampler whose order cannot be known from outside."""

    def __iter__(self):
        yield from super().__iter__()


def make_data(how):
    torch.manual_seed(7)  # the data are the same on every rank, as files are
    x = torch.randn(2 * STEPS * 8, 4)
    return TensorDataset(x, x[:, :1] if how.startswith("tensor parallel") else torch.ones(2 * STEPS * 8, 1))


def make_loader(how, data):
    if how in ("own stream", "same stream"):
        return DataLoader(Stream(how == "same stream"), batch_size=8), None
    if how in ("no sampler", "tensor parallel, same samples"):
        return DataLoader(data, batch_size=16, shuffle=True), None
    if how == "own seeds":
        torch.manual_seed(dist.get_rank())
        return DataLoader(data, batch_size=16, shuffle=True), None
    sampler = DistributedSampler(data)
    if how.endswith("in buckets"):
        return DataLoader(data, batch_sampler=Buckets(sampler, 8, drop_last=False)), sampler
    return DataLoader(data, batch_size=8, sampler=sampler), sampler


def make_model(how, rank):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    if how == "no ddp":
        torch.manual_seed(rank)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        return model
    if how.startswith("fsdp1"):
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=how == "fsdp1 original")
    if how.startswith("tensor parallel"):
        return parallelize_module(
            model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
        )
    if how == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["2.weight", "2.bias"])
    model = DistributedDataParallel(model)
    if how == "stepped in hooks":
        optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}
        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(lambda own: optimizers[own].step())
    return model


def save():
    dist.barrier()


def train(loader, how, rank, model, optimizer):
    for index, (x, y) in enumerate(loader):
        if how == "breaks early" and rank == 1 and index == 13:
            break
        if how == "waits elsewhere" and rank == 1 and index == 13:
            dist.broadcast(torch.zeros(3), src=0)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if how != "stepped in hooks":
            optimizer.step()


def main(how, epochs):
    dist.init_process_group("gloo", timeout=timedelta(seconds=10 if how == "waits elsewhere" else 120))
    rank = dist.get_rank()
    data = make_data(how)
    loader, sampler = make_loader(how, data)
    model = make_model(how, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e38 if how == "nan" else 0.01)
    for epoch in range(epochs):
        if sampler is not None and not how.startswith("no set_epoch"):
            sampler.set_epoch(0 if how == "one epoch for all" else epoch)
        train(loader, how, rank, model, optimizer)
    if how == "saves on rank 0" and rank == 0:
        save()
    if how not in ("breaks early", "saves on rank 0"):
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(os.environ.get("EPOCHS", "1")))
    sys.stdout.flush()
    os._exit(0)  # quicker than to take the interpreter down, and it is recorded all the same
