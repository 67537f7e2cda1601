"""Who gets which sample, and what happens to the images on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import common
from common import World

CPU = torch.device("cpu")


def world(rank: int, size: int) -> World:
    return World(rank, size, CPU)


def numbered(samples: int) -> common.Resident:
    """Inputs that say which sample they are of."""
    return common.Resident(torch.arange(samples).view(-1, 1), torch.arange(samples) % 10, CPU)


def drawn(loader: DataLoader[Any]) -> list[int]:
    return [int(sample) for inputs, _ in loader for sample in inputs]


@pytest.mark.parametrize(("samples", "size", "workers"), [(60, 1, 0), (61, 2, 0), (62, 3, 1)])
def test_an_epoch_has_every_sample_once(samples: int, size: int, workers: int) -> None:
    epochs = []
    for epoch in range(2):
        of_all = []
        for rank in range(size):
            loader = common.train_loader(numbered(samples), 8, world(rank, size), 1, workers)
            common.begin_epoch(loader, epoch)
            of_all.append(drawn(loader))
        assert len({len(mine) for mine in of_all}) == 1
        together = [sample for mine in of_all for sample in mine]
        assert sorted(set(together)) == list(range(samples))
        assert len(together) - samples == -samples % size  # padding
        epochs.append(together)
    assert epochs[0] != epochs[1]


def test_held_out_samples_are_on_one_rank_each() -> None:
    of_all = [drawn(common.test_loader(numbered(50), 7, world(rank, 3), 0)) for rank in range(3)]
    assert sorted(sample for mine in of_all for sample in mine) == list(range(50))


class Crops(Dataset[Any]):
    """As ImageFolder with random crops: each sample draws from torch's global random numbers."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(1), index


def test_worker_processes_draw_the_same_in_an_epoch_whatever_came_before() -> None:
    def crops(loader: DataLoader[Any], epoch: int) -> list[float]:
        common.begin_epoch(loader, epoch)
        return [float(crop) for images, _ in loader for crop in images]

    loader, resumed = (common.train_loader(Crops(), 4, world(0, 1), 1, workers=1) for _ in range(2))
    first = crops(loader, 0)
    second = crops(loader, 1)
    assert second != first
    torch.rand(5)
    assert crops(resumed, 1) == second
