"""Scripts that only claim to go on, or do so in a way of their own, really started twice: what the rehearsal finds."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_ladder.common.findings import Finding
from ddp_ladder.production.rehearsal import VERDICTS
from one_run import Here

SCRIPT = """
import os, signal, sys, time, torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel

how, folder = sys.argv[1], Path(sys.argv[2])
folder.mkdir(exist_ok=True)
told = torch.zeros(1)


if how != "ignores":
    signal.signal(signal.SIGUSR1, lambda *_: told.fill_(1))
dist.init_process_group("gloo")
rank, done = dist.get_rank(), 0
model = torch.nn.Linear(16, 16)
if how == "shards":
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def save():
    if how == "shards":
        state = dict(zip(parts, get_state_dict(model, optimizer)))
        checkpoint.save({**state, "scheduler": scheduler.state_dict()}, checkpoint_id=folder / "shards")
    elif rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "done": done}, folder / "partial")
        os.replace(folder / "partial", folder / f"rank{rank}.pt")
    dist.barrier()


files = [*folder.glob(f"rank{rank}.pt" if how == "own" else "*.pt")]
if files:
    state = torch.load(files[0])
    done = state["done"]
    for name in parts:
        parts[name].load_state_dict(state[name])
if (folder / "shards").exists():
    state = dict(zip(parts, get_state_dict(model, optimizer)))  # it makes a step, for an optimizer state to load into
    state["scheduler"] = scheduler.state_dict()
    checkpoint.load(state, checkpoint_id=folder / "shards")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
dist.barrier()
for step in range(1, 1_000_000):
    optimizer.zero_grad()
    loss = (model(torch.ones(8, 16)) - torch.arange(16.0)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    done += 1
    if rank == 0:
        print(f"step {done} loss: {loss.item():.4f}", flush=True)
    if how == "ignores" and done % 5 == 0:
        save()
    if how in ("ignores", "zero"):
        time.sleep(0.02)
        if files and step == 5:  # the second start has shown where it goes on
            sys.exit(75)
    elif step == 18 and rank == 1:  # when the signal comes
        os.kill(os.getpid(), signal.SIGUSR1)
    all_told = told.clone()
    dist.all_reduce(all_told)
    if all_told.item():
        save()
        sys.exit(0 if how == "zero" else 75)
"""


EACH_S = 40.0  # of a start by time: on a busy machine the imports alone may take half of it


def rehearsed(here: Here, how: str, **options: Any) -> tuple[Finding, ...]:
    return here.rehearsed(SCRIPT, how, str(here.path / "saved"), **options)


@pytest.mark.parametrize(
    ("how", "verdict", "why"),
    [
        ("shards", "passed", "the second start goes on where the first one ended, at step 18 (ranks 0, 1)"),
        ("own", "failed", "on some ranks only: rank 0 goes on where it ended (step 18); rank 1 starts from the beginn"),
    ],
)
def test_a_script_that_saves_at_the_signal(here: Here, how: str, verdict: str, why: str) -> None:
    found, *_ = rehearsed(here, how)
    assert (VERDICTS[found.severity], why in found.measured) == (verdict, True), found


def test_a_script_that_ignores_the_signal_and_saves_at_intervals_goes_on(here: Here) -> None:
    found, start, *_ = rehearsed(here, "ignores", each_s=EACH_S, warn_before_s=2.0)
    assert (VERDICTS[found.severity], "how many steps are lost is not known" in found.measured) == ("passed", True), (
        found
    )
    assert "no rank had a handler of SIGUSR1" in start.measured


def test_exit_code_0_at_the_signal_would_be_taken_for_the_end_of_the_training(here: Here) -> None:
    found, *_ = rehearsed(here, "zero", each_s=EACH_S)
    assert (VERDICTS[found.severity], "exit code 0 at the signal" in found.measured) == ("failed", True), found
