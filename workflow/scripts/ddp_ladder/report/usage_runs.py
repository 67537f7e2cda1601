"""The samples of a run, read for its picture. Damaged or missing samples are a note, never an error."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.nodes.read import NodeSamples, Timeline
from ddp_ladder.records.node_usage import read_node_samples, timelines_of
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import Record
from ddp_ladder.records.statistic import Warmup
from ddp_ladder.report.traces import Dip, dips
from ddp_ladder.report.usage_panels import gpu_traces

FIRST_RANK = (0,)


@dataclass(frozen=True)
class SampledRun:
    """The samples of a run. nodes: with the GPUs that its ranks trained on. timeline: of its first node."""

    record: Record
    nodes: tuple[NodeSamples, ...]
    timeline: Timeline

    @property
    def dips(self) -> list[Dip]:
        """Return the times in which its least busy GPU waited."""
        every_s = max((node.about.every_s for node in self.nodes), default=1.0)
        return dips(gpu_traces(self.nodes, "busy_fraction"), self.timeline.spans, every_s)


def read_sampled_run(directory: RunDirectory, record: Record) -> SampledRun | None:
    """Read the samples of a run's nodes; None if there are none. Why one has none is in the record's usage.

    Raises OSError or ValueError if its files have been damaged since.
    """
    if record.usage is None or not record.usage.nodes:
        return None
    raw = read_raw_run(directory, FIRST_RANK)  # the others' steps may be many, and are not drawn
    nodes = [_used(samples, record) for samples in read_node_samples(raw, directory, []).values() if len(samples)]
    if not nodes:
        return None
    warmup = record.timing.warmup_steps if record.timing else record.spec.warmup_steps
    timelines = timelines_of(raw, Warmup(warmup, stable=True))
    return SampledRun(record, tuple(nodes), timelines[nodes[0].about.node_rank])


def _used(samples: NodeSamples, record: Record) -> NodeSamples:
    """Return the samples with only the GPUs that ranks trained on; with all of them if that is not known."""
    nodes = record.usage.nodes if record.usage else ()
    used = [gpu.index for node in nodes if node.node_rank == samples.about.node_rank for gpu in node.used_gpus]
    return replace(samples, gpus=tuple(gpu for gpu in samples.gpus if not used or gpu.about.index in used))
