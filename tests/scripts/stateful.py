"""torchdata's StatefulDataLoader: its state is saved in the middle of an epoch and loaded by another loader."""

import argparse
import os

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.nn.parallel import DistributedDataParallel
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
    loader, sampler = make_loader(args, rank, world)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    state = loader.state_dict() if args.asked_early else None
    for epoch in range(3):
        if sampler is not None and not args.no_set_epoch:
            sampler.set_epoch(epoch)
        tally.start()
        for number, (index, x) in enumerate(loader):
            optimizer.zero_grad()
            model(x).mean().backward()
            think()
            tally.seen(len(index) if args.stream else sum(i % world == rank for i in index.tolist()))
            optimizer.step()
            tally.step()
            if args.resume and epoch == 1 and number == 3:
                state = loader.state_dict()
                break
        tally.leave_epoch()
        if args.resume and epoch == 1:
            loader, sampler = make_loader(args, rank, world)
            loader.load_state_dict(state)
    tally.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    for flag in ("--persistent", "--resume", "--stream", "--asked-early", "--no-set-epoch"):
        parser.add_argument(flag, action="store_true")
    assert os.environ["WORLD_SIZE"]
    main(parser.parse_args())
