"""Ranks that die in the middle of a run, really: the verdict names who died, and never a rank that lost it."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, read_json
from ddp_ladder.diagnosis.signatures import is_consequence
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.run.nodes import Nodes, ThisMachine
from instrument_support import python_named
from make_runs import rank_end
from one_run import JOB, Here, failure_of

# Few of the runs have a model in DDP: to import that takes a second more.
SCRIPT = """
import atexit, ctypes, os, signal, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

how, dying = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
print("ModuleNotFoundError: No module named 'apex' - falling back", flush=True)  # and goes on: never the cause
dist.init_process_group("gloo")

def train():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(400, 4)
    for x in DataLoader(data, 4, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

def main():
    for step in range(50):
        if step == 6 and rank == dying:
            if how == "SEGFAULT":
                ctypes.string_at(0)
            if how == "EXCEPTION":
                raise ValueError("out of coffee")
            os.kill(os.getpid(), getattr(signal, how))
        dist.all_reduce(torch.ones(1))

if how == "AT_SHUTDOWN":
    train()
elif how == "NONE":
    with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
        file.write('{"samples": 4, "seconds": 0.01}\\n' * 60)
elif how == "EXCEPTION":
    from torch.distributed.elastic.multiprocessing.errors import record
    record(main)()
else:
    main()
if how == "AT_SHUTDOWN" and rank == dying:
    atexit.register(ctypes.string_at, 0)
"""


def run(here: Here, scale: str, how: str, dying: int, nodes: Nodes | None = None, **changes: Any) -> Record:
    """One run of the script above; its record."""
    return here.run(SCRIPT, scale, nodes, args=(how, str(dying)), **changes)


KILLED = ("a rank was killed", "SIGKILL", "node.memory_mb in cluster.yaml")
CRASHED = ("a rank crashed", "SIGSEGV", "the end of train.log has its whole stack")
TOLD = ("a rank was told to end", "SIGTERM", "the ladder did not send this signal")

CASES = [
    ("torchrun", "oldest", "2x1", "SIGKILL", 0, KILLED),
    ("srun", "newest", "2x1", "SEGFAULT", 1, CRASHED),
    ("torchrun", "newest", "1x2", "SIGTERM", 1, TOLD),  # torchrun ends the other rank by the same signal
]


@pytest.mark.parametrize(("launcher", "torch", "scale", "how", "dying", "said"), CASES)
def test_the_rank_that_died_is_the_cause(
    here: Here, launcher: str, torch: str, scale: str, how: str, dying: int, said: tuple[str, str, str]
) -> None:
    python = str(python_named(torch))
    record = run(here, scale, how, dying, launcher=launcher, python=python)
    failure = failure_of(record)
    verdict, name, advice = said
    node = dying if scale == "2x1" else 0
    assert failure.verdict == verdict
    assert failure.why == f"rank {dying} (node {node}, {socket.gethostname()}): ended by {name}"
    assert advice in failure.next
    assert [rank.rank for rank in record.ranks if rank.rank == dying] == []
    for rank in (rank for rank in record.ranks if rank.ended_by == "exception"):
        end = rank_end(here.directory(record.spec), rank.rank)
        assert is_consequence(end.exception), end.exception
    stood = [each.line for each in failure.evidence]
    assert len(stood) == (name != "SIGKILL"), stood
    assert all(re.fullmatch(r'File ".*/train.py", line \d+, in main', line) for line in stood)
    left = sorted(path.name for path in here.path.glob("runs/*/*/*/*/nodes/*.json"))
    assert left == [f"node{node}.json" for node in range(int(scale[0]))]


def test_what_fails_after_the_training_is_a_remark(here: Here) -> None:
    record = run(here, "1x2", "AT_SHUTDOWN", 1, launcher="srun")
    assert (record.status, record.failure) == ("ok", None)
    assert [rank.steps for rank in record.ranks] == [50, 50]
    (what,) = (remark.measured for remark in record.remarks if remark.kind == "end")
    cause = r"a rank crashed: rank 1 \(node 0, .*\): ended by SIGSEGV"
    assert re.match(f"after its training, which is complete and counts, {cause}", what)


def test_an_exception_is_the_cause_and_not_the_rank_that_lost_it(here: Here) -> None:
    record = run(here, "2x1", "EXCEPTION", 1, launcher="torchrun")
    found, directory = failure_of(record), here.directory(record.spec)
    assert (found.verdict, found.why) == ("the script raised an exception", "rank 1: ValueError: out of coffee")
    assert (found.rank, found.node) == (1, socket.gethostname())
    said = [each.line for each in found.evidence if each.speaker == f"rank 1 ({found.node})"]
    assert re.fullmatch(r'File ".*/train.py", line \d+, in main', said[0])
    assert said[1:] == ['raise ValueError("out of coffee")', "ValueError: out of coffee"]
    (failed,) = read_json(directory.agent_end(Agent(1)))["failed_ranks"]
    assert (failed["rank"], failed["exit_code"], failed["signal"]) == (1, 1, None)
    assert found.at_s == rank_end(directory, 1).ended_at_s
    assert "Root Cause (first observed failure)" in directory.log.read_text()


def test_a_script_that_deletes_its_run_directory_is_told_so(here: Here) -> None:
    script = "import os, shutil\nshutil.rmtree(os.environ['DDP_LADDER_RUN'].rpartition('/')[0])\n"
    failure = failure_of(here.run(script, "1x1", launcher="python"))
    assert failure.verdict == "the run directory was deleted"
    assert "r1/run.json is gone: the script, or someone else, deleted it during the run" in failure.why


@dataclass(frozen=True)
class TakenAtFirst(ThisMachine):
    """Another process takes the port of the first attempt before the run can."""

    taken: socket.socket = field(default_factory=socket.socket)

    def endpoint(self, spec: RunSpec, key: str) -> tuple[str, int]:
        host, port = super().endpoint(spec, key)
        if self.taken.getsockname()[1] == 0:
            self.taken.bind(("", port))
            self.taken.listen()
        return host, port


@pytest.mark.parametrize(("launcher", "torch"), [("torchrun", "oldest"), ("srun", "newest")])
def test_a_port_that_is_taken_is_left_for_another(
    here: Here, capfd: pytest.CaptureFixture[str], launcher: str, torch: str
) -> None:
    nodes = TakenAtFirst(JOB)
    with nodes.taken:
        python = str(python_named(torch))
        record = run(here, "1x1", "NONE", -1, nodes, launcher=launcher, python=python)
        port = nodes.taken.getsockname()[1]
    assert record.status == "ok", record.failure
    assert record.job is not None
    assert record.job.attempt == 2
    said = f"another process listens on port {port}, at which the ranks were to meet; starting again on another port"
    assert said in capfd.readouterr().err


def test_a_repeat_is_ended_when_the_one_before_it_turns_out_to_have_failed(here: Here) -> None:
    """Both are started by the same job, the second while the record of the first is assembled."""
    text = """
        import json, os, pathlib, time
        begun = pathlib.Path(__file__).with_suffix(".begun")
        if begun.exists():
            time.sleep(600)
        begun.touch()
        with open(os.environ["DDP_LADDER_METRICS"], "w") as metrics:
            for _ in range(3):
                print(json.dumps({"samples": 8, "seconds": 0.1}), file=metrics)
    """
    first, second = here.runs(dedent(text), "1x1", [{}, {"repeat": 2}])
    assert failure_of(first).why == "no trained parameters were seen on rank 0"
    assert (failure_of(second).kind, second.job) == ("variant stopped", None)
    assert failure_of(second).why == f"{first.spec.name} failed in the same job"
    attempt = here.directory(second.spec).attempts / "1"
    assert (attempt / "run.json").exists(), "it was not started before the record of the first was there"
    assert not here.directory(first.spec).assembled.exists()
