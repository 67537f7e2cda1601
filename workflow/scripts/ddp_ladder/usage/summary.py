"""From the samples of a node to what its training used. Pure."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.usage.energy import gpu_energy, package_energy
from ddp_ladder.usage.figures import highest, mean, median, most, rate, rounded
from ddp_ladder.usage.growth import memory_of
from ddp_ladder.usage.models import GpuUsage, NodeUsage
from ddp_ladder.usage.ranks import RankUse, gpus_of_ranks
from ddp_ladder.usage.samples import GpuSamples, NodeSamples, Values
from ddp_ladder.usage.timeline import Timeline

WHOLLY, MOSTLY = 0.9, 0.5
"""A sample counts if this part of its interval is measured training. The second only if there is none of the first:
a sample of which half is validation shows neither of the two."""


Chosen = NDArray[np.bool_]


def measured(samples: NodeSamples, timeline: Timeline) -> Chosen:
    """Return True for each sample that is of measured training."""
    share = timeline.share_of_training(samples)
    wholly: Chosen = share >= WHOLLY
    return wholly if wholly.any() else share >= MOSTLY


def node_usage(samples: NodeSamples, timeline: Timeline, ranks: tuple[RankUse, ...]) -> NodeUsage:
    """Return what the training used of a node. ranks: of the whole run."""
    about, during = samples.about, measured(samples, timeline)

    def column(name: str) -> Values:
        values: Values = samples.column(name)[during]
        return values

    ports = [port.bits_per_s for port in about.fabrics]
    known_ports = [bits for bits in ports if bits]
    of_ranks = gpus_of_ranks(about, ranks)
    return NodeUsage(
        node_rank=about.node_rank,
        node=about.node,
        samples=int(during.sum()),
        cpus=len(about.cpus),
        cpu_fraction=mean(column("cpu_fraction")),
        cpu_busiest_fraction=mean(column("cpu_busiest_fraction")),
        node_cpu_fraction=mean(column("node_cpu_fraction")),
        training_cpu_cores=mean(column("training_cpu_cores")),
        training_processes=most(column("training_processes")),
        training_threads=most(column("training_threads")),
        training_memory=memory_of(samples.times_s, samples.column("training_private_bytes"), _measured_span(timeline)),
        node_memory_used_bytes=most(samples.column("node_memory_used_bytes")),
        node_memory_bytes=about.memory_bytes,
        interface=about.interface,
        network_received_bytes_per_s=rate(column("network_received_bytes_per_s")),
        network_sent_bytes_per_s=rate(column("network_sent_bytes_per_s")),
        interface_bytes_per_s=about.interface_bits_per_s / 8 if about.interface_bits_per_s else None,
        fabric_received_bytes_per_s=rate(column("fabric_received_bytes_per_s")),
        fabric_sent_bytes_per_s=rate(column("fabric_sent_bytes_per_s")),
        fabric_bytes_per_s=sum(known_ports) / 8 if ports and len(known_ports) == len(ports) else None,
        disk_read_bytes_per_s=rate(column("disk_read_bytes_per_s")),
        shm_used_bytes=most(samples.column("shm_used_bytes")),
        package_energy=package_energy(samples, timeline),
        gpus=tuple(_gpu(gpu, samples, timeline, during, of_ranks.get(gpu.about.index)) for gpu in samples.gpus),
    )


def _measured_span(timeline: Timeline) -> tuple[float, float]:
    """Return the time from the end of the warm-up to the last step, with the validations between."""
    spans = [span for span in timeline.spans if span.phase in ("training", "run")]
    return (spans[0].begin_s, spans[-1].end_s) if spans else (0.0, 0.0)


def _gpu(gpu: GpuSamples, samples: NodeSamples, timeline: Timeline, during: Chosen, rank: RankUse | None) -> GpuUsage:
    about = gpu.about

    def average(name: str) -> float | None:
        return mean(gpu.column(name)[during])

    return GpuUsage(
        index=about.index,
        name=about.name,
        uuid=about.uuid,
        rank=rank.rank if rank else None,
        busy_fraction=average("busy_fraction"),
        memory_used_bytes=most(gpu.column("memory_used_bytes")),
        memory_bytes=about.memory_bytes,
        memory_busy_fraction=average("memory_busy_fraction"),
        power_w=average("power_w"),
        power_limit_w=about.power_limit_w,
        temperature_c=highest(gpu.column("temperature_c")),
        sm_clock_mhz=median(gpu.column("sm_clock_mhz")[during]),
        max_sm_clock_mhz=about.max_sm_clock_mhz,
        throttled=_throttled(gpu, during),
        sm_active_fraction=average("sm_active_fraction"),
        tensor_active_fraction=average("tensor_active_fraction"),
        dram_active_fraction=average("dram_active_fraction"),
        energy=gpu_energy(gpu, samples.times_s, timeline),
    )


def _throttled(gpu: GpuSamples, during: Chosen) -> dict[str, float] | None:
    """Return the share of the samples with each reason; None if no sample has them."""
    known = [found for k in np.flatnonzero(during) if (found := gpu.throttle_reasons[k]) is not None]
    seen = Counter(reason for found in known for reason in set(found))
    return {reason: rounded(seen[reason] / len(known)) for reason in sorted(seen)} if known else None
