"""Scripts that do not fit under a launcher end at once, with a verdict; processes that are no ranks are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_run import run_script

SCRIPT = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

class Doubled(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.full((4,), float(index))

def train(rank=None, world_size=None):
    if rank is not None:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29517"
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    else:
        dist.init_process_group("gloo")
    data = Doubled()
    loader = DataLoader(data, 4, sampler=DistributedSampler(data), num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

def helper(queue):
    queue.put("helped")

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "SPAWN":
        mp.spawn(train, args=(2,), nprocs=2)
    if how == "EXEC" and "TUNED" not in os.environ:
        os.execvpe(sys.executable, [sys.executable, *sys.argv], {**os.environ, "TUNED": "1"})
    if how == "HELPER":
        context = mp.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=helper, args=(queue,))
        process.start()
        print(queue.get())
        process.join()
        train()
"""


@pytest.mark.parametrize(
    ("how", "verdict", "why", "advice"),
    [
        ("SPAWN", "the script starts its own ranks", "would be rank ", "call the training function itself"),
        ("EXEC", "the script replaces its own process (os.exec)", "os.execve would replace", "workload.env"),
    ],
)
def test_a_script_that_does_not_fit_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, verdict: str, why: str, advice: str
) -> None:
    record = run_script(SCRIPT, tmp_path, monkeypatch, "1x1", args=(how,), launcher="srun")
    assert record.failure is not None
    assert record.failure.verdict == verdict
    assert why in record.failure.why
    assert advice in record.failure.next


def test_processes_that_are_no_ranks_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run_script(SCRIPT, tmp_path, monkeypatch, "1x1", args=("HELPER",), launcher="srun")
    assert record.status == "ok", record.failure
    assert [rank.samples for rank in record.ranks] == [400]
