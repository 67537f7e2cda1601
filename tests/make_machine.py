"""Machines, as a node's agent describes them, for tests."""

from __future__ import annotations

from ddp_ladder.nodes.sampler import NodeDescription

WORDS = (
    "1 x NVIDIA H100 80GB HBM3 (driver 545.23.08); 2 x Intel(R) Xeon(R) Platinum 8468; 96 CPUs; 1007 GiB; "
    "ib0, 400 Gbit/s; adapters mlx5_0, mlx5_1; Rocky Linux 9.4 (Blue Onyx), kernel 5.14.0-427.el9.x86_64"
)


def make_machine(scale: str = "1x1", node: str = "node1", driver: str = "545.23.08") -> NodeDescription:
    """Return a node with one of a node's eight H100."""
    return NodeDescription(schema_version=1, scale=scale, node=node, in_words=WORDS.replace("545.23.08", driver))
