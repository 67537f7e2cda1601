"""Machines, as a node's agent describes them, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddp_ladder.machine.collect import gpus
from ddp_ladder.machine.lscpu import parse_lscpu
from ddp_ladder.machine.model import Bound, Cpuset, Machine, NetworkInterface, NumaFacts, RankAffinity
from ddp_ladder.machine.nvidia_smi import parse_query, parse_topology

OUTPUT = Path(__file__).parent / "unit/machine/output"
GIB = 1024**3


def make_machine(scale: str = "1x1", node: str = "node1", **changes: Any) -> Machine:
    """Return a node with one of a node's eight H100, from captured output, in a job step with 16 of its CPUs."""
    queried = parse_query((OUTPUT / "h100_545_q.txt").read_text())
    machine = Machine(
        schema_version=1,
        job_id="7",
        scale=scale,
        node=node,
        host=node,
        taken_at_s=1_790_000_000.0,
        kernel="5.14.0-427.el9.x86_64",
        os="Rocky Linux 9.4 (Blue Onyx)",
        cpu=parse_lscpu((OUTPUT / "h100_545_lscpu.txt").read_text()),
        memory_bytes=1007 * GIB,
        numa_nodes=tuple(NumaFacts(number=k, cpus=f"{48 * k}-{48 * k + 47}", memory_bytes=503 * GIB) for k in (0, 1)),
        cpuset=Cpuset(
            cgroup="/slurm/uid_1000/job_7/step_0",
            cpus="0-15",
            memory_nodes="0-1",
            allowed_cpus="0-15",
            allowed_memory_nodes="0-1",
        ),
        interface=NetworkInterface(name="ib0", address="10.0.0.1", speed_mbit_per_s=400_000, mtu=2044),
        driver=queried.driver,
        cuda=queried.cuda,
        gpus=gpus(queried, parse_topology((OUTPUT / "h100_545_topo.txt").read_text()), "0", Path("/nowhere")),
        affinity_of=f"default/weak/{scale}/r1",
        ranks=(make_affinity(0, "0-15"),),
    )
    return machine.replace(**changes)


def make_affinity(rank: int, cpus: str, *other_threads: str) -> RankAffinity:
    """Return a rank of 12 threads on these CPUs, and further ones elsewhere."""
    bound = (Bound(cpus=cpus, threads=12), *(Bound(cpus=other, threads=1) for other in other_threads))
    return RankAffinity(rank=rank, node_rank=0, pid=100 + rank, steps=3, cpus=cpus, memory_nodes="0-1", bound=bound)
