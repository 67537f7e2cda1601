"""A script that starts its own ranks with torch.multiprocessing, as scripts before torchrun and notebooks do."""

import sys

import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


if __name__ == "__main__":
    mp.start_processes(worker, args=(1,), nprocs=1, start_method=sys.argv[1])
