"""Faults that are injected into a climb on the real Slurm: what breaks, when, and what the ladder has to name.

Each fault is a whole climb with the shipped Slurm profile. Its training breaks by itself at a step, or is broken from
outside once it has made some steps. `benchmarks/faults.py` writes the table of all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machines
from climbs import Climb, climb
from cluster import Cluster
from cluster_config import Spec
from make_files import write_files
from make_preflight import WRONG
from project_copy import EXPERIMENT, NO_TORCH, copy_project, last_box

# A hang is named after this time; the default of a minute would make a table of minutes.
HANG = {"at_least_s": 10}
# Who uses more memory than asked for is ended, as control groups do on a cluster.
CONF = ("JobAcctGatherParams=OverMemoryKill", "JobAcctGatherFrequency=task=1")
REPAIRED_S = 180.0  # for Slurm to end what was cut off
NAMES_A_CAUSE = r".*; the run is being ended|FAILED: .*|preflight FAILED.*|\| verdict +.*"

# With one rank it is no training, so that stage 1 takes no time. With several it trains until a fault or a limit ends
# it: `event` is written when the fault happens, `trains` when a fault from outside may happen.
TRAINING = f"""
import os, sys, time
if os.environ["WORLD_SIZE"] == "1":
    exec({NO_TORCH!r})
    sys.exit()
rank = int(os.environ["RANK"])
def event():
    open("event", "w").close()
EVERYWHERE
BEFORE_INIT
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = torch.randn(100_000, 64)
for step, x in enumerate(DataLoader(data, 16, sampler=DistributedSampler(data))):
    if step == 20 and rank == 1:
        pass
        AT_A_STEP
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if step == 20 and rank == 0:
        open("trains", "w").close()
    time.sleep(0.005)
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Fault:
    """One fault.

    named: what the closed gate's reason must say (a regular expression). everywhere: Python that every rank executes
    first. before_init, at_a_step: Python of the rank that breaks. before: breaks the cluster before the climb. outside:
    breaks the running training of a cluster. after: repairs the cluster after the climb, and what was cut off has then
    to end. steps: the run's maximum. nodes: of the cluster. files: further ones of the checkout.
    disk_mb: size of the disk that the checkout has of its own; 0: it has none.

    The event of a fault that the preflight finds is the start of the preflight.
    """

    name: str
    named: str
    scale: str = "1x2"
    nodes: int = 2
    everywhere: str = ""
    before_init: str = ""
    at_a_step: str = ""
    before: Callable[[Cluster], object] | None = None
    outside: Callable[[Cluster, Climb], None] | None = None
    after: Callable[[Cluster], None] | None = None
    steps: int = 5000
    site: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    disk_mb: int = 0


@dataclass(frozen=True)
class Told:
    """What a climb with a fault said. after_s: from the event to the first line that named a cause. text: its output.

    why: the closed gate's reason, or what the last box found if there was no room for the gate. left: processes of the
    climb, jobs in the queue, gates above the fault.
    """

    after_s: float
    why: str
    left: list[str]
    exit_code: int
    text: str


def tell(fault: Fault) -> Told:
    """Let a climb meet the fault, on a cluster of its own, to its end."""
    with tempfile.TemporaryDirectory(prefix="ddp-ladder-fault-") as temporary, disk(Path(temporary), fault.disk_mb):
        cluster = Cluster.up(Spec(nodes=fault.nodes, gpus=2, cpus=2, memory_mb=4000, conf=CONF))
        try:
            running = start(fault, cluster, Path(temporary) / "ladder")
            try:
                return follow(fault, running, cluster)
            finally:
                running.process.kill()
                running.process.wait()
        finally:
            cluster.down()


@contextlib.contextmanager
def disk(parent: Path, size_mb: int) -> Iterator[None]:
    """Give the checkout in this directory a disk of its own, if it is to have a size."""
    checkout = parent / "ladder"
    checkout.mkdir()
    if not size_mb:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "none", str(checkout)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(checkout)], check=True)


def start(fault: Fault, cluster: Cluster, directory: Path) -> Climb:
    """Start the climb of a fault; its event may come at any time from now on."""
    checkout = copy_project(directory, cluster)
    stages = {**EXPERIMENT["stages"]}
    if fault.scale != "1x2":
        del stages["stage2"]
        stages["stage3"] = {"scales": [fault.scale], "runtime": 5}
    measure = {"warmup_steps": 1, "min_steps": 5, "max_steps": fault.steps, "plain_baseline": False}
    breaks = fault.before_init and f"if rank == 1:\n    event()\n    {fault.before_init}\n"
    at_a_step = f"event(); {fault.at_a_step}" if fault.at_a_step else ""
    text = (
        TRAINING.replace("EVERYWHERE", fault.everywhere).replace("BEFORE_INIT", breaks).replace("AT_A_STEP", at_a_step)
    )
    checkout.set_up(
        text, {**SITE, **fault.site}, **{"stages": stages, "measure": measure, "hang": HANG, **fault.config}
    )
    write_files(checkout.path, fault.files)
    if fault.before:
        fault.before(cluster)
    return climb(checkout)


