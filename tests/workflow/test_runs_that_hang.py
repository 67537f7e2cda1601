"""Runs that hang, really: the hang watch ends them, and the verdict names the rank that the others waited for."""

from __future__ import annotations

import os
import pickle
import re
import socket
from typing import Any

import psutil
from ddp_ladder.records.record import Record
from ddp_ladder.settings.keys import Hang
from one_run import Here, failure_of

HOST = socket.gethostname()
BOUNDS = Hang(times_median_step=10.0, at_least_s=4.0, first_step_s=60.0)
LATE = BOUNDS.replace(first_step_s=1800)
# For a run that is no hang: ranks that wait for a processor are not silent for so long, and the pauses are longer.
PATIENT = BOUNDS.replace(at_least_s=8.0)
LONG_PAUSE_S, PAUSE_S = 12.0, 6.0
ENDS = {"sleep": "srun", "thread": "torchrun"}
RECORDER = {"TORCH_FR_BUFFER_SIZE": "100"}
SCRIPT = f"""
import os, signal, sys, threading, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

def wait_for_ever():
    time.sleep(10_000)

def feed():
    raise ValueError("no more shards")

def save_checkpoint():
    time.sleep({LONG_PAUSE_S})

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

how, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo")
model, data = DistributedDataParallel(torch.nn.Linear(4, 1)), torch.randn(400, 4)
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for index, x in enumerate(loader):
        if index == 20 and rank == 1 and how == "stop":
            stop()
        if index == 20 and rank == 1 and how == "wait":
            threading.Thread(target=feed).start()
            wait_for_ever()
        if index == 20 and rank == 0 and epoch == 1 and how == "validate":
            save_checkpoint()
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    if rank == 0 and epoch == 0 and how == "validate":  # rank 1 waits for this one in the first step of its next epoch
        model.eval()
        time.sleep({LONG_PAUSE_S})
        model.train()
if rank == 1 and how == "sleep":
    wait_for_ever()
if rank == 1 and how == "thread":
    threading.Thread(target=wait_for_ever).start()
"""


def run(here: Here, script: str, scale: str, *runs: dict[str, Any], **options: Any) -> list[Record]:
    """Run the script in one job of this scale, once for each of these changes; nothing is left behind."""
    records = here.runs(script, scale, runs, **{"hang": BOUNDS, **options})
    assert psutil.Process().children(recursive=True) == []
    assert list(here.path.rglob("*.heartbeat")) == []
    return records


def test_a_stopped_rank_is_named_and_the_next_run_with_its_pauses_is_no_hang(here: Here) -> None:
    launchers = {"stop": "torchrun", "validate": "srun"}
    variants = [{"variant": how, "args": (how,), "launcher": launcher} for how, launcher in launchers.items()]
    stopped, well = run(here, SCRIPT, "1x2", *variants, hang=PATIENT)
    failure = failure_of(stopped)
    assert failure.verdict == "a rank was stopped"
    assert failure.why.startswith(f"rank 1 (node 0, {HOST}): its process ")
    assert "rank 0 waited in backward()" in failure.why
    assert (well.failure, len(well.ranks)) == (None, 2)
    assert list(here.path.glob("runs/validate/**/hang-*.json")) == []


def test_a_rank_that_waits_for_ever_is_named_with_its_line_across_nodes(here: Here) -> None:
    (hung,) = run(here, SCRIPT, "2x1", {"args": ("wait",), "launcher": "srun", "env": RECORDER})
    failure, line = failure_of(hung), SCRIPT.splitlines().index("    time.sleep(10_000)") + 1
    assert failure.verdict == "the training hung"
    assert failure.why.startswith(
        f'rank 1 (node 1, {HOST}) after 20 steps: File "{here.path}/train.py", line {line}, in wait_for_ever; '
        "rank 0 waited in backward(); no rank made progress for "
    )
    assert failure.why.endswith("; a thread ended by ValueError: no more shards")
    assert failure.next.startswith("fix what ended the thread, if the ranks wait for it; else see why it does not go")
    assert [line.line for line in failure.evidence][1:3] == [
        'raise ValueError("no more shards")', "ValueError: no more shards",
    ]  # fmt: skip
    assert "raise hang.at_least_s" in failure.next
    assert "torchfrtrace " in failure.next
    for rank, steps in enumerate((21, 20)):  # each step makes one call, and DDP some before the first
        recorded = pickle.loads(next(here.path.rglob(f"flight_{rank}")).read_bytes())
        calls = [entry["profiling_name"] for entry in recorded["entries"]]
        assert calls.count("gloo:all_reduce") >= steps, calls


