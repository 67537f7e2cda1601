"""What an agent does beside its ranks: it samples its node, and describes it once per job."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import psutil

from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.node.network import node_name
from ddp_ladder.nodes.describe import describe, machine_directory, read_machine, remove_others
from ddp_ladder.nodes.files import MonitorFile
from ddp_ladder.nodes.gpus import Gpus, open_nvidia
from ddp_ladder.nodes.sampler import NodeMonitor, NodeSampler
from ddp_ladder.records.raw_models import RunFile, read_run_file

DESCRIBED_WITHIN_S = 5.0  # for a command that is under way when a short run ends


def started_monitor(directory: RunDirectory, agent: Agent, interface: str) -> NodeMonitor | None:
    """Return the monitor of the agent's node, started; None if the run has none, or if it is another agent's."""
    run = read_run_file(directory)
    if run.monitor is None or agent.local_rank not in (None, 0):
        return None
    node_rank, every_s = agent.node_rank, run.monitor.every_s
    environment = {**os.environ, **run.spec.env}
    open_sampler = partial(_sampler, run, interface, environment)
    description = partial(_description, run, node_rank, every_s)
    return NodeMonitor(directory.monitor(node_rank), directory.samples(node_rank), every_s, open_sampler, description)


def _sampler(run: RunFile, interface: str, environment: Mapping[str, str]) -> NodeSampler:
    gpus = Gpus(notes=("GPUs: not sampled, the run trains on CPUs",))
    if run.spec.device == "cuda":
        gpus = open_nvidia(environment)
    return NodeSampler(interface, gpus, siblings=run.agents_per_node > 1)


def _description(run: RunFile, node_rank: int, every_s: float, sampler: NodeSampler) -> MonitorFile:
    return MonitorFile(
        schema_version=1,
        spec_hash=run.spec_hash,
        job=run.job,
        node_rank=node_rank,
        node=node_name(),
        host=socket.gethostname(),
        every_s=every_s,
        interface=sampler.interface,
        interface_bits_per_s=sampler.interface_bits_per_s,
        cpus=tuple(sorted(sampler.cpus)),
        memory_bytes=psutil.virtual_memory().total,
        fabrics=tuple(port.about for port in sampler.ports),
        gpus=tuple(gpu.about for gpu in sampler.gpus.each),
        notes=sampler.gpus.notes,
    )


def started_description(directory: RunDirectory, agent: Agent, interface: str) -> threading.Thread | None:
    """Return the thread that describes the agent's node; None if its job, or another agent, does, or it is known."""
    run = read_run_file(directory)
    results = _results(directory, run)
    if run.is_preflight or results is None or agent.local_rank or not speaks_for_node(run, agent.node_rank):
        return None
    known = read_machine(machine_directory(results, run.spec.scale, run.nodes[agent.node_rank]))
    if known is not None and known.job_id == run.job.id:
        return None

    def work() -> None:
        # A run does not fail because its node cannot be described: the job's next run tries again.
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            describe_node(results, run, agent.node_rank, interface, run.spec.device == "cuda")

    thread = threading.Thread(target=work, name="machine", daemon=True)
    thread.start()
    return thread


def speaks_for_node(run: RunFile, node_rank: int) -> bool:
    """Return True for the first of the nodes with the same name: several are simulated on one machine."""
    return run.nodes.index(run.nodes[node_rank]) == node_rank


def describe_node(results: Path, run: RunFile, node_rank: int, interface: str, has_gpus: bool) -> None:
    """Write what this node is made of. Raises OSError."""
    if node_rank == 0:
        remove_others(results, run.spec.scale, run.nodes)
    describe(results, run.job.id, str(run.spec.scale), run.nodes[node_rank], interface, has_gpus)


def _results(directory: RunDirectory, run: RunFile) -> Path | None:
    """Return the results directory that the run is part of; None for one that was started by hand elsewhere."""
    place = ("runs", *Path(run.spec.name).parts)
    path = directory.path
    return path.parents[len(place) - 1] if path.parts[-len(place) :] == place else None
