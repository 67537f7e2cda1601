from __future__ import annotations

import socket

import pytest
from ddp_ladder.node import launch as network
from ddp_ladder.node.launch import PORTS, address, free_port, interface_here, route_to


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_taken_port_is_passed_over(host: str) -> None:
    port = free_port("job")
    with socket.socket() as server:
        server.bind((host, port))
        server.listen()
        other = free_port("job")
        assert other != port
        assert other in PORTS
    assert free_port("job") == port


def test_jobs_begin_to_look_at_different_places() -> None:
    assert len({free_port(f"local-host-{k}.1.default/weak/1x2/r1") for k in range(50)}) > 40


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(network, "PORTS", range(taken, taken + 1))
        with pytest.raises(OSError, match=f"no free port between {taken} and {taken}"):
            free_port("job")


def test_a_name_without_an_address_is_no_missing_route() -> None:
    with pytest.raises(OSError, match=r"^\S+ has no address for the name node2\.invalid: .*known"):
        route_to("node2.invalid")
    with pytest.raises(OSError, match=r"^no route from \S+ to 255\.255\.255\.255: "):
        route_to("255.255.255.255")


def test_addresses() -> None:
    name = interface_here("127.0.0.1")
    assert name.startswith("lo")
    assert address(name).startswith("127.")
    with pytest.raises(OSError, match=rf"no interface ib77 .* there are .*{name}"):
        address("ib77")
