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
from ddp_ladder.nodes.files import FABRIC, GPU, LOCAL, NODE, MonitoredGpu, MonitorFile, columns
from ddp_ladder.nodes.gpus import Gpus, Rates, Value
from ddp_ladder.nodes.sampler import CpuUse, NodeMonitor, NodeSampler, cpu_times, cpu_use, next_s, ports, shown
from ddp_ladder.plan.plan import Job
from make_files import write_files


class FailingGpu:
    """A GPU whose driver does not return, or raises something that nobody expected."""

    def __init__(self, read: Callable[[], dict[str, Value]]) -> None:
        self.about = MonitoredGpu(index=0, name="A100", uuid="GPU-a")
        self.errors: dict[str, str] = {}
        self._read = read

    def read(self, now_s: float, slow: bool) -> dict[str, Value]:
        return self._read()


def description(sampler: NodeSampler) -> MonitorFile:
    return MonitorFile(
        schema_version=1, spec_hash="0", job=Job(id="1", attempt=1, run_id="a"), node_rank=0, node="node1",
        host="node1", every_s=0.05, interface=sampler.interface, interface_bits_per_s=None,
        cpus=tuple(sorted(sampler.cpus)), cpus_of_node=2, memory_bytes=1, fabrics=(),
        gpus=tuple(gpu.about for gpu in sampler.gpus.each), notes=tuple(sampler.notes),
    )  # fmt: skip


def monitor(directory: Path, open_sampler: Callable[[], NodeSampler], every_s: float = 0.05) -> NodeMonitor:
    made = NodeMonitor(directory / "about.json", directory / "samples.csv", every_s, open_sampler, description)
    made.start()
    return made


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
    running = monitor(tmp_path, lo())
    await_rows(tmp_path, 3)
    assert read_json(tmp_path / "about.json")["interface"] == "lo"
    before_s = time.time()
    end = running.end()
    last = rows(tmp_path)[-1]
    assert float(last["time_s"]) >= before_s - 0.001
    assert (end.samples, end.error) == (len(rows(tmp_path)), None)
    assert end.cpu_s > 0
    assert list(last) == list(columns(fabric=False, gpus=0))
    assert 0 <= float(last["cpu_busiest_fraction"] or 0) <= 1
    assert "monitor" not in {thread.name for thread in threading.enumerate()}


def test_a_run_shorter_than_the_interval_has_a_sample_at_its_start_and_at_its_end(tmp_path: Path) -> None:
    running = monitor(tmp_path, lo(), every_s=60)
    await_rows(tmp_path, 1)
    assert running.end().samples == 2


@pytest.mark.parametrize(("now_s", "due_s"), [(10.0, 12.0), (11.9, 12.0), (12.0, 14.0), (12.3, 14.0), (99.5, 100.0)])
def test_samples_are_due_at_multiples_of_the_interval_and_do_not_drift(now_s: float, due_s: float) -> None:
    assert next_s(begin_s=10.0, every_s=2.0, now_s=now_s) == due_s


def test_what_cannot_be_read_is_empty_and_reported_and_the_rest_is_sampled(tmp_path: Path) -> None:
    running = monitor(tmp_path, lo(interface="none0"))
    await_rows(tmp_path, 2)
    end = running.end()
    assert end.error == "network: OSError: no interface none0 in /proc/net/dev"
    row = rows(tmp_path)[-1]
    assert (row["network_sent_bytes_per_s"], bool(row["node_memory_used_bytes"])) == ("", True)


def test_an_exception_that_nobody_expected_is_reported_and_the_rest_is_sampled(tmp_path: Path) -> None:
    def read() -> dict[str, Value]:
        raise ZeroDivisionError("in a library")

    running = monitor(tmp_path, lo(Gpus((FailingGpu(read),))))
    await_rows(tmp_path, 2)
    assert running.end().error == "GPUs: ZeroDivisionError: in a library"
    assert rows(tmp_path)[-1]["gpu0_power_w"] == ""


def test_a_driver_that_hangs_does_not_keep_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "JOIN_S", 0.2)
    answers = threading.Event()
    running = monitor(tmp_path, lo(Gpus((FailingGpu(lambda: {"power_w": float(answers.wait())}),))))
    until_s = time.monotonic() + 20
    while not (tmp_path / "samples.csv").exists():
        assert time.monotonic() < until_s
    end = running.end()
    answers.set()
    assert end.samples == 0
    assert end.error == "the last sample was not taken within 0.2 s: a driver may hang"


def test_a_file_that_cannot_be_written_ends_the_samples_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "samples.csv").mkdir()
    running = monitor(tmp_path, lo())
    end = running.end()
    assert end.samples == 0
    assert "IsADirectoryError" in str(end.error)


def test_a_sampler_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    def fail() -> Any:
        raise OSError("no /proc here")

    assert monitor(tmp_path, fail).end().error == "OSError: no /proc here"


def test_a_thread_that_may_not_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    end = monitor(tmp_path, lo()).end()
    assert (end.samples, end.error) == (0, "can't start new thread")


