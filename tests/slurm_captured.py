"""Captured output of Slurm's commands; tests/unit/slurm_output/README.md names the source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.slurm.offer import SlurmError

CAPTURED = Path(__file__).parent / "unit/slurm_output"


def answer(argv: Sequence[str]) -> str:
    """Return the command's captured output. Raises SlurmError for a command that was not captured."""
    line = " ".join(argv)
    for words, name in (
        ("show config", "config"),
        ("--all show partition", "partition"),
        ("--all show node", "node"),
        ("--all show reservation", "reservation"),
        ("show assoc account=", "assoc_account"),
        ("show assoc user=", "assoc_user"),
        ("show qos", "qos"),
        ("show user", "user"),
    ):
        if words in line:
            return (CAPTURED / f"{name}.txt").read_text()
    raise SlurmError(line)
