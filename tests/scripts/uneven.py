"""A dataset that neither the batch size nor the world size divides: padding, a smaller last batch, drop_last."""

import argparse
import os

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--drop-last", action="store_true")
    parser.add_argument("--sampler-drops", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    length = 8 * 9 * world + 3  # with two ranks and 147 samples the second one's last is a repetition
    data = TensorDataset(torch.arange(length), torch.randn(length, 4))
    sampler = DistributedSampler(data, shuffle=False, drop_last=args.sampler_drops)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=args.drop_last)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        tally.start()
        seen = set()
        for index, x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            think()
            # Without shuffling the padding is what rank 0 began with.
            fresh = [i for i in index.tolist() if i % world == rank and i not in seen]
            seen.update(fresh)
            tally.seen(len(fresh))
            optimizer.step()
            tally.step()
        tally.leave_epoch()
    tally.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    assert os.environ["WORLD_SIZE"]
    main()
