from __future__ import annotations

import socket

import pytest
from ddp_ladder.network import address, interface_here
from ddp_ladder.nodes import Allocation, ThisMachine, interface, node_name, nodes_of
from make_records import make_spec

LOOPBACK = interface_here("127.0.0.1")


def test_a_slurm_job_has_its_allocation_and_everything_else_this_machine() -> None:
    assert nodes_of("vega", {"SLURM_JOB_ID": "42"}) == Allocation("42")
    assert isinstance(nodes_of("local", {"SLURM_JOB_ID": "42"}), ThisMachine)
    assert nodes_of("vega", {}).job_id.startswith(f"local-{socket.gethostname()}-")


def test_the_local_site_meets_over_loopback_or_the_interface_it_names() -> None:
    here = ThisMachine("local-test")
    assert here.head_address(make_spec("2x1", interface="auto")) == "127.0.0.1"
    assert here.head_address(make_spec("2x1", interface=LOOPBACK)) == address(LOOPBACK)
    with pytest.raises(OSError, match="no interface ib77"):
        here.head_address(make_spec("2x1", interface="ib77"))


def test_interfaces_may_differ_from_node_to_node() -> None:
    spec = make_spec("2x1", interface={node_name(): "eth7", "another": "eth8"})
    assert interface(spec, "127.0.0.1") == "eth7"
    assert interface(make_spec("2x1", interface={"another": "eth8"}), "127.0.0.1") == LOOPBACK
