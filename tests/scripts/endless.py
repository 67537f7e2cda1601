"""Endless training, each rank at its own pace: accumulation with a remainder per epoch, and a clean-up at the end."""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="no DDP: nothing keeps the ranks together")
    parser.add_argument("--critic", action="store_true", help="a second optimizer")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = torch.randn(90, 4)
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=rank)
    loader = DataLoader(data, batch_size=3, sampler=sampler, num_workers=args.workers)

    def wrapped():
        layer = torch.nn.Linear(4, 1)
        return layer if args.alone else DistributedDataParallel(layer)

    models = [wrapped() for _ in range(2 if args.critic else 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    try:
        while True:
            for index, x in enumerate(loader):
                time.sleep(0.002 * (1 + 2 * rank))
                for model in models:
                    model(x).mean().backward()
                if index % args.accumulate == args.accumulate - 1:
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
    finally:
        dist.barrier()
        sys.stdout.write(f"cleaned up {rank}\n")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
