"""Run as ``-m package.train``: relative imports, argparse, a main function."""

import argparse

from loop import train
from torch.utils.data import DataLoader

from .data import SAMPLES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    args = parser.parse_args()
    train([DataLoader(SAMPLES, batch_size=args.batch_size)])


if __name__ == "__main__":
    main()
