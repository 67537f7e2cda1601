"""The thread that samples a node: its lines, its end, and what it does when something fails."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import read_json
from ddp_ladder.monitor import node_monitor
from ddp_ladder.monitor.columns import columns
from ddp_ladder.monitor.gpus import Gpus, Reading, Value
from ddp_ladder.monitor.models import MonitoredGpu, MonitorFile
from ddp_ladder.monitor.node_monitor import NodeMonitor, next_s, shown
from ddp_ladder.monitor.sampler import NodeSampler
from ddp_ladder.plan.raw_file import Job


class FailingGpu:
    """A GPU whose driver does not return, or raises something that nobody expected."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self.about = MonitoredGpu(
            index=0, name="A100", uuid="GPU-a", bus_id=None, memory_bytes=None, power_limit_w=None,
            power_limit_max_w=None, slowdown_temperature_c=None, max_sm_clock_mhz=None, numa_node=None, numa_cpus=None,
        )  # fmt: skip
        self.errors: dict[str, str] = {}
        self._read = read

    def read(self, slow: bool) -> Reading:
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
    assert read_json(tmp_path / "about.json")["notes"]
    before_s = time.time()
    end = running.end()
    last = rows(tmp_path)[-1]
    assert float(last["time_s"]) >= before_s - 0.001
    assert (end.samples, end.error) == (len(rows(tmp_path)), None)
    assert end.cpu_s > 0
    assert list(last) == list(columns(fabric=False, energy=False, gpus=0))
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
    assert end.error == "network: ValueError: no interface none0 in /proc/net/dev"
    row = rows(tmp_path)[-1]
    assert (row["network_sent_bytes_per_s"], bool(row["node_memory_used_bytes"])) == ("", True)


def test_an_exception_that_nobody_expected_is_reported_and_the_rest_is_sampled(tmp_path: Path) -> None:
    def read() -> Reading:
        raise ZeroDivisionError("in a library")

    running = monitor(tmp_path, lo(Gpus((FailingGpu(read),))))
    await_rows(tmp_path, 2)
    assert running.end().error == "GPUs: ZeroDivisionError: in a library"
    assert rows(tmp_path)[-1]["gpu0_power_w"] == ""


def test_a_driver_that_hangs_does_not_keep_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_monitor, "JOIN_S", 0.2)
    answers = threading.Event()
    running = monitor(tmp_path, lo(Gpus((FailingGpu(lambda: Reading({"power_w": float(answers.wait())})),))))
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
