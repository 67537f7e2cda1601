"""The collectives of the preflight: exact values, figures, transports, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_ladder.preflight.collectives import (
    bandwidth_findings,
    fit,
    networks_used,
    transport_findings,
    transports,
)
from ddp_ladder.preflight.result import PairRow, SizeRow
from ddp_ladder.settings.terms import Transport
from ddp_ladder_instrument.slow_settings import REMOVE
from ddp_ladder_probe import collectives
from ddp_ladder_probe.collectives import CHUNK, KINDS, MIB, WEIGHTS, fill, wrong_elements
from make_records import make_spec


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 7, 700])
def test_the_sum_is_exact_and_each_rank_adds_its_own(kind: torch.dtype, ranks: int) -> None:
    total, values = torch.zeros(2000, dtype=kind), torch.zeros(2000, dtype=kind)
    weights = [rank % WEIGHTS[kind] + 1 for rank in range(ranks)]
    for weight in weights:
        fill(values, weight, 2)
        total += values
    assert wrong_elements(total, sum(weights), 2) == 0
    assert wrong_elements(total, sum(weights) + 1, 2) > 0  # a rank counted twice
    assert wrong_elements(total, sum(weights), 1) > 0  # the result of another round


def test_one_wrong_element_is_found_in_any_chunk() -> None:
    values = torch.zeros(CHUNK + 10, dtype=torch.int64)
    fill(values, 3, 0)
    values[CHUNK + 4] += 1
    assert wrong_elements(values, 3, 0) == 1


@pytest.mark.parametrize(("device", "rounds"), [("cpu", 3), ("cuda", 8)])
def test_between_gpus_more_sizes_are_checked_in_more_rounds(
    device: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the all-reduces, which there are none of on CUDA here."""
    checked: list[int] = []
    group: Any = SimpleNamespace(device=SimpleNamespace(type=device), told=lambda value: value, left_s=1e9)
    monkeypatch.setattr(collectives, "timed", lambda *_: 1e-3)
    with monkeypatch.context() as patch:
        patch.setattr(collectives, "wrong_values", lambda group, size: checked.append(size) or ["wrong"])
        largest = [entry["wrong"] for entry in collectives.sizes(group, 256 * MIB)][-1]
    assert largest == ["wrong"]
    powers = [size // MIB for size in checked if MIB <= size <= 128 * MIB]
    assert powers == ([1, 4, 16, 64] if device == "cpu" else [1, 2, 4, 8, 16, 32, 64, 128])
    group = SimpleNamespace(device=torch.device("cpu"), rank=0, size=1, wait=lambda: None)
    if device == "cuda":
        monkeypatch.setattr(collectives, "THOROUGH", collectives.THOROUGH_ON_GPUS)
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda values: values.add_(1))
    said = list(collectives.wrong_values(group, MIB))
    assert len(said) == rounds * len(KINDS)
    assert said[0] == "1,048,576 bytes of int64, round 1: 131072 of 131072 elements are wrong"


def size(count: int, time_s: float) -> SizeRow:
    return SizeRow(bytes=count, time_s=time_s, busbw_gb_per_s=count / time_s / 1e9)


def ring(*busbw_gb_per_s: float | None, alone: Mapping[int, float] = {}) -> list[PairRow]:
    """Pairs of neighbours: node0 and node1, node1 and node2, ..., the last and node0. None: not tested."""
    names = [f"node{k}" for k in range(len(busbw_gb_per_s))]
    return [
        PairRow(
            nodes=(name, names[(k + 1) % len(names)]),
            bytes=4096,
            time_s=None if rate is None else 1.0,
            busbw_gb_per_s=rate,
            alone_busbw_gb_per_s=alone.get(k),
        )
        for k, (name, rate) in enumerate(zip(names, busbw_gb_per_s, strict=True))
    ]


def test_a_bandwidth_that_the_largest_size_contradicts_is_not_fitted() -> None:
    """Other load: the middle sizes reach 1.4 GB/s, the largest 1.0 GB/s, which is what a step's gradients would see."""
    rows = [size(4096 * 4**n, 20e-6 + 4096 * 4**n / (1.4e9 if n < 7 else 1e9)) for n in range(8)]
    _, beta = fit(rows) or (0.0, 0.0)
    assert 1 / beta / 1e9 == pytest.approx(rows[-1].busbw_gb_per_s, rel=0.01)
    assert fit(rows[:1]) is None


SPEC = make_spec("4x1")
ROWS = [size(1024**2, 1e-3)]  # 1.05 GB/s


