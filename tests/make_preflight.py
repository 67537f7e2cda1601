"""Make facts of healthy nodes for tests of the preflight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from ddp_ladder.common.files import write_json
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.platform.accelerators import NodeGpu
from ddp_ladder.platform.launchers import Rendezvous
from ddp_ladder.preflight.directory import PreflightDirectory, assemble_preflight
from ddp_ladder.preflight.nodes import DirectoryFacts, GpusFacts, InterfaceFacts, NodeFacts
from ddp_ladder.preflight.result import PreflightResult, result_file
from ddp_ladder.records.raw_models import AgentEnd, Job, PreflightLimits, RunFile

GIB = 2**30
JOB = Job(id="17", attempt=1, run_id="a" * 32)
STARTED_AT_S = 1_800_000_000.0
LATENCY_S, BYTES_PER_S = 20e-6, 5e9  # of an all-reduce
GPU = NodeGpu(
    index=0, uuid="GPU-0", name="NVIDIA A100-SXM4-64GB", driver="570.86.15", power_limit_w=400.0, memory_used_mib=4.0
)
# Of the site's Python: a rank's all-reduce returns a wrong value in its last element.
WRONG = """
import builtins, os, sys
import_module = builtins.__import__
def wrapping(*arguments, **named):
    module = import_module(*arguments, **named)
    dist = sys.modules.get("torch.distributed")
    if os.environ.get("RANK") == "1" and hasattr(dist, "all_reduce") and not hasattr(dist, "right"):
        dist.right = dist.all_reduce
        def all_reduce(tensor, *arguments, **named):
            work = dist.right(tensor, *arguments, **named)
            tensor.view(-1)[-1] += 1
            return work
        dist.all_reduce = all_reduce
    return module
builtins.__import__ = wrapping
"""
INTERFACE = InterfaceFacts(name="ib0", address="10.0.0.1")


def has_ended(pid: int, within_s: float = 30) -> bool:
    """Return True once a process that was killed has ended, even if nobody has reaped it."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def gpus_facts(*gpus: NodeGpu, **changes: Any) -> GpusFacts:
    return GpusFacts(gpus=gpus, visible_devices="0,1").replace(**changes)


def directory(path: str) -> DirectoryFacts:
    return DirectoryFacts(path=path, free_bytes=500 * GIB)


def node_facts(rank: int = 0, **changes: Any) -> NodeFacts:
    """Return the facts of a healthy node in Slurm, with two GPUs; ``changes`` are fields of NodeFacts."""
    return NodeFacts(
        schema_version=1,
        spec_hash="5" * 64,
        job=JOB,
        node=f"node{rank + 1}",
        host=f"node{rank + 1}",
        node_rank=rank,
        in_slurm=True,
        cpus=4,
        gpus=gpus_facts(GPU, GPU.replace(index=1, uuid="GPU-1")),
        interface=INTERFACE.replace(address=f"10.0.0.{rank + 1}"),
        head="10.0.0.1:23456",
        link_error=None,
        shared_memory=directory("/dev/shm"),
        run_directory=directory("/scratch/results"),
        marker_seen=True,
    ).replace(**changes)


def probe_rank(spec: RunSpec, k: int, job: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the file of a rank of the probe that came to its end; ``changes`` are its fields."""
    node, local = divmod(k, spec.gpus_per_node)
    sizes = [4096 * 4**n for n in range(9)]
    return {
        "schema_version": 1,
        "spec_hash": spec.hash,
        "job": dict(job),
        "rank": k,
        "local_rank": local,
        "node_rank": node,
        "world_size": spec.world_size,
        "node": f"node{node + 1}",
        "host": f"node{node + 1}",
        "pid": 1000 + k,
        "step": 9,
        "doing": "done",
        "at_s": STARTED_AT_S + 8 + k / 10,
        "error": None,
        "device": {"kind": spec.device, "index": None, "name": None, "id": f"{spec.device}:{k}"},
        "versions": {"torch": "2.8.0", "cuda": None, "nccl": None},
        "sizes": [{"bytes": size, "time_s": LATENCY_S + size / BYTES_PER_S, "wrong": []} for size in sizes],
        "pairs": [],
        **changes,
    }


def run_file(spec: RunSpec, path: Path, host: str = "10.0.0.1", port: int = 23456) -> RunFile:
    """Return the run.json of a preflight in this directory. host, port: of the head."""
    return RunFile(
        schema_version=2,
        spec=spec,
        spec_hash=spec.hash,
        job=JOB,
        rendezvous=Rendezvous(id="17", host=host, port=port),
        start_directory=str(path.parent),
        run_directory=str(path),
        nodes=tuple(f"node{k + 1}" for k in range(spec.nodes)),
        agents_per_node=1,
        preflight=PreflightLimits(timeout_s=60.0, largest_bytes=256 * 1024**2),
    )


def agent_end(run: RunFile, node_rank: int = 0, **changes: Any) -> AgentEnd:
    """Return the end record of the agent of a node, which ended well; ``changes`` are its fields."""
    place: dict[str, Any] = {"node_rank": node_rank, "node": run.nodes[node_rank], "host": run.nodes[node_rank]}
    times = {"launched_at_s": STARTED_AT_S, "ended_at_s": STARTED_AT_S + 6}
    end = AgentEnd(**run.identity, **place, **times, local_rank=None, exit_code=0, signal=None, argv=(), cpus=())
    return end.replace(**changes)


def write_preflight(results: Path, job: ScaleJob, **ranks: Mapping[str, Any] | None) -> Path:
    """Write the raw files of a preflight, and its result; return the result's path.

    ranks: changes of a rank's file by its name (``rank1={"error": ...}``), or None for a rank that left none.
    """
    spec = job.runs[0]
    directory = PreflightDirectory(results / "preflight" / str(spec.scale))
    write_json(directory.run, run_file(spec, directory.path).model_dump())
    for k in range(spec.nodes):
        write_json(directory.node_facts(k), node_facts(k, spec_hash=spec.hash).model_dump())
    for k in range(spec.world_size):
        changes = ranks.get(f"rank{k}", {})
        if changes is not None:
            write_json(directory.ranks / f"rank{k}.json", probe_rank(spec, k, JOB.model_dump(), **changes))
    write_result(results, job)
    return result_file(results, spec.scale)


def write_result(results: Path, job: ScaleJob) -> PreflightResult:
    """Assemble the result from the raw files, as the job does at its end."""
    file = result_file(results, job.scale)
    times_s = STARTED_AT_S, STARTED_AT_S + 9
    result = assemble_preflight(PreflightDirectory(file.with_suffix("")), job, times_s, has_collectives=True)
    write_json(file, result.model_dump())
    return result
