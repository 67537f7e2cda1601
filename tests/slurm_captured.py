"""Captured output of Slurm's commands; tests/unit/slurm_output/README.md names the source."""

from __future__ import annotations

from pathlib import Path

CAPTURED = Path(__file__).parent / "unit/slurm_output"
