"""Slurm's ways to write amounts and names."""

from __future__ import annotations

import pytest
from ddp_ladder.slurm.query import host_names, seconds, tres


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0:59", 59),
        ("5:00", 300),
        ("2:03:04", 7384),
        ("1-02:03:04", 93784),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_seconds(text: str, found: float | None) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node1", ["node1"]),
        ("node[08-10],login", ["node08", "node09", "node10", "login"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("(null)", []),
        ("", []),
    ],
)
def test_host_names(text: str, found: list[str]) -> None:
    assert list(host_names(text)) == found


def test_tres_counts_memory_in_mb() -> None:
    assert tres("cpu=48,mem=96000M,node=6,gres/gpu:a100=24") == {
        "cpu": 48, "mem": 96000, "node": 6, "gres/gpu:a100": 24,
    }  # fmt: skip
    assert tres("mem=1.50T") == {"mem": 1572864}
    assert tres("") == {}
