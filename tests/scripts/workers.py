"""Loader workers: none, forked, spawned; kept between epochs or not; prefetching more or less."""

import argparse

import torch
import torch.multiprocessing
from loop import train
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 62

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def first_five(loader):
    for number, batch in enumerate(loader):
        yield batch
        if number == 4:
            break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn"], default="fork")
    parser.add_argument("--for-all", action="store_true", help="set the start method for the whole process")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cut-short", action="store_true")
    args = parser.parse_args()
    if args.for_all:
        torch.multiprocessing.set_start_method(args.start_method)
    loader = DataLoader(
        Data(),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=None if args.for_all else args.start_method,
        persistent_workers=args.persistent,
        prefetch_factor=args.prefetch,
    )
    train(first_five(loader) if args.cut_short else loader for _ in range(args.epochs))


if __name__ == "__main__":
    main()
