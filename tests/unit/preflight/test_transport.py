"""Captured lines of NCCL: nodes with H100 and InfiniBand, EFA, Ethernet, and single nodes."""

from __future__ import annotations

import pytest
from ddp_ladder.plan.plan import PreflightWanted
from ddp_ladder.preflight.collective_findings import transport
from ddp_ladder.preflight.transport import networks_used, transports
from ddp_ladder.settings.terms import Transport
from make_records import make_spec

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


@pytest.mark.parametrize(
    ("log", "found", "networks"),
    [
        (IB_PLUGIN, ("NET/IBext_v8/GDRDMA", "P2P/CUMEM"), {"IBext_v8": "ib"}),
        (EFA, ("NET/AWS Libfabric", "NET/AWS Libfabric/GDRDMA"), {"AWS Libfabric": "ofi"}),
        (SOCKET, ("NET/Socket",), {"Socket": "socket"}),
        (ONE_NODE, ("P2P/direct pointer", "SHM"), {}),
        (SOCKET.replace("NET/Socket/0", "NET/FasTrak/0"), ("NET/FasTrak",), {"FasTrak": None}),
    ],
    ids=["ib", "efa", "socket", "one node", "unknown"],
)
def test_captured_logs(log: str, found: tuple[str, ...], networks: dict[str, Transport | None]) -> None:
    assert transports([log]) == found
    assert networks_used(found) == networks


@pytest.mark.parametrize(
    ("wanted", "log", "levels"),
    [
        ("ib", IB_PLUGIN, []),
        ("ib", SOCKET, ["fail"]),
        ("ofi", SOCKET, ["fail"]),
        ("socket", IB_PLUGIN, ["fail"]),
        ("any", SOCKET, []),
        ("ib", "", ["warn"]),
        ("ofi", SOCKET.replace("NET/Socket/0", "NET/FasTrak/0"), ["warn"]),
    ],
)
def test_the_site_promises_a_transport(wanted: Transport, log: str, levels: list[str]) -> None:
    two_nodes = make_spec("2x4", device="cuda")
    found = list(transport(two_nodes, PreflightWanted(transport=wanted), transports([log])))
    assert [finding.level for finding in found] == levels
    assert all("network.transport" in finding.wanted for finding in found)
    one_node = make_spec("1x4", device="cuda")
    assert not list(transport(one_node, PreflightWanted(transport=wanted), transports([log])))
    assert not list(transport(make_spec("2x4"), PreflightWanted(transport=wanted), ()))  # Gloo
