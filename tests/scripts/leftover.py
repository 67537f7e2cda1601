"""Batches at the end of an epoch that do not fill an accumulation: dropped in several ways, carried over, stepped."""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE, BATCHES = 4, 14


def main(what):
    data = TensorDataset(torch.randn(4 * BATCHES, 4))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()

    def backward(x):
        model(x).mean().backward()
        think(0.004)

    def step():
        optimizer.step()
        tally.step()

    for _ in range(4):
        if what == "zero_grad":
            optimizer.zero_grad()
        tally.start()
        for index, (x,) in enumerate(loader):
            tally.seen(len(x))
            if what == "at_begin" and index % ACCUMULATE == 0:
                optimizer.zero_grad()
            if what == "carried" and not tally.pending:
                optimizer.zero_grad()
            backward(x)
            whole = tally.pending == 4 * ACCUMULATE
            if whole or (what == "stepped" and index == BATCHES - 1):
                step()
                if what != "at_begin":
                    optimizer.zero_grad()
        if what == "stepped_after" and tally.pending:
            think(0.02)
            step()
            optimizer.zero_grad()
        if what == "carried":
            tally.stop()
        elif what in ("stepped", "stepped_after"):
            tally.leave_epoch()
        else:
            tally.drop()
        think(0.02)  # a checkpoint
    tally.write()


if __name__ == "__main__":
    main(sys.argv[1])
