"""Machines, as a node's agent describes them, for tests."""

from __future__ import annotations

from typing import Any

from ddp_ladder.nodes.describe import GIB, Machine


def make_machine(scale: str = "1x1", node: str = "node1", **changes: Any) -> Machine:
    """Return a node with one of a node's eight H100."""
    machine = Machine(
        schema_version=1,
        scale=scale,
        node=node,
        system="Rocky Linux 9.4 (Blue Onyx), kernel 5.14.0-427.el9.x86_64",
        processors="2 x Intel(R) Xeon(R) Platinum 8468",
        cpus=96,
        memory_bytes=1007 * GIB,
        gpus=("NVIDIA H100 80GB HBM3",),
        driver="545.23.08",
        interface="ib0, 400 Gbit/s",
        adapters=("mlx5_0", "mlx5_1"),
    )
    return machine.replace(**changes)