def test_the_description_is_written_again_when_more_agents_are_found(tmp_path: Path) -> None:
    sampler = lo()()
    running = monitor(tmp_path, lambda: sampler)
    await_rows(tmp_path, 1)
    sampler.cpus = frozenset({5, 6})
    await_rows(tmp_path, 3)
    running.end()
    assert read_json(tmp_path / "about.json")["cpus"] == [5, 6]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("time_s", 1795357452.26371, "1795357452.2637"),
        ("network_sent_bytes_per_s", 1090.4, "1090"),
        ("training_rss_bytes", 580636672, "580636672"),
        ("cpu_fraction", 1 / 3, "0.3333"),
        ("gpu0_throttle_reasons", "power_cap+thermal", "power_cap+thermal"),
        ("gpu0_power_w", None, ""),
    ],
)
def test_how_values_are_written(name: str, value: Value, text: str) -> None:
    assert shown(name, value) == text


STAT = """\
cpu  1674673 98707 388193 490636 14357 0 8215 2554 0 0
cpu0 804691 50401 191439 283805 4776 0 1658 1266 0 0
cpu1 869981 48306 196753 206830 9580 0 6556 1287 0 0
intr 52419284 0 9 0
ctxt 81234
"""
LATER = """\
cpu  1674913 98707 388213 490796 14377 0 8215 2554 0 0
cpu0 804871 50401 191459 283805 4776 0 1658 1266 0 0
cpu1 870041 48306 196753 206950 9600 0 6556 1287 0 0
intr 52419290 0 9 0
"""


def test_the_busy_fractions_of_cpus() -> None:
    before, now = cpu_times(STAT), cpu_times(LATER)
    assert before[0] == (804691 + 50401 + 191439 + 1658 + 1266, 804691 + 50401 + 191439 + 283805 + 4776 + 1658 + 1266)
    assert cpu_use(before, now, {0, 1}) == CpuUse(pytest.approx(0.65), 1.0, pytest.approx(0.65))
    assert cpu_use(before, now, {1}) == CpuUse(pytest.approx(0.3), pytest.approx(0.3), pytest.approx(0.65))
    assert cpu_use(before, before, {0, 1}) == CpuUse()
    assert cpu_use({0: before[0]}, now, {0, 1}).node == 1.0  # a CPU that came online is left out


def infiniband(name: str, state: str = "4: ACTIVE", received: str = "1000\n", sent: str = "250\n") -> dict[str, str]:
    port = f"class/infiniband/{name}/ports/1"
    return {
        f"{port}/state": f"{state}\n",
        f"{port}/rate": "200 Gb/sec (4X HDR)\n",
        f"{port}/counters/port_rcv_data": received,
        f"{port}/counters/port_xmit_data": sent,
    }


def test_infiniband_counts_words_of_four_bytes_on_active_ports(tmp_path: Path) -> None:
    down = infiniband("mlx5_2", state="1: DOWN")
    root = write_files(tmp_path, {**infiniband("mlx5_0"), **infiniband("mlx5_1"), **down})
    found, notes = ports(root)
    assert [(port.about.name, port.about.bits_per_s) for port in found] == [
        ("mlx5_0/1", 200_000_000_000),
        ("mlx5_1/1", 200_000_000_000),
    ]
    assert [port.bytes() for port in found] == [(4000, 1000)] * 2
    assert notes == []


def test_slingshot_counts_bytes_with_the_time_behind_them(tmp_path: Path) -> None:
    device = "class/cxi/cxi0/device"
    root = write_files(
        tmp_path,
        {
            f"{device}/net/hsn0/speed": "200000\n",
            f"{device}/telemetry/hni_sts_rx_ok_octets": "90049@1674703075.363699378\n",
            f"{device}/telemetry/hni_sts_tx_ok_octets": "17@1674703075.363699378\n",
        },
    )
    (port,), notes = ports(root)
    assert (port.about.name, port.about.bits_per_s) == ("cxi0", 200_000_000_000)
    assert port.bytes() == (90049, 17)
    assert notes == []


def test_a_port_without_readable_counters_is_a_note(tmp_path: Path) -> None:
    files = infiniband("mlx5_0")
    del files["class/infiniband/mlx5_0/ports/1/counters/port_rcv_data"]
    found, (note,) = ports(write_files(tmp_path, files))
    assert found == []
    assert note.startswith("mlx5_0/1: its counters cannot be read: [Errno 2]")


def test_rates_of_counters() -> None:
    rates = Rates()
    assert rates.of({"a": 5.0, "b": None}, 10.0) == {"a_per_s": None, "b_per_s": None}
    assert rates.of({"a": 25.0, "b": 7.0}, 12.0) == {"a_per_s": 10.0, "b_per_s": None}
    assert rates.of({"a": 26.0, "b": 9.0}, 12.05) == {"a_per_s": None, "b_per_s": None}  # CPU time has steps of 10 ms
    assert rates.of({"a": 3.0, "b": 9.0}, 14.05) == {"a_per_s": None, "b_per_s": 0.0}  # set back


def test_columns_of_devices_that_a_node_lacks_are_absent() -> None:
    assert columns(fabric=False, gpus=0) == (*NODE, *LOCAL)
    header = columns(fabric=True, gpus=2)
    assert header[: len(NODE) + 2] == (*NODE, *FABRIC)
    assert header[-len(GPU) :] == tuple(f"gpu1_{name}" for name in GPU)
    assert len(set(header)) == len(header)