def await_file(running: Climb, name: str, timeout_s: float = 300) -> float:
    """Wait for a file that the training writes; return when it was written, as unix time."""
    file, deadline_s = running.checkout.path / name, time.monotonic() + timeout_s
    while not file.exists():
        assert running.process.poll() is None, running.text
        assert time.monotonic() < deadline_s, f"{name} was not written:\n{running.text}"
        time.sleep(0.05)
    return file.stat().st_mtime


def follow(fault: Fault, running: Climb, cluster: Cluster) -> Told:
    """Inject the fault if it comes from outside; wait for the cause, then for the end of the climb."""
    if "preflight" in fault.config:
        running.await_line(f"{fault.scale}: preflight of")
        at_s = time.time()
    elif fault.outside:
        await_file(running, "trains")
        at_s = time.time()
        fault.outside(cluster, running)
    else:
        at_s = await_file(running, "event")
    running.await_line(NAMES_A_CAUSE)
    after_s = time.time() - at_s
    code = running.end()
    left = left_behind(running, cluster)
    if fault.after:
        fault.after(cluster)
        until_s = time.monotonic() + REPAIRED_S
        while (left := left_behind(running, cluster)) and time.monotonic() < until_s:
            time.sleep(0.5)
    closed = list(running.checkout.results.glob("gates/*.closed.json"))
    why = json.loads(closed[0].read_text())["why"] if closed else last_box(running.text)["found"]
    return Told(after_s, why, left, code, running.text)


def of_second_rank(number: signal.Signals) -> str:
    return f"os.kill(os.getpid(), {int(number)})"


def cut_off(cluster: Cluster, running: Climb) -> None:
    """Lose all that two of the run's nodes send to each other; the others and Slurm's controller reach both."""
    for node, other in (("node2", "node3"), ("node3", "node2")):
        nobody = ["ip", "neigh", "replace", cluster.addresses[other], "lladdr", "02:00:00:00:00:01", "dev", "ib0"]
        cluster.run([*nobody, "nud", "permanent"], node=node)


def end_walltime(cluster: Cluster, running: Climb) -> None:
    """Let the time of the running job be up: Slurm counts limits in minutes."""
    (job,) = cluster.run(["squeue", "--noheader", "--format=%i"]).stdout.split()
    cluster.run(["scontrol", "update", f"JobId={job}", "EndTime=now+2"])


def listen(cluster: Cluster) -> None:
    """Let another program listen on the port that the script has chosen."""
    serve = f"import socket, time; server = socket.create_server(('', {SCRIPTS_PORT})); time.sleep(10_000)"
    cluster.daemon("listener", [sys.executable, "-c", serve], node="node1")


def slow_down(cluster: Cluster) -> None:
    """Make the network the limit of what nodes exchange, as on a cluster, and that of node3 slow; a CPU may be busy."""
    for node in cluster.nodes:
        cluster.run(LIMIT.format(mbit=30 if node == "node3" else 150).split(), node=node)


def to_second_node(command: str, number: signal.Signals) -> Callable[[Cluster, Climb], None]:
    """Return what sends a signal to the processes of the run's second node whose command has this pattern."""

    def send(cluster: Cluster, running: Climb) -> None:
        host = os.readlink(f"/proc/{cluster.machine('node2').pid}/ns/uts")
        for pid, root in machines.clusters_of_processes().items():
            with contextlib.suppress(OSError):  # another one may have ended
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                is_there = root == str(cluster.root) and os.readlink(f"/proc/{pid}/ns/uts") == host
                if is_there and re.search(command, words):
                    os.kill(pid, number)

    return send