def test_a_rank_that_sleeps_after_its_loop_is_named_and_a_thread_that_stays_spoils_no_figure(here: Here) -> None:
    """Long before hang.first_step_s: the other rank, or the script itself, has ended."""
    runs = [{"variant": how, "args": (how,), "launcher": launcher} for how, launcher in ENDS.items()]
    asleep, well = run(here, SCRIPT, "1x2", *runs, hang=LATE)
    assert failure_of(asleep).verdict == "the training hung"
    assert failure_of(asleep).why.startswith(f"rank 1 (node 0, {HOST}) after 100 steps: ")
    assert "in wait_for_ever" in failure_of(asleep).why
    assert (well.failure, [rank.steps for rank in well.ranks]) == (None, [100, 100])
    assert "after its training" in str(well.remarks)


TIMES_OUT = """
import os, time, datetime, torch.distributed as dist

def prepare():
    time.sleep(10_000)

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
if os.environ["RANK"] == "0":
    prepare()
dist.barrier()
"""


def test_a_rank_that_the_others_waited_for_until_their_call_timed_out_is_named(here: Here) -> None:
    """Long before hang.first_step_s: only the last look at the ranks shows who waited."""
    failure = failure_of(*run(here, TIMES_OUT, "1x2", {"launcher": "torchrun"}))
    assert (failure.verdict, failure.rank) == ("a rank kept the others waiting", 0)
    assert ", in prepare; rank 1 waited in barrier(); " in failure.why


IN_VAIN = f"""
import os, sys, time, torch.distributed as dist

more = {{}}
if sys.argv[1] != "size":
    os.environ["MASTER_PORT"] = sys.argv[1]  # torchrun's store is at another one
else:
    more = {{"rank": int(os.environ["RANK"]), "world_size": 3}}
if os.environ["RANK"] == "0":
    time.sleep({PAUSE_S})
dist.init_process_group("gloo", **more)
"""


def test_ranks_that_wait_for_ranks_that_never_come_are_ended_long_before_the_bound_of_a_first_step(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and never answers
        taken = server.getsockname()[1]
        launchers = {"29511": "torchrun", str(taken): "torchrun", "size": "srun"}
        runs = [{"variant": how, "args": (how,), "launcher": launcher} for how, launcher in launchers.items()]
        free, occupied, other_size = map(failure_of, run(here, IN_VAIN, "1x2", *runs, hang=LATE))
    assert free.verdict == "the script names a rendezvous of its own"
    assert re.match(
        "ranks 0, 1 wait in init_process_group\\(\\) at [^ ]+:29511, which the script names itself", free.why
    )
    assert occupied.verdict == "the script's own port is taken"
    assert re.match(rf".+ \(process {os.getpid()}\) listens there: ranks 0, 1 wait .+:{taken}, which", occupied.why)
    assert "let the script call init_process_group() without init_method" in occupied.next
    assert (other_size.verdict, other_size.rank) == ("no first step", None)
    assert "in init_process_group(); rank 1" in other_size.why
    for failure in (free, other_size):
        assert "leave RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as the launcher sets them" in failure.next


LOADS = "import time\ndef load():\n    time.sleep(10_000)\nload()\n"


def test_the_end_of_the_jobs_time_ends_a_run(here: Here) -> None:
    """The job's own limit, without Slurm: a hanging script is ended, and every run has a record."""
    failure = failure_of(*run(here, LOADS, "1x1", {"launcher": "python"}, time_s=4))
    assert failure.verdict == "time limit"
    assert "reached its stages.stage1.runtime (10 min)" in failure.why
    assert "stages.stage1.runtime" in failure.next
    assert [line.line for line in failure.evidence] == [f'File "{here.path}/train.py", line 3, in load']
