"""The thread that samples a node: what it reads in /proc and /sys, its lines, its end, and what fails.

Texts of /proc and /sys are those of Linux 6.18, of InfiniBand and of Slingshot hosts.
"""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import read_json
from ddp_ladder.nodes import sampler as sampling
from ddp_ladder.nodes.sampler import NodeMonitor, NodeSampler, columns, ports
from ddp_ladder.plan.plan import Job
from ddp_ladder.platform.accelerators import Gpus, Value
from make_files import write_files


class FailingGpus(Gpus):
    """GPUs whose driver does not return, or raises something that nobody expected."""

    def __init__(self, sample: Callable[[], dict[str, Value]]) -> None:
        super().__init__()
        self.sample = sample  # type: ignore[method-assign]


RUN = {
    "schema_version": 1,
    "spec_hash": "0",
    "job": Job(id="1", attempt=1, run_id="a"),
    "node_rank": 0,
    "node": "node1",
}


def monitor(directory: Path, open_sampler: Callable[[], NodeSampler], every_s: float = 0.05) -> NodeMonitor:
    return NodeMonitor(directory / "about.json", directory / "samples.csv", every_s, open_sampler, RUN)


def lo(gpus: Gpus | None = None, interface: str = "lo") -> Callable[[], NodeSampler]:
    return lambda: NodeSampler(interface, gpus or Gpus(), siblings=False)


def rows(directory: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((directory / "samples.csv").open()))


def await_rows(directory: Path, count: int) -> None:
    until_s = time.monotonic() + 20
    while not (directory / "samples.csv").exists() or len(rows(directory)) < count:
        assert time.monotonic() < until_s, f"no {count} samples"
        time.sleep(0.02)


def test_samples_are_on_disk_while_it_runs_and_the_last_one_is_at_the_end(tmp_path: Path) -> None:
    sampler = lo()()
    running = monitor(tmp_path, lambda: sampler)
    await_rows(tmp_path, 3)
    assert read_json(tmp_path / "about.json")["interface"] == "lo"
    sampler.cpus |= {5000}  # of an agent that came later
    before_s = time.time()
    end = running.end()
    last = rows(tmp_path)[-1]
    assert float(last["time_s"]) >= before_s - 0.001
    assert (end.samples, end.error) == (len(rows(tmp_path)), None)
    assert end.cpu_s > 0
    assert tuple(last) == columns(fabric=False, gpus=0)
    assert 0 <= float(last["cpu_busiest_fraction"] or 0) <= 1
    of_a_step = NodeSampler("lo", Gpus(), siblings=False, descendants=False).sample()  # the ranks are not seen
    assert "node_memory_used_bytes" in of_a_step
    assert "training_rss_bytes" not in of_a_step
    assert read_json(tmp_path / "about.json")["cpus"][-1] == 5000
    assert "monitor" not in {thread.name for thread in threading.enumerate()}


def test_a_run_shorter_than_the_interval_has_a_sample_at_its_start_and_at_its_end(tmp_path: Path) -> None:
    running = monitor(tmp_path, lo(), every_s=60)
    await_rows(tmp_path, 1)
    assert running.end().samples == 2


def test_what_cannot_be_read_is_empty_and_reported_and_the_rest_is_sampled(tmp_path: Path) -> None:
    def sample() -> dict[str, Value]:
        raise ZeroDivisionError("in a library")

    running = monitor(tmp_path, lo(FailingGpus(sample), interface="none0"))
    await_rows(tmp_path, 2)
    errors = "network: OSError: no interface none0 in /proc/net/dev; GPUs: ZeroDivisionError: in a library"
    assert running.end().error == errors
    row = rows(tmp_path)[-1]
    assert (row["network_sent_bytes_per_s"], bool(row["node_memory_used_bytes"])) == ("", True)


def test_a_driver_that_hangs_does_not_keep_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "JOIN_S", 0.2)
    answers = threading.Event()
    running = monitor(tmp_path, lo(FailingGpus(lambda: {"power_w": float(answers.wait())})))
    end = running.end()
    answers.set()
    assert (end.samples, end.error) == (0, "the last sample was not taken within 0.2 s: a driver may hang")


def test_a_monitor_that_cannot_open_or_write_fails_nothing(tmp_path: Path) -> None:
    def fail() -> Any:
        raise OSError("no /proc here")

    assert monitor(tmp_path, fail).end().error == "OSError: no /proc here"
    (tmp_path / "samples.csv").mkdir()
    end = monitor(tmp_path, lo()).end()
    assert (end.samples, "IsADirectoryError" in str(end.error)) == (0, True)


def test_rates_of_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, found = lo()(), []
    for now_s, received, sent in ((10.0, 5, 0), (12.0, 25, 6), (12.05, 26, 7), (14.05, 3, 7)):
        monkeypatch.setattr(sampling.time, "monotonic", lambda now_s=now_s: now_s)
        found.append(sampler._rates("network", received, sent))
    received, sent = "network_received_bytes_per_s", "network_sent_bytes_per_s"
    assert found == [{}, {received: 10.0, sent: 3.0}, {}, {sent: 0.0}]  # after a moment; set back


def infiniband(name: str, state: str = "4: ACTIVE") -> dict[str, str]:
    port = f"class/infiniband/{name}/ports/1"
    return {
        f"{port}/state": f"{state}\n",
        f"{port}/rate": "200 Gb/sec (4X HDR)\n",
        f"{port}/counters/port_rcv_data": "1000\n",
        f"{port}/counters/port_xmit_data": "250\n",
    }


def test_the_counters_of_active_infiniband_and_of_slingshot_ports(tmp_path: Path) -> None:
    device = "class/cxi/cxi0/device"
    cxi = {
        f"{device}/net/hsn0/speed": "200000\n",
        f"{device}/telemetry/hni_sts_rx_ok_octets": "90049@1674703075.363699378\n",
        f"{device}/telemetry/hni_sts_tx_ok_octets": "17@1674703075.363699378\n",
    }
    found = ports(write_files(tmp_path, {**infiniband("mlx5_0"), **infiniband("mlx5_2", state="1: DOWN"), **cxi}))
    assert [(port.about.name, port.about.bits_per_s) for port in found] == [
        ("mlx5_0/1", 200_000_000_000),
        ("cxi0", 200_000_000_000),
    ]
    assert [port.bytes() for port in found] == [(4000, 1000), (90049, 17)]  # words of four bytes; the time behind
