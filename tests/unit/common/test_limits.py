"""Limits that grow with the nodes."""

from __future__ import annotations

from ddp_ladder.common.limits import start_allowance_s


def test_more_nodes_start_later() -> None:
    assert [start_allowance_s(nodes) for nodes in (1, 2, 64, 1024)] == [0, 0, 16, 256]
