"""Captured output of Slurm's commands; tests/unit/slurm_output/README.md names the source."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.slurm.query import records

CAPTURED = Path(__file__).parent / "unit/slurm_output"
NODES = (CAPTURED / "node.txt").read_text()
PARTITIONS = {row["PartitionName"]: row for row in records((CAPTURED / "partition.txt").read_text(), "PartitionName")}


def shows(nodes: Path = CAPTURED / "node.txt", partitions: Path = CAPTURED / "partition.txt") -> str:
    """Shell of a scontrol that shows these partitions and nodes."""
    return f'case "$*" in *partition) cat {partitions};; *node) cat {nodes};; esac'
