"""torchdata's StatefulDataLoader, with workers, with a stream, and asked for its state before the first epoch."""

import argparse

import torch
import torch.distributed as dist
from loop import train
from torch.utils.data import IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


class Stream(IterableDataset):
    """A dataset without a state: the loader iterates over it again up to its position."""

    def __init__(self, rank, length):
        self.rank, self.length = rank, length

    def __iter__(self):
        for index in range(self.length):
            yield torch.tensor(2 * index + self.rank), torch.ones(4)


def make_loader(args, rank, world):
    workers = {"num_workers": args.workers, "persistent_workers": args.persistent}
    if args.stream:
        return StatefulDataLoader(Stream(rank, 8 * 9), batch_size=8, **workers), None
    length = 8 * 9 * world + 3  # with two ranks and 147 samples the second one's last is a repetition
    data = TensorDataset(torch.arange(length), torch.randn(length, 4))
    sampler = StatefulDistributedSampler(data, shuffle=False)
    return StatefulDataLoader(data, batch_size=8, sampler=sampler, **workers), sampler


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def epochs():
        loader, sampler = make_loader(args, rank, world)
        if args.asked_early:
            loader.state_dict()
        for epoch in range(3):
            if sampler is not None and not args.no_set_epoch:
                sampler.set_epoch(epoch)
            yield loader

    def fresh(batch):
        return len(batch[0]) if args.stream else sum(i % world == rank for i in batch[0].tolist())

    train(epochs(), fresh, lambda batch: batch[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    for flag in ("--persistent", "--stream", "--asked-early", "--no-set-epoch"):
        parser.add_argument(flag, action="store_true")
    main(parser.parse_args())