@pytest.mark.parametrize(
    ("least", "pairs", "severity", "said"),
    [
        (None, [], None, ""),
        (1.0, [], None, ""),
        (2.0, [], "error", "at most 1.05 GB/s"),
        (2.0, ring(10, 1, 1, 10), "error", "node2 is slow: pairs with other nodes reach 1.00 GB/s"),
        (None, ring(10, 1, 1, 10), "warning", "node2 is slow"),
        (None, ring(10, 1, 10, 10), "warning", "slow pairs of nodes: node1 and node2 1.00 GB/s"),
        (None, ring(1, 1, 10), "warning", "node1 is slow"),
        (None, ring(10, 1, 1, 4), "warning", "node[2-3] are slow: pairs with other nodes reach 1.00 to 4.00 GB/s"),
        (None, ring(10, 9, 8, 10), None, ""),
        (None, ring(1, 1, 1, 1), None, ""),
        (None, ring(10, 1, 1, 10, alone={1: 9, 2: 9}), None, ""),  # beside others they shared a switch
        (None, ring(4, 4, 4, 4, alone={0: 10}), None, ""),  # and so they all did
        (None, ring(4, 1, 4, 4, alone={0: 10, 1: 4}), "warning", "slow pairs of nodes: node1 and node2 4.00 GB/s"),
        (
            None, ring(10, 2, 2, 10, alone={1: 1, 2: 1}), "warning",
            "node2 is slow: pairs with other nodes reach 1.00",
        ),
        (
            None, ring(10, None, 1, None), "warning", "slow pairs of nodes: node2 and node3 1.00 GB/s",
        ),  # either node is it
        (None, ring(None, None, None, None), None, ""),
    ],
)  # fmt: skip
def test_low_bandwidth(least: float | None, pairs: list[PairRow], severity: str | None, said: str) -> None:
    found = list(bandwidth_findings(SPEC, least, ROWS, pairs, [f"node{k}" for k in range(4)]))
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert all(said in finding.measured for finding in found)
    assert not list(bandwidth_findings(make_spec("1x4"), least, ROWS, [], ["node0"]))  # it is for several nodes


# Captured lines of NCCL: nodes with H100 and InfiniBand, EFA, Ethernet, and a single node.

IB_PLUGIN = """
gpu41:3928:3989 [0] NCCL INFO Channel 01/0 : 5[1] -> 6[0] [receive] via NET/IBext_v8/1/GDRDMA
gpu34:34088:34142 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""
EFA = """
ip-192-168-1-1:21:27 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
ip-192-168-1-1:21:27 [0] NCCL INFO Using network AWS Libfabric
algo-1:18060:20786 [3] NCCL INFO Channel 05/1 : 3[3] -> 11[3] [send] via NET/AWS Libfabric/1(2)/GDRDMA/Shared
ip-192-168-1-1:21:27 [0] NCCL INFO Channel 00/0 : 1[f5000] -> 0[35000] [receive] via NET/AWS Libfabric/0
"""
SOCKET = """
node-01:1897709:1897731 [0] NCCL INFO NET/IB : No device found.
node-01:1897709:1897731 [0] NCCL INFO Using network Socket
node-01:1897709:1897731 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""
ONE_NODE = """
8a9faed5c3c4:13012:13026 [0] NCCL INFO Using network Socket
8a9faed5c3c4:13012:13026 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read
8a9faed5c3c4:13689:13703 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""
# Not captured: RCCL's and Grace's ends of such lines, as their sources write them.
RCCL = """
nid005: NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/AWS Libfabric/1/GDRDMA comm 0x55d2c0 nRanks 16
nid005: NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC comm 0x55d2c0 nRanks 16
"""
GRACE = "n1: NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA(PCI)"


@pytest.mark.parametrize(
    ("log", "found", "networks"),
    [
        (IB_PLUGIN, ("NET/IBext_v8/GDRDMA", "P2P/CUMEM"), {"IBext_v8": "ib"}),
        (EFA, ("NET/AWS Libfabric", "NET/AWS Libfabric/GDRDMA"), {"AWS Libfabric": "ofi"}),
        (SOCKET, ("NET/Socket",), {"Socket": "socket"}),
        (ONE_NODE, ("P2P/direct pointer", "SHM"), {}),
        (RCCL, ("NET/AWS Libfabric/GDRDMA", "P2P/IPC"), {"AWS Libfabric": "ofi"}),
        (GRACE, ("NET/IB/GDRDMA",), {"IB": "ib"}),
        (SOCKET.replace("NET/Socket/0", "NET/FasTrak/0"), ("NET/FasTrak",), {"FasTrak": None}),
    ],
    ids=["ib", "efa", "socket", "one node", "rccl", "grace", "unknown"],
)
def test_captured_logs(log: str, found: tuple[str, ...], networks: dict[str, Transport | None]) -> None:
    assert transports([log]) == found
    assert networks_used(found) == networks


@pytest.mark.parametrize(
    ("wanted", "log", "levels"),
    [
        ("ib", IB_PLUGIN, []),
        ("ib", SOCKET, ["error"]),
        ("ofi", SOCKET, ["error"]),
        ("socket", IB_PLUGIN, ["error"]),
        ("any", SOCKET, []),
        ("ib", "", ["warning"]),
        ("ofi", SOCKET.replace("NET/Socket/0", "NET/FasTrak/0"), ["warning"]),
    ],
)
def test_the_site_promises_a_transport(wanted: Transport, log: str, levels: list[str]) -> None:
    two_nodes = make_spec("2x4", device="cuda")
    found = list(transport_findings(two_nodes, wanted, transports([log])))
    assert [finding.severity for finding in found] == levels
    assert all("network.transport" in finding.wanted for finding in found)
    disabled = make_spec("2x4", device="cuda", env={"NCCL_IB_DISABLE": "1"})
    told = [finding.next.startswith(REMOVE) for finding in transport_findings(disabled, wanted, transports([log]))]
    assert told == [wanted == "ib" for _ in levels]
    one_node = make_spec("1x4", device="cuda")
    assert not list(transport_findings(one_node, wanted, transports([log])))
    assert not list(transport_findings(make_spec("2x4"), wanted, ()))  # Gloo
