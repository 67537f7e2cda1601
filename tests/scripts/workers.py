"""Loader workers: none, forked, spawned; kept between epochs or not; prefetching more or less."""

import argparse

import torch
from loop import train
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 62

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn"], default="fork")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    loader = DataLoader(
        Data(),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.start_method,
        persistent_workers=args.persistent,
        prefetch_factor=args.prefetch,
    )
    train(loader for _ in range(args.epochs))


if __name__ == "__main__":
    main()
