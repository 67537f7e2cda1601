"""Time limits that grow with the number of nodes."""

from __future__ import annotations

# `import torch.distributed` looks up about 5,000 paths. A node caches what it has looked up, but all nodes ask the same
# file system at the same time, and its metadata server answers about 20,000 requests a second.
NODES_STARTED_PER_S = 4


def start_allowance_s(nodes: int) -> float:
    """Return how much later than one node alone so many nodes may have started Python and torch, in whole seconds."""
    return float(nodes // NODES_STARTED_PER_S)
