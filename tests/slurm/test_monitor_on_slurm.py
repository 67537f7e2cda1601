"""The samples of two nodes of a real Slurm: of the whole run, and right. test_job_ends.py has a job that is ended."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from cluster import Cluster
from ddp_ladder.common.files import Agent, RunDirectory, read_json
from ddp_ladder.records.raw_models import AgentEnd
from make_runs import monitor_file
from project_copy import NO_TORCH, copy_project
from scales import GPU_SITE, prepare, salloc, scale_job

pytestmark = pytest.mark.slurm

JOB = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:2"]
SITE = {**GPU_SITE, "launcher": "srun"}  # two agents on each node
WITHIN = 0.1  # of what the script itself measured

# Each rank uses a fifth of a core. The first of each node sends to the other node. Beside its work it writes down what
# the system counts: its own CPU time, and the bytes of the interface in its own network namespace.
LOAD = """
import json, os, socket, threading, time
here, rank = os.path.dirname(os.environ["DDP_LADDER_RUN"]), int(os.environ["RANK"])
other = "node2" if os.environ["SLURMD_NODENAME"] == "node1" else "node1"
first, end_s, seen, sent = rank % 2 == 0, time.time() + 5, [], 0
server = socket.create_server(("", 17171)) if first else None
def receive():
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
def reach():
    while True:
        try:
            return socket.create_connection((other, 17171))
        except ConnectionRefusedError:
            time.sleep(0.05)
if first:
    thread = threading.Thread(target=receive)
    thread.start()
    link = reach()
while time.time() < end_s:
    begin_s = time.process_time()
    while time.process_time() < begin_s + 0.01:
        pass
    if first:
        link.sendall(bytes(100_000))
        sent += 100_000
    line = next(line for line in open("/proc/net/dev") if line.strip().startswith("ib0:"))
    fields = line.partition(":")[2].split()
    used = os.times()
    seen.append([time.time(), used.user + used.system, int(fields[0]), int(fields[8])])
    time.sleep(0.04)
if first:
    link.close()
    thread.join()
with open(f"{here}/seen{rank}.json", "w") as file:
    json.dump({"seen": seen, "sent": sent}, file)
"""


@dataclass(frozen=True)
class Samples:
    """The samples of a node."""

    rows: Sequence[Mapping[str, str]]

    @classmethod
    def read(cls, path: Path) -> Samples:
        return cls(list(csv.DictReader(path.open())))

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array([float(row[name] or "nan") for row in self.rows])

    def total(self, name: str, begin_s: float, end_s: float) -> tuple[float, float, float]:
        """Return the sum of a rate between two samples, those next to these times, and the samples' times."""
        times_s = self["time_s"]
        (inside,) = np.nonzero((times_s > begin_s) & (times_s < end_s))
        first, last = inside[0], inside[-1]
        steps_s = np.diff(times_s[first : last + 1])
        return float(np.sum(self[name][first + 1 : last + 1] * steps_s)), times_s[first], times_s[last]


@pytest.fixture(scope="module")
def loaded(cluster_without_accounting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    checkout = copy_project(tmp_path_factory.mktemp("project"))
    prepare(checkout, LOAD + NO_TORCH, "2x2", SITE, repeats=1, monitor={"every_s": 0.5})
    salloc(cluster_without_accounting, checkout, JOB, scale_job("2x2"))
    return RunDirectory(checkout.results / "runs/default/weak/2x2/r1")


def seen_by(run: RunDirectory, rank: int) -> tuple[np.ndarray, int]:
    """Return what a rank saw: rows of unix time, its CPU seconds, and the interface's bytes received and sent."""
    seen = read_json(run.path / f"seen{rank}.json")
    return np.array(seen["seen"]), seen["sent"]


@pytest.mark.parametrize("node", [0, 1])
def test_the_samples_of_each_node_cover_its_run(loaded: RunDirectory, node: int) -> None:
    about = monitor_file(loaded, Agent(node, 0))
    assert (about.node_rank, about.node, about.interface, about.gpus) == (node, f"node{node + 1}", "ib0", ())
    times_s = Samples.read(loaded.samples(node))["time_s"]
    ends = [AgentEnd.from_json(read_json(loaded.agent_end(Agent(node, task)))) for task in (0, 1)]
    seen, _ = seen_by(loaded, 2 * node)
    assert ends[0].launched_at_s <= times_s[0] < seen[0, 0]
    assert seen[-1, 0] < times_s[-1] <= ends[0].ended_at_s
    assert ends[0].monitor is not None
    assert (ends[0].monitor.samples, ends[0].monitor.error) == (len(times_s), None)
    assert ends[1].monitor is None  # the first task samples the node
    assert len(times_s) >= 8
    assert sorted(path.name for path in loaded.nodes.glob("*.csv")) == ["node0.csv", "node1.csv"]


@pytest.mark.parametrize("node", [0, 1])
def test_the_cpu_time_of_all_ranks_of_a_node_is_what_the_system_counts_for_them(
    loaded: RunDirectory, node: int
) -> None:
    samples = Samples.read(loaded.samples(node))
    ranks = [seen_by(loaded, rank)[0] for rank in (2 * node, 2 * node + 1)]
    begin_s, end_s = max(rank[0, 0] for rank in ranks), min(rank[-1, 0] for rank in ranks)
    sampled_s, from_s, to_s = samples.total("training_cpu_cores", begin_s, end_s)
    used_s = sum(np.diff(np.interp([from_s, to_s], rank[:, 0], rank[:, 1]))[0] for rank in ranks)
    assert sampled_s == pytest.approx(used_s, rel=WITHIN)
    about = monitor_file(loaded, Agent(node, 0))
    cpus = {cpu for task in (0, 1) for cpu in read_json(loaded.agent_end(Agent(node, task)))["cpus"]}
    assert set(about.cpus) == cpus


@pytest.mark.parametrize("node", [0, 1])
def test_the_bytes_of_the_interface_are_those_of_the_nodes_own_network(loaded: RunDirectory, node: int) -> None:
    seen, sent = seen_by(loaded, 2 * node)
    samples = Samples.read(loaded.samples(node))
    for direction, column in (("received", 2), ("sent", 3)):
        sampled, from_s, to_s = samples.total(f"network_{direction}_bytes_per_s", seen[0, 0], seen[-1, 0])
        counted = np.diff(np.interp([from_s, to_s], seen[:, 0], seen[:, column]))[0]
        assert sampled == pytest.approx(counted, rel=WITHIN)
        share = (to_s - from_s) / (seen[-1, 0] - seen[0, 0])
        assert counted > 0.5 * share * sent  # the load was there
