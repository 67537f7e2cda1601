"""Ladders that run on a cluster in the background, several at the same time, until something ends them."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cluster import Cluster
from project_copy import ONE_STAGE, Checkout, copy_project

TIMEOUT_S = 180
# Jobs of the partition `urgent` end those of `gpu`; who uses more memory than asked for is ended.
CONF = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=ALL MaxTime=10 PriorityTier=100 State=UP",
    "JobAcctGatherParams=OverMemoryKill",
    "JobAcctGatherFrequency=task=1",
    # The controller forgets a job as soon as it has ended: only the accounting knows how.
    "MinJobAge=2",
)
SAMPLES = Path("runs/default/weak/1x1/r1/nodes/node0.csv")
HANG = "import signal; signal.pause()"


@dataclass
class Climb:
    """A ladder that is running on the cluster; its output is in a file."""

    checkout: Checkout
    process: subprocess.Popen[str]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text()

    def job(self) -> tuple[int, str]:
        """Wait for its job to run; return job id and node."""
        found = self.await_line(r"job (\d+) runs on (\w+)")
        return int(found[1]), found[2]

    def await_line(self, pattern: str) -> re.Match[str]:
        """Wait for ``pattern`` in the output; return the match."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(pattern, self.text)):
            assert self.process.poll() is None, f"ended without {pattern!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"{pattern!r} not within {TIMEOUT_S} s:\n{self.text}"
            time.sleep(0.1)
        return found

    def end(self, timeout_s: float = TIMEOUT_S) -> int:
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not ended within {timeout_s} s:\n{self.text}")


def climb(checkout: Checkout, *arguments: str) -> Climb:
    """Start a climb, with further arguments of snakemake."""
    output = checkout.path.with_suffix(".output")  # its disk may be full
    with output.open("w") as file:
        return Climb(checkout, checkout.start("--profile", "profiles/slurm", *arguments, output=file), output)


def new_checkout(cluster: Cluster, path: Path, script: str, *, repeats: int = 1, memory_mb: int = 2000) -> Checkout:
    checkout = copy_project(path, cluster)
    site = {
        "site": "test",
        "slurm": {"partition": "gpu", "account": "project"},
        "node": {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": memory_mb},
        "launcher": "srun",
    }
    measure = {"warmup_steps": 1, "min_steps": 5, "max_steps": 12, "plain_baseline": False}
    checkout.set_up(script, site, measure=measure, stages=ONE_STAGE, repeats=repeats)
    return checkout


def kill_processes(checkout: Checkout, program: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to all processes of a checkout whose command has this pattern, on whatever node."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = " ".join(process.info["cmdline"] or [])
        if re.search(program, command) and (process.info["cwd"] == str(checkout.path) or str(checkout.path) in command):
            with contextlib.suppress(psutil.NoSuchProcess):  # killing the srun ends the agent, too
                process.send_signal(number)


def await_samples(climb: Climb) -> None:
    """Wait until its agent has sampled its node: one that is stopped before may take minutes to start."""
    samples, (_, node) = climb.checkout.results / SAMPLES, climb.job()
    assert isinstance(climb.checkout.cluster, Cluster)
    climb.checkout.cluster.await_true(
        lambda: samples.exists() and samples.read_text().count("\n") > 1, f"slurmd.{node}", f"a sample of {node}", 180
    )
