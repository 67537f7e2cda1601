"""One rank validates or saves while the others wait for it, with real ranks: the truth is the script's own clock."""

from __future__ import annotations

import re

import pytest
from ddp_ladder.measuring.owners import BESIDE, ELSE, SAVING, VALIDATION
from ddp_ladder.records.record import Record
from one_run import Here

EVERY, STEPS, PAUSE_S = 40, 160, 0.5
SCRIPT = f"""
import io, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

kind = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def data(samples):
    return TensorDataset(torch.randn(samples, 16), torch.randint(0, 4, (samples,)))


class Slow:
    def __reduce__(self):
        time.sleep({PAUSE_S})
        return (list, ())


def validate():
    model.eval()
    for x, _ in val if rank == 0 else []:
        time.sleep({PAUSE_S} / len(val))
        model.module(x)
    model.train()


@torch.no_grad()
def sample():
    time.sleep({PAUSE_S})
    model.module(torch.randn(8, 16))


def pause():
    if kind == "validate" and rank == 0:
        validate()
    if kind == "save" and rank == 0:
        torch.save([model.state_dict(), Slow()], io.BytesIO())
    if kind in ("sample", "sample, then a barrier") and rank == 0:
        sample()
    if kind not in ("validate", "sample"):  # where there is no barrier, the others wait in the next step
        dist.barrier()


model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
more = 20 * rank if kind == "join" else 0
train, val = DataLoader(data(8 * ({STEPS} + more)), batch_size=8), DataLoader(data(40), batch_size=8)


def loop():
    begun, paused_s = time.monotonic(), 0.0
    for step, (x, y) in enumerate(train, start=1):
        time.sleep(0.01)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == {EVERY}:
            begun, paused_s = time.monotonic(), 0.0
        if step % {EVERY} == 0 and step < {STEPS} and kind != "join":
            pause_begun = time.monotonic()
            pause()
            paused_s += time.monotonic() - pause_begun
    if rank == 0:
        print("own rate", ({STEPS} - {EVERY}) * 8 * world / (time.monotonic() - begun - paused_s), flush=True)


if kind == "join":
    with model.join():
        loop()
else:
    loop()
dist.destroy_process_group()
"""
DOES = {
    "validate": ("validates", VALIDATION),
    "save": ("saves", SAVING),
    "sample": (ELSE, BESIDE),
    "sample, then a barrier": (ELSE, BESIDE),
}
KINDS = (*DOES, "join")


@pytest.fixture
def runs(here: Here) -> dict[str, tuple[Record, float]]:
    """Return the record and the rate by the script's own clock of each kind."""
    changes = [{"args": (kind,), "variant": re.sub(r"\W+", "-", kind), "warmup_steps": EVERY} for kind in KINDS]
    records = here.runs(SCRIPT, "1x2", changes)
    logs = [here.directory(record.spec).log.read_text() for record in records]
    rates = [float(found[1]) if (found := re.search(r"own rate ([0-9.]+)", log)) else 0.0 for log in logs]
    return dict(zip(KINDS, zip(records, rates, strict=True), strict=True))


def test_what_one_rank_does_alone_is_in_no_step_and_the_rank_is_named(runs: dict[str, tuple[Record, float]]) -> None:
    for kind, (record, rate) in runs.items():
        assert (kind, record.status, record.failure) == (kind, "ok", None)
        assert record.throughput
        assert record.timing
        # With the pauses it would be less than half. Other tests beside this one may hold up a rank.
        assert record.throughput.samples_per_s_total == pytest.approx(rate, rel=0.25), kind
        assert sum(record.owners_s.values()) == pytest.approx(record.timing.wall_s, rel=0.01), kind
        said = {remark.kind: remark.measured for remark in record.remarks}
        if kind == "join":
            assert "20 of rank 1" in said["uneven inputs"]
            continue
        does, owner = DOES[kind]
        assert said["one rank alone"].startswith(f"rank 0 {does} "), (kind, said)
        assert record.owners_s[owner] == pytest.approx(3 * PAUSE_S, rel=0.1), kind
