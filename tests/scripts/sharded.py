"""Parameters sharded over the ranks (FSDP1, FSDP2, tensor parallelism), or replicated as DTensors."""

import sys

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler


def fsdp1(model, mesh, how):
    return FullyShardedDataParallel(
        model,
        device_id=torch.device("cpu"),
        use_orig_params=how != "flat",
        sharding_strategy=ShardingStrategy.NO_SHARD if how == "not_sharded" else ShardingStrategy.FULL_SHARD,
    )


def fsdp2(model, mesh, how):
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def tensor_parallel(model, mesh, how):
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def replicated(model, mesh, how):
    def of_all_ranks(module, inputs, mesh):
        return tuple(DTensor.from_local(x, mesh, [Replicate()]) for x in inputs)

    return distribute_module(model, mesh, input_fn=of_all_ranks)


KINDS = {"fsdp1": fsdp1, "fsdp2": fsdp2, "tensor_parallel": tensor_parallel, "replicated": replicated}


def main(kind, how=""):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    data = torch.randn(160, 16)
    # Ranks with parts of a layer work on the same samples.
    sampler = DistributedSampler(data) if kind.startswith("fsdp") else None
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = KINDS[kind](model, mesh, how)
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
    main(*sys.argv[1:])
