"""Samplers that pad, drop or repeat, alone and in batches, or deal out batches; the data need padding."""

import sys

import torch
import torch.distributed as dist
from loop import train
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, TensorDataset


class DealsBatches(DistributedSampler):
    """As speechbrain's DistributedSamplerWrapper."""

    def __init__(self, sampler, **options):
        super().__init__(sampler, **options)
        self.sampler = sampler

    def __iter__(self):
        batches = list(self.sampler)
        return iter([batches[index] for index in super().__iter__()])


def make_loader(kind, data, workers):
    sampler = DistributedSampler(data, shuffle=False, drop_last=kind == "sampler_drops")
    if kind == "batches":
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 8, drop_last=False), num_workers=workers)
    if kind == "dealt":
        dealt = DealsBatches(BatchSampler(SequentialSampler(data), 8, drop_last=False), shuffle=False)
        return DataLoader(data, batch_sampler=dealt, num_workers=workers)
    if kind in ("ordered", "repeated"):
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
        """Without shuffling the padding is what rank 0 began with. What is repeated on purpose counts as it comes."""
        index = batch[0] // 8 if kind == "dealt" else batch[0]
        return len(index) if kind == "repeated" else sum(i % world == rank for i in index.tolist())

    train((loader, loader), fresh, lambda batch: batch[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
