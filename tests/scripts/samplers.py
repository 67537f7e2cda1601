"""Samplers alone and nested, as in the detection references, timm and catalyst; the data need padding."""

import sys

import torch
import torch.distributed as dist
from loop import train
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, SequentialSampler, TensorDataset


class Indices(Dataset):
    """A sampler's indices as a dataset."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __getitem__(self, index):
        return list(self.sampler)[index]


class DistributedSamplerWrapper(DistributedSampler):
    """A sampler that shards another sampler's indices, as catalyst does."""

    def __init__(self, sampler):
        super().__init__(Indices(sampler), shuffle=False)
        self.sampler = sampler

    def __iter__(self):
        self.dataset = Indices(self.sampler)
        return iter([self.dataset[index] for index in super().__iter__()])


class GroupedBatchSampler(BatchSampler):
    """Batches of one group each, as in torchvision's detection references; the remainders come last."""

    def __init__(self, sampler, batch_size):
        super().__init__(sampler, batch_size, drop_last=False)

    def __iter__(self):
        groups = {0: [], 1: []}
        for index in self.sampler:
            group = groups[index // 4 % 2]
            group.append(index)
            if len(group) == self.batch_size:
                yield list(group)
                group.clear()
        yield from filter(None, groups.values())


def make_loader(kind, data, workers):
    sampler = DistributedSampler(data, shuffle=False, drop_last=kind == "sampler_drops")
    if kind == "batches":
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 8, drop_last=False), num_workers=workers)
    if kind == "grouped":
        return DataLoader(data, batch_sampler=GroupedBatchSampler(sampler, 8), num_workers=workers)
    if kind == "wrapper":
        sampler = DistributedSamplerWrapper(SequentialSampler(data))
    elif kind in ("ordered", "repeated"):
        from timm.data.distributed_sampler import OrderedDistributedSampler, RepeatAugSampler

        sampler = OrderedDistributedSampler(data) if kind == "ordered" else RepeatAugSampler(data, selected_round=0)
    return DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)


def main(kind, workers):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    length = 8 * 9 * world + 3  # with two ranks and 147 samples the second one's last is a repetition
    data = TensorDataset(torch.arange(length), torch.randn(length, 4))
    loader = make_loader(kind, data, workers)

    def fresh(batch):
        """Without shuffling the padding is what rank 0 began with.

        What is repeated on purpose, or put in other batches by the script's own rule, counts as it comes.
        """
        index = batch[0]
        return len(index) if kind in ("grouped", "repeated") else sum(i % world == rank for i in index.tolist())

    train((loader, loader), fresh, lambda batch: batch[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
