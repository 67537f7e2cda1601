"""Real training scripts of one process: what they print, warn and raise, degraded torch, the loaders' workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from instrument_support import python_named, run, run_plainly, script

FAILING = """
    import random
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            yield from torch.randn(10, 4)
        def __len__(self):
            return 8

    class Broken(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            if index == 6:
                raise LookupError(f"sample {index}")
            return torch.ones(4)

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def train(loader):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()

    stream = DataLoader(Stream(), batch_size=4, pin_memory=True)
    print(len(stream))
    train(stream)
    print([p.tolist() for p in model.parameters()], torch.get_rng_state().sum(), random.random(), np.random.rand())
    train(DataLoader(Broken(), batch_size=4))
"""


@pytest.mark.parametrize("torch", ["newest", "oldest"])
def test_warnings_numbers_and_tracebacks_are_the_same(tmp_path: Path, torch: str) -> None:
    train, python = script(tmp_path, FAILING), python_named(torch)
    plain, measured = run_plainly(tmp_path, train, python=python), run(tmp_path, train, python=python)
    assert "LookupError: sample 6" in plain.err
    assert "UserWarning" in plain.err or torch == "oldest"  # which does not mind pinned memory without a GPU
    assert (measured.code, measured.out, measured.err) == (1, plain.out, plain.err)
    record = measured.rank()
    assert [row["samples"] for row in measured.rows()] == [4, 4, 2, 4]
    assert (record["world_size"], record["backend"], record["ddp"]) == (1, None, None)
    assert record["loader"]["dataset_size"] == 8
    assert record["parameters"]["count"] == 5
    assert record["exception"] == "LookupError: sample 6"


WITHOUT = """
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import dataloader

    del DistributedDataParallel._get_ddp_logging_data
    del DistributedDataParallel._set_ddp_runtime_logging_sample_rate
    del dataloader._MultiProcessingDataLoaderIter._next_data
    del dataloader._BaseDataLoaderIter._next_data
"""
SMALL = """
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    meet = "file://" + __file__ + ".meet"
    dist.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for x in DataLoader(torch.randn(12, 4), batch_size=4):
            optimizer.zero_grad()
            model(x).sum().backward()
            try:
                optimizer.step()
            except SystemExit:
                print("not yet")
                raise
"""


def test_missing_private_parts_are_said(tmp_path: Path) -> None:
    # Imported before instrument.py starts: its hooks also come when torch is already there.
    script(tmp_path / "site", WITHOUT, "sitecustomize.py")
    env = {"PYTHONPATH": str(tmp_path / "site")}
    done = run(tmp_path, script(tmp_path, SMALL), env=env, max_steps=20)
    assert (done.code, done.out) == (0, "not yet\n"), done.err
    record = done.rank()
    assert record["steps"]["count"] == 20
    assert record["ended_by"] == "max_steps"
    reasons = "\n".join(record["not_measured"])
    assert "samples, data_wait_s: AttributeError: type object '_MultiProcessingDataLoaderIter'" in reasons
    assert "ddp: DistributedDataParallel._get_ddp_logging_data is missing" in reasons
    assert record["ddp"]["exposed_comm_s"] is None
    assert record["parameters"]["count"] == 5


WORKERS = """
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __init__(self, batch_s, batches):
            self.batch_s, self.batches = batch_s, batches

        def __len__(self):
            return 2 * self.batches

        def __getitem__(self, index):
            time.sleep(self.batch_s / 2)
            return torch.ones(2)

    def main():
        train = DataLoader(Slow(0.02, 12), batch_size=2, num_workers=2)
        val = DataLoader(Slow(0.2, 4), batch_size=2, num_workers=2)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(2):
            for x in train:
                time.sleep(0.03)
                model(x).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for x in val:
                    model(x)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("torch", ["newest", "oldest"])
def test_the_time_of_a_batch_is_that_of_the_workers_of_the_training(torch: str, tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, WORKERS), python=python_named(torch))
    assert done.code == 0, done.err
    assert (done.out, done.err) == ("", "")
    assert 0.02 <= done.rank()["worker_batch_s"] < 0.2  # those of the validation take 0.2 s
