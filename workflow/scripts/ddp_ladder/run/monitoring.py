"""What an agent does beside its ranks: it samples its node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import partial

import psutil

from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.node.network import node_name
from ddp_ladder.nodes.files import MonitorFile
from ddp_ladder.nodes.gpus import Gpus, open_nvidia
from ddp_ladder.nodes.sampler import NodeMonitor, NodeSampler
from ddp_ladder.records.raw_models import RunFile


def started_monitor(directory: RunDirectory, run: RunFile, agent: Agent, interface: str) -> NodeMonitor | None:
    """Return the monitor of the agent's node, started; None if the run has none, or if it is another agent's."""
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
