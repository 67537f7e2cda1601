"""Batches of many shapes, one after the other: from a sampler's indices, or made by the dataset itself.

The size of a batch that a dataset makes can only be read from the batch, so misleading kinds are not used there.
"""

import sys
from collections import namedtuple
from dataclasses import dataclass

import torch
from loop import train
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

LENGTH, BATCH = 27, 6
Pair = namedtuple("Pair", "weight x")


@dataclass
class Record:
    name: str
    x: torch.Tensor


class Graphs:
    """Graphs of different sizes, their nodes in one tensor, as graph libraries batch them."""

    def __init__(self, graphs):
        self.num_graphs = len(graphs)
        self.x = torch.cat(graphs)


def stacked(items):
    return torch.stack([item[0] for item in items])


SHAPES = {
    "tensor": stacked,
    "tuple": lambda items: (stacked(items), torch.zeros(len(items))),
    "dict": lambda items: {"ids": stacked(items), "mask": None},
    "nested": lambda items: ("train", {"views": [{"left": stacked(items)}, {"right": stacked(items)}]}),
    "named": lambda items: Pair(torch.tensor(1.0), stacked(items)),
    "object": lambda items: Record("train", stacked(items)),
    "graph": Graphs,
    "packed": lambda items: pack_sequence(sorted(items, key=len, reverse=True)),
    "images": tuple,  # of different sizes: a tuple of tensors, as detection has them
    "text": lambda items: [f"sample {item[0, 0]}" for item in items],
    "transposed": lambda items: stacked(items).T,
}
MISLEAD = ("images", "text", "transposed")
INPUTS = {
    "tensor": lambda batch: batch,
    "tuple": lambda batch: batch[0],
    "dict": lambda batch: batch["ids"],
    "nested": lambda batch: batch[1]["views"][0]["left"],
    "named": lambda batch: batch.x,
    "object": lambda batch: batch.x,
    "graph": lambda batch: batch.x,
    "packed": lambda batch: batch.data,
    "images": torch.cat,
    "text": lambda batch: torch.ones(1, 4),
    "transposed": lambda batch: batch.T,
}


class Data(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return torch.full((3 + index % 4, 4), float(index))


class OwnBatches(IterableDataset):
    def __init__(self, kind):
        self.kind = kind

    def __iter__(self):
        data = Data()
        for first in range(0, LENGTH, BATCH):
            yield SHAPES[self.kind]([data[index] for index in range(first, min(first + BATCH, LENGTH))])


def make_loader(kind, made_by, workers):
    if made_by == "dataset":
        return DataLoader(OwnBatches(kind), batch_size=None, num_workers=workers)
    return DataLoader(Data(), batch_size=BATCH, shuffle=True, collate_fn=SHAPES[kind], num_workers=workers)


class Left:
    """Counts the samples of a kind's batches, of which the last one is smaller."""

    def __init__(self):
        self.left = LENGTH

    def __call__(self, batch):
        count = min(BATCH, self.left)
        self.left = self.left - count or LENGTH
        return count


def main(made_by, workers, kinds):
    kinds = kinds or [kind for kind in SHAPES if made_by == "indices" or kind not in MISLEAD]
    running = []

    def epochs():
        for kind in kinds:
            running[:] = [kind]
            yield make_loader(kind, made_by, workers)

    train(epochs(), Left(), lambda batch: INPUTS[running[0]](batch))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
