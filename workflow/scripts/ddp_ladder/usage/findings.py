"""What is wrong with what a run used: every finding, the most telling first. Pure."""

from __future__ import annotations

from ddp_ladder.usage.gpu_findings import gpu_findings
from ddp_ladder.usage.host_findings import host_findings, other_processes
from ddp_ladder.usage.models import NodeUsage, UsageFinding
from ddp_ladder.usage.run_use import RunUse
from ddp_ladder.usage.slow_node import slow_node_findings

LEAST_SAMPLES = 5  # of measured training on a node: fewer show a moment of it


def findings(run: RunUse) -> tuple[UsageFinding, ...]:
    """Return the findings on a run; ``run.nodes`` are those with enough samples."""
    return (*other_processes(run), *slow_node_findings(run), *gpu_findings(run), *host_findings(run))


def enough(node: NodeUsage) -> bool:
    """Return True if a node has enough samples of the measured training."""
    return node.samples >= LEAST_SAMPLES
