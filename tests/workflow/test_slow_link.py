"""A link whose script becomes slow, as real processes: it is reported with what it measured, and ended in order."""

from __future__ import annotations

import io
import re
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ddp_ladder.plan.plan import make_plan
from ddp_ladder.production.chain import end_of
from ddp_ladder.production.slower import TABLE, SpeedWatch
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.run.job import Context, run_link
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.progress import LinkConsole
from ddp_ladder.settings.keys import Preflight
from ddp_ladder.settings.load import load_settings
from make_jobs import make_chain
from one_run import JOB, Here

# From step 200 on rank 1 computes longer. It ends at step ``sys.argv[1]``, or when it is told.
SCRIPT = """
import signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

told, steps = [], 0
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))

class Samples(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return torch.ones(16)

class Model(torch.nn.Linear):
    def forward(self, inputs):
        time.sleep(0.05 if dist.get_rank() == 1 and steps >= 200 else 0.01)
        return super().forward(inputs)

dist.init_process_group("gloo")
model = DistributedDataParallel(Model(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for inputs in DataLoader(Samples(), 4, num_workers=0):
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
    steps += 1
    if steps >= int(sys.argv[1]):
        break
    ends = torch.tensor(float(len(told)))
    dist.all_reduce(ends)
    if ends:
        sys.exit(75)
"""


def test_a_link_that_becomes_slow_is_reported_with_what_it_measured_and_ended_as_at_its_time_limit(here: Here) -> None:
    measured = here.run(SCRIPT, "1x2", args=("150",), warmup_steps=10, min_steps=20)
    assert measured.throughput
    plan = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
    planned = next(job for job in plan.jobs if str(job.scale) == "1x2")
    rate = measured.throughput.samples_per_s
    chain = make_chain(warn_before_s=60.0, slower_percent=50.0, slower="stop", promised_samples_per_s=rate)
    args, production = ("100000",), here.path / "chain"
    changes = {"stage": "production", "args": args, "args_template": args, "max_steps": None, "max_seconds": None}
    spec = measured.spec.replace(**changes)
    job = replace(planned, runs=(spec,), preflight=Preflight(enabled=False), stage="production")
    out = io.StringIO()
    console = LinkConsole(1, chain.promised_samples_per_s, str, True, out)
    watch = SpeedWatch(chain, production, 1, "production 1x2 link 1", console.say, every_s=1.0, windows=3)
    context = Context(job, production, ThisMachine(JOB), time.monotonic() + 200, console, watch=watch)
    with closing(context.assembler):
        record = run_link(context, chain.warn_before_s)
    said = out.getvalue()
    assert "production 1x2 link 1: slower than promised: " in said
    assert "of the ladder's" in said
    assert re.search(r"communication on rank 1 \(\S+\), which waits", said), said
    assert said.splitlines()[-1].endswith("steps (exit code 75)")
    raw = read_raw_run(context.directory(spec))
    assert end_of(record, raw) == "saved"
    assert [end.exit_code for end in raw.ends] == [75, 75]
    assert all(agent.warned == 2 for agent in raw.agents.values())
    assert read_run_file(context.directory(spec)).totals_every_s == 1.0
    assert len((production / TABLE).read_text().splitlines()) > 3
