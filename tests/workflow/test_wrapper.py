"""workload.wrapper around real ranks: they are measured as without it, and its files are kept with the run."""

from __future__ import annotations

import re
import shutil

import pytest
from ddp_ladder.records.record import Record
from needed import need
from one_run import Here, failure_of

TRAIN = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
model = DistributedDataParallel(model) if dist.is_initialized() else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, in DataLoader(TensorDataset(torch.rand(800, 4)), batch_size=4):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.stdout.write(f"trained {os.environ.get('RANK')} {os.environ.get('WRAPPED')}\\n")
"""


def train(here: Here, wrapper: tuple[str, ...], text: str = TRAIN, **changes: object) -> Record:
    changes = {"args": (), "args_template": (), "max_seconds": None, **changes}
    return here.run(text, "1x2", wrapper=wrapper, wrapper_template=wrapper, **changes)


@pytest.mark.parametrize(("launcher", "per"), [("torchrun", "rank"), ("srun", "node")])
def test_ranks_are_measured_under_a_tracer(here: Here, launcher: str, per: str) -> None:
    """strace, as many site tools, forks what it traces and writes a file for each process."""
    need(shutil.which("strace"), "strace is missing, a wrapper that people use")
    files = here.path / "runs/default/weak/1x2/r1/wrapper"
    words = ("strace", "-ff", "-e", "trace=execve", "-o", str(files / "trace"), "--", "env", "--", "WRAPPED=yes")
    record = train(here, words, launcher=launcher, wrapper_per=per)
    assert (record.status, len(record.ranks)) == ("ok", 2), record.failure
    log = (files.parent / "train.log").read_text()
    said = dict(re.findall(r"trained (\d) (\w+)", log))
    assert said == {"0": "yes", "1": "yes" if per == "rank" else "None"}
    traces = [path.read_text() for path in files.iterdir()]
    starts = [text for text in traces if re.search(r'execve\("[^"]*/env"', text)]
    assert len(starts) == (2 if per == "rank" else 1)


def test_a_wrapper_that_is_not_there_is_named(here: Here) -> None:
    failure = failure_of(train(here, ("no-such-profiler", "-o", "x")))
    assert "workload.wrapper: no-such-profiler is not in the PATH of the training" in failure.why
    assert failure.next.startswith("correct workload.wrapper in config.yaml")


def test_a_wrapper_that_fails_after_the_training_is_named(here: Here) -> None:
    record = train(here, ("sh", "-c", '"$@"; exit 3', "sh"))
    (what,) = (remark.measured for remark in record.remarks if remark.kind == "end")
    assert (record.status, "exit code 3, after the script's end" in what) == ("ok", True)
    assert what.endswith("the script itself ended with exit code 0, so that is of its wrapper, sh")


def test_a_wrapper_that_hides_a_failure_is_named(here: Here) -> None:
    record = train(here, ("sh", "-c", '"$@"; exit 0', "sh"), text=f"{TRAIN}raise SystemExit(4)")
    assert failure_of(record).verdict == "the script failed"
    (what,) = (remark.measured for remark in record.remarks if remark.kind == "wrapper")
    assert what == "sh does not pass on the exit code of ranks 0, 1, which failed"