SITE: Mapping[str, Any] = {
    "site": "faults",
    "slurm": {"partition": "gpu"},
    "node": {"gpus": 2, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": 4000},
}
PREFLIGHT = {"preflight": {"enabled": True}}
HANGING = WRONG.replace('os.environ.get("RANK") == "1"', '"RANK" in os.environ').replace(
    "work = dist.right", "import time; time.sleep(10_000); work = dist.right"
)
OWN_PATH = {"software": {"setup": 'export PYTHONPATH="$PWD/path/$SLURMD_NODENAME"'}}
OTHER_TORCH = "import sys; sys.path.pop(0); del sys.modules['torch']; import torch; torch.__version__ = '2.0.1'"
NO_SHARED_MEMORY = ("mount", "-o", "remount,ro", "/dev/shm")  # a node that does not work
SCRIPTS_PORT = 29_999
LIMIT = "tc qdisc replace dev ib0 root tbf rate {mbit}mbit burst 64kb latency 300ms"
FILL = "[disk.write(bytes(4096)) for disk in [open('ballast', 'wb', buffering=0)] for _ in iter(int, 1)]"
COFFEE = "raise ValueError('out of coffee')"
HOG = "hog = bytearray(b'x') * 6_000_000_000; time.sleep(60)"
DRIFT = "[parameter.data.add_(1) for parameter in model.parameters()]"
FAULTS = (
    Fault("a rank raises before the process group", "rank 1.*out of coffee", before_init=COFFEE),
    Fault("a rank raises at a step", "rank 1.*out of coffee", at_a_step=COFFEE),
    Fault("SIGKILL of a rank", "rank 1.*SIGKILL", at_a_step=of_second_rank(signal.SIGKILL)),
    Fault("segfault of a rank", "rank 1.*SIGSEGV", at_a_step="import ctypes; ctypes.string_at(0)"),
    Fault("SIGSTOP of a rank", "rank 1.*stopped", at_a_step=of_second_rank(signal.SIGSTOP)),
    Fault("a rank that sleeps for ever", "rank 1.*loop.py", at_a_step="time.sleep(10_000)"),
    Fault("a rank with one batch fewer", "rank 1 ended after 20 steps", at_a_step="break"),
    Fault("a rank that exits with 0 early", "rank 1 ended after 20 steps", at_a_step="sys.exit(0)"),
    Fault("parameters that drift on one rank", "different parameters.*rank 1", steps=60, at_a_step=DRIFT),
    Fault("more memory than the node's share", "more memory", at_a_step=HOG),
    Fault("a full disk under a checkpoint", "(?i)disk is full|no space", at_a_step="torch.save(model, '/dev/full')"),
    Fault("a full disk under everything", "No space left on device|the disk is full", at_a_step=FILL, disk_mb=30),
    Fault(
        "another program on the port that the script chose",
        f"port {SCRIPTS_PORT}",
        before=listen,
        everywhere=f"event(); os.environ['MASTER_PORT'] = '{SCRIPTS_PORT}'",
        site={"launcher": "srun"},
    ),
    Fault("the walltime ends", "its time was up", outside=end_walltime),
    Fault(
        "SIGSTOP of an agent",
        r"agent of node 1 \(node2\)",
        scale="2x1",
        outside=to_second_node(r"agent\.py --run", signal.SIGSTOP),
    ),
    Fault(
        "SIGKILL of a step daemon",
        r"slurmstepd of node 1 \(node2\)",
        scale="2x1",
        outside=to_second_node(r"^slurmstepd: \[\d+\.\d+\]", signal.SIGKILL),
    ),
    Fault(
        "a node dies during training",
        "node2 does not answer",
        scale="2x1",
        outside=lambda cluster, _: cluster.kill_node("node2"),
    ),
    Fault(
        "the interface is missing on one node",
        "node2.*ib9",
        scale="2x1",
        config=PREFLIGHT,
        site={"network": {"interface": {"node1": "ib0", "node2": "ib9"}}},
    ),
    Fault(
        "another torch on one node",
        "node2.*torch 2.0.1",
        scale="2x1",
        config=PREFLIGHT,
        site=OWN_PATH,
        files={"path/node2/torch.py": OTHER_TORCH},
    ),
    Fault(
        "an all-reduce with a wrong value",
        "rank 1|wrong",
        scale="2x1",
        config=PREFLIGHT,
        site=OWN_PATH,
        files={f"path/{node}/sitecustomize.py": WRONG for node in ("node1", "node2")},
    ),
    Fault(
        "a slow link of one node",
        "node3",
        scale="4x1",
        nodes=4,
        before=slow_down,
        config={"preflight": {"enabled": True, "min_busbw_gb_per_s": 1000}},
    ),
    Fault(
        "a node whose all-reduces hang",
        "node3",
        scale="4x1",
        nodes=4,
        site=OWN_PATH,
        config={"preflight": {"enabled": True, "timeout_s": 20}},
        files={"path/node3/sitecustomize.py": HANGING},
    ),
    Fault(
        "two nodes that are cut off from each other",
        "node 2.*node3.*to node 1.*node2",
        scale="3x1",
        nodes=3,
        outside=cut_off,
    ),
    Fault(
        "a link that is cut during training",
        "node2",
        scale="2x1",
        outside=lambda cluster, _: cluster.set_link("node2", up=False),
        after=lambda cluster: cluster.set_link("node2", up=True),
    ),
)


def left_behind(running: Climb, cluster: Cluster) -> list[str]:
    """Return what an ended climb has left: processes of its checkout, jobs in the queue, gates above the fault."""
    queue = cluster.run(["squeue", "--noheader", "--format=%j"]).stdout.split()
    opened = [file.name for file in running.checkout.results.glob("gates/stage[23].json")]
    return [*running.checkout.processes(), *queue, *opened]
