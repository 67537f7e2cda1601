"""The monitor of a node, as its agent starts it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import partial

from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.monitor import memory
from ddp_ladder.monitor.amd import open_amd
from ddp_ladder.monitor.gpus import Gpus, opened
from ddp_ladder.monitor.models import MonitorFile
from ddp_ladder.monitor.node_monitor import NodeMonitor
from ddp_ladder.monitor.nvml import open_nvidia
from ddp_ladder.monitor.sampler import NodeSampler
from ddp_ladder.node.network import node_name
from ddp_ladder.records.raw_models import RunFile, read_run_file


def started_monitor(directory: RunDirectory, agent: Agent, interface: str) -> NodeMonitor | None:
    """Return the monitor of the agent's node, started; None if the run has none, or if it is another agent's."""
    run = read_run_file(directory)
    if run.monitor is None or agent.local_rank not in (None, 0):
        return None
    node_rank, every_s = agent.node_rank, run.monitor.every_s
    environment = {**os.environ, **run.spec.env}
    open_sampler = partial(_sampler, run, interface, environment)
    describe = partial(_description, run, node_rank, every_s)
    monitor = NodeMonitor(directory.monitor(node_rank), directory.samples(node_rank), every_s, open_sampler, describe)
    monitor.start()
    return monitor


def _sampler(run: RunFile, interface: str, environment: Mapping[str, str]) -> NodeSampler:
    gpus = Gpus(notes=("GPUs: not sampled, the run trains on CPUs",))
    if run.spec.device == "cuda":
        gpus = opened(partial(_open_gpus, environment))
    return NodeSampler(interface, gpus, siblings=run.agents_per_node > 1)


def _open_gpus(environment: Mapping[str, str]) -> Gpus:
    nvidia = open_nvidia(environment)
    amd = Gpus() if nvidia.each else open_amd(environment)
    return amd if amd.each else Gpus(nvidia.each, (*nvidia.notes, *amd.notes))


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
        cpus_of_node=os.cpu_count() or 1,
        memory_bytes=memory.total_bytes(),
        fabrics=tuple(port.about for port in sampler.ports),
        gpus=tuple(gpu.about for gpu in sampler.gpus.each),
        notes=tuple(sampler.notes),
    )
