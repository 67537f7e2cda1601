"""Batches of many shapes."""

import sys
from collections import namedtuple
from dataclasses import dataclass

import torch
from tally import Tally, think
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
WORKERS = int(sys.argv[2])
LENGTH, BATCH = 99, 6
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


class Data(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return torch.full((3 + index % 4, 4), float(index))


def collate(items):
    x = torch.stack([item[0] for item in items])
    return {
        "tensor": x,
        "tuple": (x, torch.zeros(len(items))),
        "dict": {"ids": x, "mask": None},
        "nested": ("train", {"views": [{"left": x}, {"right": x}]}),
        "named": Pair(torch.tensor(1.0), x),
        "object": Record("train", x),
        "graph": Graphs(items),
        "images": tuple(items),  # of different sizes: a tuple of tensors, as detection has them
        "packed": pack_sequence(sorted(items, key=len, reverse=True)),
        "text": [f"sample {item[0, 0]}" for item in items],
        "transposed": x.T,
    }[KIND]


def size_and_input(batch):
    if KIND == "text":
        return len(batch), torch.ones(1, 4)
    if KIND == "images":
        return len(batch), torch.cat(batch)
    if KIND == "graph":
        return batch.num_graphs, batch.x
    if KIND == "packed":
        return len(batch.unsorted_indices) if batch.unsorted_indices is not None else int(
            batch.batch_sizes[0]
        ), batch.data
    if KIND == "transposed":
        return batch.shape[1], batch.T
    x = {
        "tensor": lambda: batch,
        "tuple": lambda: batch[0],
        "dict": lambda: batch["ids"],
        "nested": lambda: batch[1]["views"][0]["left"],
        "named": lambda: batch.x,
        "object": lambda: batch.x,
    }[KIND]()
    return len(x), x


def main():
    loader = DataLoader(Data(), batch_size=BATCH, shuffle=True, collate_fn=collate, num_workers=WORKERS)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    tally = Tally()
    tally.start()
    for batch in loader:
        size, x = size_and_input(batch)
        optimizer.zero_grad()
        model(x).mean().backward()
        think()
        tally.seen(size)
        optimizer.step()
        tally.step()
    tally.write()


if __name__ == "__main__":
    main()
