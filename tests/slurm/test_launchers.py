"""The launchers as steps of a real Slurm: who sees which GPUs and processors, and what a run leaves."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.platform.launchers import Srun
from ddp_ladder.records.record import read_record
from ddp_ladder.slurm.query import host_names
from make_runs import monitor_file
from project_copy import Checkout, copy_project
from scales import AS_ROOT, GPU_SITE, MEETING_OR_NOT, WITNESS, prepare, salloc, scale_job, witnesses

pytestmark = pytest.mark.slurm

NODES = ["node9", "node10"]  # their addresses end in .9 and .10: as text node10 comes first
JOB = ["--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:2"]
# What a job may have from its site or from other plugins: each would leave a task one GPU of two.
ONE_GPU_PER_TASK = {
    "SLURM_GPU_BIND": "single:1",
    "SLURM_NTASKS_PER_GPU": "1",
    "SLURM_TRES_BIND": "gres/gpu:single:1",
    "SLURM_TRES_PER_TASK": "gres:gpu:1",
}


@pytest.fixture(scope="module")
def nine_and_ten(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    return module_cluster(Spec(nodes=2, gpus=2, first=9))


@pytest.fixture(scope="module")
def launched(nine_and_ten: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A 2x2 with each launcher, in one allocation."""
    checkout = copy_project(tmp_path_factory.mktemp("project"))
    variants = {
        "default": {"launcher": "torchrun"},
        "srun": {"launcher": "srun", "args": ["no meeting"]},
    }
    prepare(checkout, MEETING_OR_NOT, "2x2", GPU_SITE, variants=variants)
    salloc(nine_and_ten, checkout, ["--nodes=2", *JOB], scale_job("2x2"), **ONE_GPU_PER_TASK, **AS_ROOT)
    return checkout


@pytest.mark.parametrize("variant", ["default", "srun"])
def test_rank_k_is_on_node_k_whatever_names_and_addresses_look_like_as_text(
    launched: Checkout, nine_and_ten: Cluster, variant: str
) -> None:
    run = f"{variant}/weak/2x2/r1"
    record = launched.record(run)
    assert record["status"] == "ok", record["failure"]
    seen = witnesses(launched, run)
    assert [rank["SLURMD_NODENAME"] for rank in seen] == [node for node in NODES for _ in range(2)]
    assert [(rank["GROUP_RANK"], rank["LOCAL_RANK"]) for rank in seen] == [(f"{k // 2}", f"{k % 2}") for k in range(4)]
    assert {rank.get("sum") for rank in seen} == {None if variant == "srun" else 10.0}
    assert {rank["MASTER_ADDR"] for rank in seen} == {nine_and_ten.addresses["node9"]}
    assert {rank["SEEN_GPUS"] for rank in seen} == {"0,1"}  # all of the node's, in every task
    assert {rank["SLURM_DISTRIBUTION"] for rank in seen} == {"block:block"}  # of nodes, and of sockets
    run_file = json.loads((launched.results / "runs" / run / "run.json").read_text())
    assert run_file["nodes"] == record["world"]["nodes"] == record["world"]["hosts"] == NODES
    ranks = [(rank["node_rank"], rank["host"]) for rank in record["ranks"]]
    assert ranks == [(k // 2, NODES[k // 2]) for k in range(4)]


def test_torchrun_is_one_task_per_node_with_all_its_processors(launched: Checkout) -> None:
    seen = witnesses(launched, "default/weak/2x2/r1")
    assert [rank["SLURM_PROCID"] for rank in seen] == ["0", "0", "1", "1"]
    assert {rank["SLURM_CPUS_PER_TASK"] for rank in seen} == {"4"}
    ends = sorted(path.name for path in (launched.results / "runs/default/weak/2x2/r1/nodes").glob("*.json"))
    assert ends == ["node0.json", "node1.json"]


def test_srun_starts_one_task_per_gpu_and_each_leaves_its_end(launched: Checkout) -> None:
    seen = witnesses(launched, "srun/weak/2x2/r1")
    keys = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURMD_NODENAME")
    assert [[rank[key] for key in keys] for rank in seen] == [
        [*f"{k}{k % 2}{k}{k % 2}{k // 2}", NODES[k // 2]] for k in range(4)
    ]
    assert {rank["SLURM_CPUS_PER_TASK"] for rank in seen} == {"2"}
    run = launched.results / "runs/srun/weak/2x2/r1"
    for n, k in itertools.product((0, 1), (0, 1)):
        end = json.loads((run / f"nodes/node{n}.task{k}.json").read_text())
        assert (end["node_rank"], end["local_rank"], end["exit_code"]) == (n, k, 0)
        assert bool(end["monitor"] and end["monitor"]["samples"]) == (k == 0)  # the first task samples the node
        monitor = monitor_file(RunDirectory(run), Agent(n, 0))
        assert (monitor.node, monitor.interface, monitor.gpus) == (NODES[n], "ib0", ())


def test_a_laptop_tells_the_ranks_of_srun_what_srun_tells_them(launched: Checkout) -> None:
    """All that is simulated there is there here, with the same values but for names of nodes and number of the job."""
    spec = read_record(launched.results / "runs/srun/weak/2x2/r1/record.json").spec
    for rank, seen in enumerate(witnesses(launched, "srun/weak/2x2/r1")):
        srun = Srun()
        step = srun.step_variables(spec, seen["SLURM_JOB_ID"], NODES)
        expected = {**step, **srun.task_variables(rank, rank % 2, rank // 2), "SLURM_STEP_ID": seen["SLURM_STEP_ID"]}
        expected["SLURM_STEPID"] = expected["SLURM_STEP_ID"]
        here = {name: seen.get(name) for name in expected}
        lists = {name: ",".join(host_names(value or "")) for name, value in here.items() if name.endswith("NODELIST")}
        assert {**here, **lists} == expected


SAVES = """
import pathlib, signal, sys, threading
here = pathlib.Path(os.path.dirname(seen["DDP_LADDER_RUN"]))
def save(*_):
    threading.Event().wait(2)  # longer than a kill would let it
    (here / f"saved{seen['RANK']}").write_text("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_an_interrupted_job_ends_its_steps_in_order(nine_and_ten: Cluster, tmp_path: Path, launcher: str) -> None:
    """Scripts may save their state; every agent leaves its end."""
    cluster, checkout = nine_and_ten, copy_project(tmp_path)
    prepare(checkout, WITNESS + SAVES, "2x1", {**GPU_SITE, "launcher": launcher})
    job = subprocess.Popen(
        cluster.command(["salloc", "--nodes=2", *JOB, "--time=5", *scale_job("2x1")], cwd=checkout.path),
        env={**cluster.environment(), **AS_ROOT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    run = checkout.results / "runs/default/weak/2x1/r1"
    logs = [run / f"nodes/node{k}.log" for k in (0, 1)]
    cluster.await_true(
        lambda: all(log.exists() and "ready" in log.read_text() for log in logs), "slurmctld", "the scripts to be ready"
    )
    (scale,) = (child for child in psutil.Process(job.pid).children(recursive=True) if "--scale" in child.cmdline())
    scale.terminate()
    said = job.communicate(timeout=90)[0]
    assert job.returncode == 128 + signal.SIGTERM, said
    assert sorted(path.name for path in run.glob("saved*")) == ["saved0", "saved1"]
    ends: list[dict[str, Any]] = [json.loads((run / f"nodes/node{k}.json").read_text()) for k in (0, 1)]
    assert [end["signal"] for end in ends] == ["SIGTERM", "SIGTERM"]
