"""What a run used, and how its ranks trained: what findings are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.monitor.models import MonitorFile
from ddp_ladder.plan.asked import Asked
from ddp_ladder.usage.critical_rank import StepParts
from ddp_ladder.usage.models import GpuUsage, NodeUsage
from ddp_ladder.usage.ranks import RankUse

NAMED = 3  # GPUs, or nodes, that a finding names


@dataclass(frozen=True)
class RunUse:
    """A run. about: of each node, by its rank. Fractions are of the step time; None: not known.

    nodes: those with enough samples of the measured training. simulated: several agents share one machine.
    epochs: passes over the training data that were begun; 0 if the loop has none. batch_is_share: batch_per_gpu is not
    the key's value, but a part of it (strong scaling). gpus_per_node: of the scale. threads_per_rank: that the ladder
    sets. asked: by the job, on each node.
    """

    nodes: tuple[NodeUsage, ...]
    about: Mapping[int, MonitorFile]
    ranks: tuple[RankUse, ...]
    simulated: bool
    on_gpus: bool
    batch_per_gpu: int
    batch_is_share: bool
    gpus_per_node: int
    threads_per_rank: int
    asked: Asked | None = None
    data_wait_fraction: float | None = None
    exposed_comm_fraction: float | None = None
    step: StepParts | None = None
    epochs: int = 0

    @property
    def gpus(self) -> tuple[tuple[NodeUsage, GpuUsage], ...]:
        """Return the GPUs that ranks trained on, with their nodes."""
        return tuple((node, gpu) for node in self.nodes for gpu in node.used_gpus)

    def ranks_of(self, node: NodeUsage) -> tuple[RankUse, ...]:
        return tuple(rank for rank in self.ranks if rank.node_rank == node.node_rank)


def gpus_in_words(some: Sequence[tuple[NodeUsage, GpuUsage]], run: RunUse) -> str:
    """Return ``GPU 2 of node1``, ``all 8 GPUs``, ``GPU 0 of node1, GPU 2 of node1 and 3 more``."""
    if len(some) == len(run.gpus) > 1:
        return _all(len(some), "GPUs")
    return listed([f"GPU {gpu.index} of {node.node}" for node, gpu in some])


def nodes_in_words(some: Sequence[NodeUsage], run: RunUse) -> str:
    """Return ``node1``, ``all 4 nodes``, ``node1, node2, node3 and 3 more``."""
    if len(some) == len(run.nodes) > 1:
        return _all(len(some), "nodes")
    return listed([node.node for node in some])


def _all(number: int, what: str) -> str:
    return f"both {what}" if number == 2 else f"all {number} {what}"


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    names = [*dict.fromkeys(names)]
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def one(names: Sequence[str]) -> str | None:
    """Return the name if all are the same."""
    return names[0] if len({*names}) == 1 else None


def place_of(some: Sequence[tuple[NodeUsage, GpuUsage]]) -> tuple[str | None, int | None]:
    """Return node and GPU of a finding on these GPUs: None where there are several."""
    return one([node.node for node, _ in some]), some[0][1].index if len(some) == 1 else None


def share(fraction: float) -> str:
    """Return ``43 %``."""
    return f"{100 * fraction:.0f} %"


def shares(fractions: Sequence[float]) -> str:
    """Return ``43 %``, or ``43 to 51 %``."""
    low, high = f"{100 * min(fractions):.0f}", f"{100 * max(fractions):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"
