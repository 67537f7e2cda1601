"""A chain of jobs on a real Slurm: whatever ends a link, the training ends as one that nothing has cut."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from climbs import Climb
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.ledger.jobs import read_rows
from faults import NO_SHARED_MEMORY, PREFLIGHT, SITE
from project_copy import NO_TORCH, Checkout, copy_project, environment, last_box

pytestmark = pytest.mark.slurm

# It waits at the step whose number is in the file `steps`, if there is one, so that a test decides when a link ends.
TRAINING = """
import os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

told = torch.zeros(1)
if not Path("deaf").exists():
    signal.signal(signal.SIGUSR1, lambda *_: told.fill_(1))
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(48, 8), torch.randn(48, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
state, done = Path(sys.argv[1], "state.pt"), 0
if state.exists():
    saved = torch.load(state)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["steps"]
first = done

def save(file):
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": done}, f"{file}.new")
        os.replace(f"{file}.new", file)
        state.with_name("saved").write_text(f"{first} {done}")
    dist.barrier()

def wait():
    gate = Path("steps")
    while not told.item() and gate.exists() and done >= int(gate.read_text() or 0):
        time.sleep(0.05)

for epoch in range(done // len(loader), 8):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(loader):
        if epoch * len(loader) + number < done:
            continue
        wait()
        all_told = told.clone()
        dist.all_reduce(all_told)
        if all_told.item():
            save(state)
            sys.exit(75)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        done += 1
        if done % 5 == 0:
            save(state)
save(state.with_name("final.pt"))
dist.destroy_process_group()
"""
SLURM = ("--profile", "profiles/slurm")
PRODUCTION: Mapping[str, Any] = {
    "scale": "2x1", "args": ["{run_dir}"], "runtime": 3, "up_to_hours": 1.0, "warn_before_s": 30,
    "unproven": True, "unrehearsed": True,
}  # fmt: skip
NO_HANG = {"at_least_s": 600}  # ranks that wait for a test, on a busy machine
STAGES: Mapping[str, Any] = {"stage1": {"scales": ["2x1"], "runtime": 5}}


def project(path: Path, cluster: Cluster, script: str = TRAINING, **production: Any) -> Checkout:
    checkout = copy_project(path, cluster)
    site = {**SITE, "node": {**SITE["node"], "gpus": 1}}
    checkout.set_up(script, site, stages=STAGES, production={**PRODUCTION, **production}, hang=NO_HANG)
    return checkout


def start(checkout: Checkout, number: int) -> Climb:
    output = checkout.path / f"start{number}.output"
    with output.open("w") as file:
        return Climb(checkout, checkout.start("production", *SLURM, output=file), output)


def let(checkout: Checkout, steps: int) -> None:
    (checkout.path / "steps.new").write_text(str(steps))
    (checkout.path / "steps.new").rename(checkout.path / "steps")


def await_saved(running: Climb, first: int, least: int) -> None:
    """Wait until a link that began with step ``first`` has saved step ``least``."""
    file = running.checkout.results / "production/runs/default/weak/2x1/r1/saved"
    until_s = time.monotonic() + 240
    while not file.exists() or [*map(int, file.read_text().split())] < [first, least]:
        assert running.process.poll() is None, running.text
        assert time.monotonic() < until_s, running.text
        time.sleep(0.1)


def queue(cluster: Cluster) -> list[str]:
    return cluster.run(["squeue", "--noheader", "--format=%i"]).stdout.split()


# Of a chain that needs no login node
STEPS = """
import os, sys, time
from pathlib import Path
state = Path(sys.argv[1], "state")
"""
TWICE = f"""{STEPS}
goes_on = state.exists()
state.touch()
{NO_TORCH.replace("sys.argv[1]", "16")}
sys.exit(0 if goes_on else 75)
"""


def chain_by_itself(checkout: Checkout, cluster: Cluster) -> int:
    """Write production.sh, and submit it; return its first job."""
    said = checkout.snakemake("eject").stdout
    (submit,) = re.findall(r"^    (sbatch .*production\.sh)$", said, re.MULTILINE)
    return int(cluster.run([*submit.replace("sbatch", "sbatch --parsable").split()], cwd=checkout.path).stdout)


ByItself = tuple[Cluster, Checkout, int]


@pytest.fixture(scope="module")
def by_itself(module_cluster: Callable[[Spec], Cluster], tmp_path_factory: pytest.TempPathFactory) -> ByItself:
    """A chain that needs no login node, and its first job; it goes on while the other tests wait."""
    cluster = module_cluster(Spec(nodes=3, gpus=1, cpus=2, memory_mb=4000))
    checkout = project(
        tmp_path_factory.mktemp("by_itself"), cluster, TWICE, runtime=6, slurm={"replace_bad_node": True}
    )
    checkout.configure(**{**yaml.safe_load((checkout.path / "config/config.yaml").read_text()), **PREFLIGHT})
    checkout.without_torch(TWICE)
    cluster.run(NO_SHARED_MEMORY, node="node2")
    return cluster, checkout, chain_by_itself(checkout, cluster)


def test_a_chain_through_all_ends_of_links(
    by_itself: ByItself, make_cluster: Callable[[Spec], Cluster], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "loop.py").write_text(TRAINING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "loop.py", "."]
    alone = subprocess.Popen(torchrun, cwd=whole, env=environment(), stdout=subprocess.DEVNULL)
    cluster = make_cluster(Spec(nodes=3, gpus=1, cpus=2, memory_mb=4000, accounting=True))
    checkout = project(tmp_path / "project", cluster)
    checkout.site(launcher="srun")  # torchrun would import torch, too, within the time of a link

    # 1: the signal. 2: the end of its time, with saves at intervals.
    let(checkout, 8)
    first = start(checkout, 1)
    await_saved(first, 0, 5)
    (checkout.path / "deaf").touch()
    first.await_line(r"link 1 \(job \d+\)")
    let(checkout, 19)
    await_saved(first, 8, 15)
    (checkout.path / "deaf").unlink()
    (job,) = queue(cluster)
    cluster.run(["scontrol", "update", f"JobId={job}", "EndTime=now"])
    # 3: Snakemake is killed; the next start follows the same job, which is then cancelled.
    first.await_line(r"link 2 \(job \d+\)")
    let(checkout, 27)
    await_saved(first, 15, 25)
    first.process.kill()
    (job,) = queue(cluster)
    second = start(checkout, 2)
    second.await_line(rf"job {job} of a killed start goes on")
    assert queue(cluster) == [job]
    cluster.run(["scancel", job])
    assert second.end() == 1
    box = last_box(second.text)
    assert (box["verdict"], box["next"]) == ("the job was cancelled", "start it again to go on")
    # 4: a node dies. 5: the rest, on the other nodes.
    let(checkout, 36)
    third = start(checkout, 3)
    await_saved(third, 25, 35)
    cluster.kill_node("node2")
    third.await_line(r"link 4 \(job \d+\)")
    (checkout.path / "steps").unlink()
    assert third.end() == 0, third.text
    assert last_box(third.text)["verdict"] == "the training is complete"

    assert alone.wait(120) == 0
    runs = checkout.results / "production/runs/default/weak/2x1/r1"
    ends, wanted = torch.load(runs / "final.pt"), torch.load(whole / "final.pt")
    assert ends["steps"] == wanted["steps"] == 48
    for name, parameter in wanted["model"].items():
        assert torch.equal(ends["model"][name], parameter), name
    links = json.loads((checkout.results / "production/links.json").read_text())["links"]
    assert [link["end"] for link in links] == ["saved", "time limit", "failed", "failed", "complete"]
    assert [link["state"] for link in links] == ["COMPLETED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "COMPLETED"]
    assert all(link["steps"] and link["saves"] for link in links)
    elapsed = cluster.run(["sacct", "--allocations", "--noheader", "--parsable2", "--format=ElapsedRaw"]).stdout.split()
    hours = sum(map(int, elapsed)) * 2 / 3600
    assert len(elapsed) == len(links)
    assert sum(link["hours"] for link in links) == pytest.approx(hours, rel=0.02)
    assert sum(row.gpu_hours_held for row in read_rows(checkout.results / "production")) == pytest.approx(
        hours, rel=0.02
    )


def ends_of(checkout: Checkout) -> list[str]:
    return [link["end"] for link in json.loads((checkout.results / "production/links.json").read_text())["links"]]


def log_of(checkout: Checkout, job: int) -> str:
    return (checkout.results / f"production/logs/{job}.log").read_text()


def test_each_link_submits_the_next_one_until_the_training_is_complete(by_itself: ByItself) -> None:
    """Also after a node that fails the preflight, which the next one leaves out."""
    cluster, checkout, first = by_itself
    jobs = [first]
    for _ in range(2):
        assert cluster.await_state(jobs[-1], timeout_s=120) == "COMPLETED", log_of(checkout, jobs[-1])
        jobs.append(int(re.findall(r"the next link is job (\d+)", log_of(checkout, jobs[-1]))[-1]))
    assert cluster.await_state(jobs[-1], timeout_s=120) == "COMPLETED", log_of(checkout, jobs[-1])
    assert f"node2 failed the preflight of job {first}" in log_of(checkout, first)
    assert ends_of(checkout) == ["failed", "saved", "complete"]
    assert last_box(log_of(checkout, jobs[-1]))["verdict"] == "the training is complete"
    cluster.await_true(lambda: queue(cluster) == [], "slurmctld", "the end of the jobs that were not needed")
    # Started again, it trains nothing, and submits nothing.
    again = checkout.snakemake("production", *SLURM)
    assert again.returncode == 0, again.stdout
    assert last_box(again.stdout)["verdict"] == "the training is complete"
    assert "submitted" not in again.stdout


def test_a_chain_that_makes_no_progress_does_not_go_round(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    """If a link is killed, which would have ended the chain itself, the next one does, before it trains."""
    cluster = cluster_without_accounting
    script = f"{STEPS}\nstate.touch()\ntime.sleep(10_000)"
    checkout = project(tmp_path, cluster, script, scale="1x1")
    checkout.without_torch(script)
    job = chain_by_itself(checkout, cluster)
    state, following = checkout.results / "production/runs/default/weak/1x1/r1/state", job + 1
    cluster.await_true(state.exists, "slurmctld", "the first link", 120)
    assert cluster.state(following) == "PENDING"
    cluster.run(["scancel", str(job)])
    assert cluster.await_state(following, timeout_s=120) == "FAILED"
    cluster.await_state(job)
    assert queue(cluster) == []
    assert ends_of(checkout) == ["failed"]
    files = (checkout.results / "production/jobs/1x1").glob("*.json")
    assert all(json.loads(file.read_text())["has_begun"] for file in files)
    assert last_box(log_of(checkout, following))["verdict"] == "the job was cancelled"


def test_what_no_link_wrote_counts_and_what_a_person_ended_is_not_followed_by_another(
    cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    cluster, script = cluster_without_accounting, f"{STEPS}\nstate.touch()\ntime.sleep(10_000)"
    keys = {"scale": "1x1", "runtime": 1, "warn_before_s": 10}
    checkout = project(tmp_path, cluster, script, **keys)
    checkout.without_torch(script)
    # Of a link's job step, which runs out of the job's sight.
    running, state = start(checkout, 1), checkout.results / "production/runs/default/weak/1x1/r1/state"
    cluster.await_true(state.exists, "slurmctld", "the first link", 120)
    steps = cluster.run(["squeue", "--steps", "--noheader", "--format=%i"]).stdout.split()
    cluster.run(["scancel", *(step for step in steps if step.rpartition(".")[2].isdecimal())])
    assert running.end() == 1, running.text
    box = last_box(running.text)
    assert box["verdict"] == "the link was ended from outside"
    assert "its job step was cancelled, as with scancel, and not by the ladder" in box["why"]
    # A file system that hangs before the link has written anything: its job holds its nodes all the same.
    program = checkout.path / "workflow/scripts/run_link.py"
    begin = "from __future__ import annotations\n"
    hang = "import time\nopen('hangs', 'w').close()\ntime.sleep(10_000)\n"
    program.write_text(program.read_text().replace(begin, begin + hang))
    running = start(checkout, 2)
    cluster.await_true((checkout.path / "hangs").exists, "slurmctld", "the second link", 120)
    (job,) = queue(cluster)
    cluster.run(["scancel", job])
    assert running.end() == 1, running.text
    box = last_box(running.text)
    assert box["verdict"] == f"job {job} began no link"
    links = json.loads((checkout.results / "production/links.json").read_text())["links"]
    assert [link["number"] for link in links] == [1, 2]
    assert all(link["hours"] > 0 for link in links)
    checkout.configure(stages=STAGES, production={**PRODUCTION, **keys, "up_to_hours": 1 / 60})
    again = checkout.snakemake("production", *SLURM)
    assert again.returncode == 1, again.stdout
    assert last_box(again.stdout)["verdict"] == "production.up_to_hours has no room for a link", again.stdout
