"""NUMA nodes and attachments, from /sys."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from ddp_ladder.node.numa import Attachment, NumaNode, attachment, cpus_text, numa_nodes, parse_cpus
from make_files import write_files


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("0-1,4-5,7\n", (0, 1, 4, 5, 7)), ("8,0-1", (0, 1, 8))],
)
def test_lists_of_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert parse_cpus(cpus_text(cpus)) == cpus


def test_text_of_cpus_is_as_short_as_the_kernel_writes_it() -> None:
    assert cpus_text([8, 0, 2, 1, 3, 2]) == "0-3,8"
    with pytest.raises(ValueError, match="all"):
        parse_cpus("all")


def test_numa_nodes_of_this_machine() -> None:
    nodes = numa_nodes()
    assert set(os.sched_getaffinity(0)) <= {cpu for node in nodes for cpu in node.cpus}
    memory_bytes = sum(node.memory_bytes or 0 for node in nodes)
    # A virtual machine may have memory that the kernel counts to no node.
    assert 0 < memory_bytes <= 1.02 * psutil.virtual_memory().total


def test_made_sys_of_a_grace_hopper_whose_gpu_memory_is_a_numa_node(tmp_path: Path) -> None:
    node = "devices/system/node"
    sys = write_files(
        tmp_path,
        {
            f"{node}/node0/cpulist": "0-71\n",
            f"{node}/node0/meminfo": "Node 0 MemTotal:       501603712 kB\nNode 0 MemFree:  1 kB\n",
            f"{node}/node10/cpulist": "\n",
            f"{node}/node10/meminfo": "Node 10 MemTotal:       99614720 kB\n",
            f"{node}/possible": "0-10\n",
        },
    )
    assert numa_nodes(sys) == (
        NumaNode(0, tuple(range(72)), 501603712 * 1024),
        NumaNode(10, (), 99614720 * 1024),
    )


def test_made_sys_with_pci_devices(tmp_path: Path) -> None:
    devices = "bus/pci/devices"
    sys = write_files(
        tmp_path,
        {
            f"{devices}/0000:3b:00.0/numa_node": "1\n",
            f"{devices}/0000:3b:00.0/local_cpulist": "16-31,48-63\n",
            f"{devices}/0009:01:00.0/numa_node": "0\n",
            f"{devices}/0009:01:00.0/local_cpulist": "0-71\n",
            f"{devices}/0000:00:05.0/numa_node": "-1\n",
            f"{devices}/0000:00:05.0/local_cpulist": "0-1\n",
        },
    )
    assert attachment("00000000:3B:00.0", sys) == Attachment(1, (*range(16, 32), *range(48, 64)))
    assert attachment("00000009:01:00.0", sys) == Attachment(0, tuple(range(72)))
    assert attachment("0000:00:05.0", sys) == attachment("00000000:AF:00.0", sys) == Attachment()
