"""What the workers of a loader take for a batch, of a training that never waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from instrument_support import python_named, run, script

TRAIN = """
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
    done = run(tmp_path, script(tmp_path, TRAIN), python=python_named(torch))
    assert done.code == 0, done.err
    assert (done.out, done.err) == ("", "")
    assert 0.02 <= done.rank()["worker_batch_s"] < 0.2  # those of the validation take 0.2 s
