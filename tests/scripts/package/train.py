"""Run as ``-m package.train``: relative imports, argparse, a main function."""

import argparse

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

from .data import SAMPLES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    tally = Tally()
    tally.start()
    for x in DataLoader(SAMPLES, batch_size=args.batch_size):
        model(x).mean().backward()
        think()
        tally.seen(len(x))
        optimizer.step()
        tally.step()
    tally.write()


if __name__ == "__main__":
    main()
