"""Batches that another thread draws: DataLoaderX, a BackgroundGenerator around it, a pool of threads."""

import sys
import threading
import time
from multiprocessing.pool import ThreadPool

import torch
from prefetch_generator import BackgroundGenerator
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, Dataset

BATCHES, PER_SAMPLE_S = 11, 0.004


class Slow(Dataset):
    """A dataset in which a batch of four takes some time, but less than a step."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(PER_SAMPLE_S)
        return torch.full((4,), float(index))


class DataLoaderX(DataLoader):
    def __iter__(self):
        return BackgroundGenerator(super().__iter__(), max_prefetch=3)


def one_ahead(loader):
    """A loader like those that copy the next batch to the GPU while the script computes."""
    batch = None
    for following in loader:
        if batch is not None:
            yield batch
        batch = following
    yield batch


def by_pool(loader):
    """A handover that the instrument cannot see: no queue.Queue."""
    with ThreadPool(1) as pool:
        iterator = iter(loader)
        while (batch := pool.apply(next, (iterator, None))) is not None:
            yield batch


HOW = {
    "itself": lambda loader: loader,  # the main thread only waits
    "subclass": lambda loader: loader,
    "around": BackgroundGenerator,
    "around_two": lambda loader: BackgroundGenerator(BackgroundGenerator(loader), max_prefetch=2),
    "around_one_ahead": lambda loader: BackgroundGenerator(one_ahead(loader)),
    "pool": by_pool,
}


def main(how, accumulate, cut_short, think_s):
    kind = DataLoaderX if how == "subclass" else DataLoader
    loader = kind(Slow(4 * BATCHES - 1), batch_size=4)
    val = kind(Slow(8), batch_size=4)
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    tally = Tally()
    for _ in range(3):
        tally.start(apart=True)  # the threads start at some time after that, on a busy machine
        for index, x in enumerate(tally.waiting_for(HOW[how](loader))):
            model(x).mean().backward()
            think(think_s)
            tally.seen(len(x))
            if index % accumulate == accumulate - 1 or index == BATCHES - 1:
                optimizer.step()
                optimizer.zero_grad()
                tally.step()
            if cut_short and index == 7:
                break
        tally.leave_epoch()
        think(0.2)  # a checkpoint
        with torch.no_grad():
            for x in HOW[how](val):
                model(x)
                think()
    tally.write()


if __name__ == "__main__":
    # The thread that draws may otherwise run for 5 ms between this script's stopwatch and the instrument's.
    sys.setswitchinterval(1e-4)
    words = sys.argv[1], int(sys.argv[2]), "cut_short" in sys.argv, float(sys.argv[3])
    if sys.argv[1] == "itself":
        trains = threading.Thread(target=main, args=words)
        trains.start()
        trains.join()
    else:
        main(*words)
