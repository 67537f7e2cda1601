"""Loader workers, forked or spawned, so many of them, for so many epochs; perhaps persistent: kept between epochs."""

import sys

import torch
from loop import train
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 62

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def main(method, workers, epochs, *kept):
    workers = {"num_workers": int(workers), "multiprocessing_context": method, "persistent_workers": bool(kept)}
    loader = DataLoader(Data(), batch_size=8, shuffle=True, prefetch_factor=4, **workers)
    train(loader for _ in range(int(epochs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
