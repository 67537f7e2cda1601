"""The event timeline on a device of this test's own making (the real one: tests/gpu)."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_ladder_instrument import log, measurement, torch_facts
from ddp_ladder_instrument.accelerator import VISIBLE, Marks, describe
from ddp_ladder_instrument.contract import METRICS_VARIABLE
from ddp_ladder_instrument.files import read_run_settings
from ddp_ladder_instrument.log import NOT_MARKED
from ddp_ladder_instrument.machine import Judged
from ddp_ladder_instrument.measurement import Measurement
from ddp_ladder_instrument.program import Program, exit_code
from ddp_ladder_instrument.recorder import Recorder
from instrument_support import run_json


class Device:
    """Executes what was recorded only when told to; each piece of work takes its seconds."""

    def __init__(self) -> None:
        self.queued_s = 0.0
        self.done_s = 0.0
        self.synchronised = 0
        self.finished_at_s = 0.0
        self.capturing = False
        self.events = 0
        self.stream = "of the device"

    def finish(self, *_: Any) -> None:
        self.done_s = self.queued_s
        self.synchronised += 1
        self.finished_at_s = time.time()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    fake = Device()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            fake.events += 1

        def record(self, stream: object) -> None:
            self.at_s = fake.queued_s

        def synchronize(self) -> None:
            fake.done_s = fake.queued_s

        def query(self) -> bool:
            return self.at_s <= fake.done_s

        def elapsed_time(self, end: Event) -> float:
            if not (self.query() and end.query()):
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
            return (end.at_s - self.at_s) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: fake.stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "of the device")
    monkeypatch.setattr(torch.cuda, "synchronize", fake.finish)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.capturing)
    return fake


class Script:
    """What a training script does, seen from the hooks. It is its own optimizer."""

    def __init__(self, device: Device) -> None:
        self.device, self.recorder = device, Recorder()
        self.recorder.use_device(Marks(torch.device("cpu")), lambda: device.capturing)
        self.recorder.begin()

    def new_pass(self) -> int:
        return self.recorder.new_pass(0, -1, True)

    def draw(self, each: int) -> None:
        self.recorder.drawn(each, time.perf_counter(), 4, 0, True, self.recorder.enter(each))

    def step(self, each: int, seconds: float) -> None:
        self.draw(each)
        self.device.queued_s += seconds
        self.recorder.backward(time.perf_counter())
        self.recorder.after_step(self, (), {})

    def judged(self, wait: bool = True) -> Judged:
        assert self.recorder.marks is not None
        self.left = self.recorder.marks.finish(wait)
        self.recorder.end()
        return self.recorder.judged()


@pytest.fixture
def train(device: Device) -> Script:
    return Script(device)


HOST_S = 0.1  # that a test may take


def test_times_are_those_of_the_device(train: Script, device: Device) -> None:
    device.queued_s = 50.0
    loop = train.new_pass()
    began_s = time.time()
    for seconds in (3.0, 4.0, 5.0):
        train.step(loop, seconds)
    assert device.synchronised == 0
    judged = train.judged()
    assert device.synchronised == 1
    assert list(judged.table.step_time_s) == pytest.approx([3, 4, 5], abs=HOST_S)
    # So are the ends of the steps, by which energy and use of the GPU are cut: the host is far ahead.
    assert [end_s - began_s for end_s in judged.table.ended_at_s] == pytest.approx([53, 57, 62], abs=HOST_S)


def test_validation_between_steps_is_not_counted(train: Script, device: Device) -> None:
    loop = train.new_pass()
    train.step(loop, 3.0)
    train.new_pass()
    device.queued_s += 100.0
    train.step(loop, 3.0)
    assert list(train.judged().table.step_time_s) == pytest.approx([3, 3], abs=HOST_S)


def test_only_what_keeps_the_device_busy_between_two_steps_is_beside_the_training(
    train: Script, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for the device in each 10th step, as for a loss that is printed: that is training.

    Live, the times of the device are not known.
    """
    monkeypatch.setattr("ddp_ladder_instrument.recorder.LONG_REST_S", -1.0)  # any rest of the host is long
    loop = train.new_pass()
    for k in range(40):
        train.step(loop, 1.0)
        if k == 25:
            device.queued_s += 10.0
        if k % 10 == 5:
            device.done_s = device.queued_s
            time.sleep(0.05)
    assert not train.recorder.machine.phases.summary(float)["rests_s"]
    judged = train.judged()
    assert list(judged.table.step_time_s)[1:] == pytest.approx([1.0] * 39, abs=HOST_S)
    assert [end_s - begin_s for begin_s, end_s in judged.phases["rests_s"]] == pytest.approx([10.0], abs=HOST_S)


@pytest.mark.parametrize("validates", [False, True])
def test_eval_mode_is_timed_by_the_device_too(train: Script, device: Device, validates: bool) -> None:
    """A validation is no part of the step whose batch had been drawn."""
    loop = train.new_pass()
    for _ in range(40):
        train.draw(loop)
        train.recorder.mode(False)
        validation = train.new_pass() if validates else None
        device.queued_s += 10.0
        if validation is not None:
            train.draw(validation)
            train.recorder.ended(validation, True)
        train.recorder.mode(True)
        device.queued_s += 2.0
        train.recorder.backward(time.perf_counter())
        train.recorder.after_step(train, (), {})
        device.done_s = device.queued_s
    expected = [2.0 if validates else 12.0] * 39
    assert list(train.judged().table.step_time_s)[1:] == pytest.approx(expected, abs=HOST_S)


def test_events_are_used_again(train: Script, device: Device) -> None:
    loop = train.new_pass()
    for _ in range(50):
        train.step(loop, 1.0)
    while_the_host_ran_ahead = device.events
    for _ in range(200):
        device.done_s = device.queued_s
        train.step(loop, 1.0)
    assert device.events <= while_the_host_ran_ahead + 2
    assert list(train.judged().table.step_time_s) == pytest.approx([1.0] * 250, abs=HOST_S)


def test_after_a_failure_nothing_is_waited_for(train: Script, device: Device) -> None:
    loop = train.new_pass()
    for _ in range(5):
        train.step(loop, 1.0)
    device.done_s = 2.0
    train.judged(wait=False)
    assert (train.left, device.synchronised) == (3, 0)


def test_a_collective_takes_what_the_stream_waits(train: Script, device: Device) -> None:
    """None is made while a CUDA graph is captured; of one whose marks the device has not passed, nothing is known."""

    def collective() -> None:
        now_s = time.perf_counter()
        train.recorder.mark_collective()
        device.queued_s += 0.3
        train.recorder.collective("all_reduce", now_s, now_s, 100, 2, train.recorder.mark_collective())

    loop = train.new_pass()
    for _ in range(4):
        collective()
        train.step(loop, 1.0)
    judged = train.judged()
    assert [*judged.table.collectives_s] == pytest.approx([0.3] * 4)
    assert judged.table.step_time_s[-1] == pytest.approx(1.3, abs=HOST_S)
    assert judged.collectives == {0: (3, 300, pytest.approx(0.9))}

    device.capturing = True
    collective()
    device.capturing = False
    assert train.judged().collectives == judged.collectives

    device.done_s = device.queued_s - 0.9  # within the last one
    collective()
    train.step(loop, 1.0)
    ((calls, _, seconds),) = train.judged(wait=False).collectives.values()
    assert (calls, math.isnan(seconds)) == (4, True)


def test_what_a_collective_on_a_side_stream_takes_is_not_known(train: Script, device: Device) -> None:
    """FSDP gathers parameters on one, while the training computes."""
    loop = train.new_pass()
    for _ in range(3):
        device.stream = "beside"
        begin = train.recorder.mark_collective()
        now_s = time.perf_counter()
        train.recorder.collective("all_reduce", now_s, now_s, 100, 2, train.recorder.mark_collective())
        device.stream = "of the device"
        assert begin == NOT_MARKED
        train.step(loop, 1.0)
    ((calls, _, seconds),) = train.judged().collectives.values()
    assert (calls, math.isnan(seconds)) == (2, True)


def test_a_mark_on_a_side_stream_that_comes_last_moves_no_other(device: Device) -> None:
    """A prefetcher draws its batches under a stream of its own, which may be behind the training's."""
    marks = Marks(torch.device("cpu"))
    for at_s in (0.0, 5.0, 3.0, 6.0):  # the second one is of the side stream
        device.queued_s = at_s
        marks.add()
    device.queued_s = 6.0
    assert (marks.passed, marks.finish(wait=True), marks.passed) == (1, 0, 4)
    first_s = next(marks.passed_s())[1]
    assert [passed_s - first_s for _, passed_s in marks.passed_s()] == pytest.approx([0, 5, 3, 6])


def test_of_a_long_run_the_times_of_later_marks_are_not_kept_and_the_device_is_still_seen_to_move(
    train: Script, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "WHOLE_STEPS", 40)
    loop = train.new_pass()
    for _ in range(400):
        train.step(loop, 1.0)
    assert train.recorder.marks
    assert train.recorder.marks.passed < 400  # the device has done nothing yet
    judged = train.judged()
    assert train.recorder.marks.passed > 400
    assert len([*train.recorder.marks.passed_s()]) < 100
    assert judged.table.count == 400
    assert judged.table.step_time_s[1:39].tolist() == pytest.approx([1.0] * 38, abs=HOST_S)


@pytest.mark.parametrize("error", [None, SystemExit(0), SystemExit(1), RuntimeError("a rank is gone")])
@pytest.mark.parametrize("profiled", [0, 2])
def test_the_training_ends_when_the_device_does(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, profiled: int
) -> None:
    """After a failure it is not waited for."""
    monkeypatch.setenv(METRICS_VARIABLE, "")  # it is set for the script
    run_json(tmp_path, profile_steps=profiled)
    settings = read_run_settings({"DDP_LADDER_RUN": str(tmp_path / "run.json")})
    measured = Measurement(settings, Program("train.py", False, ()), time.time())
    measured.observer = SimpleNamespace(device=torch.device("cuda", 1))  # type: ignore[assignment]
    monkeypatch.setattr(measured.profiled, "_step", lambda: None)
    measured.recorder.begin()
    measured.recorder.after_step(device, (), {})
    if profiled:
        assert measured.profiled.go_on()
    steps_ended_at_s = device.finished_at_s
    measured.end(error)
    assert measured.training_ended_at_s is not None
    assert measured.training_ended_at_s >= (steps_ended_at_s or device.finished_at_s)
    assert device.synchronised == bool(profiled) + (exit_code(error) == 0)


def test_a_mark_that_cannot_be_read_is_said(train: Script, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: object, end: object) -> float:
        raise RuntimeError("the events are of two devices")

    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", raises)
    loop = train.new_pass()
    for _ in range(3):
        train.step(loop, 1.0)
    assert max(train.judged().table.step_time_s) < 1.0
    assert train.recorder.marks is not None
    assert train.recorder.marks.unreadable > 2


def test_the_device_is_waited_for_before_the_process_group_is_left(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of torch 2.4 and 2.5: leaving it aborts collectives that are under way (pytorch PR 141510)."""
    synchronised = []
    monkeypatch.setattr(torch_facts, "has_group", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: synchronised.append(device.synchronised))
    assert measurement._leave_process_group(torch.device("cuda", 1)) is None
    assert synchronised == [1]


def test_a_group_whose_collectives_are_in_a_graph_is_left_at_the_end_of_the_process(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []
    monkeypatch.setattr(torch_facts, "has_group", lambda: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: left.append("left"))
    graph = Graph()
    assert measurement._leave_process_group(torch.device("cuda", 1)) is None
    assert (left, device.synchronised) == ([], 1)
    del graph
    assert measurement._leave_process_group(torch.device("cuda", 1)) is None
    assert left == ["left"]


class Graph:
    """Stands in for a captured graph, which takes CUDA."""


def test_a_step_that_is_captured_into_a_graph_is_made_when_the_graph_is_replayed(train: Script, device: Device) -> None:
    loop = train.new_pass()
    train.step(loop, 1.0)
    device.capturing = True
    train.step(loop, 1.0)
    assert train.recorder.steps == 1
    device.capturing = False
    for _ in range(5):
        train.draw(loop)
        device.queued_s += 0.5
        train.recorder.replayed(7, time.perf_counter())
    assert train.recorder.steps == 6
    judged = train.judged()
    assert list(judged.table.step_time_s)[2:] == pytest.approx([0.5] * 4, abs=HOST_S)
    assert list(judged.table.samples)[2:] == [4] * 4


def test_stand_in_of_torch_2_4_devices_without_uuid_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """On ROCm, each rank with one device: by a variable of ROCm, or by a cgroup, of which nothing is known."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="AMD Instinct MI250X"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)

    def ids(variable: str, *values: str) -> set[str]:
        found = set()
        for pid, value in enumerate(values):
            monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
            monkeypatch.setenv(variable, value)
            found.add(describe(torch.device("cuda", 0))["id"])
        monkeypatch.delenv(variable)
        return found

    assert [len(ids(name, "0", "1")) for name in ("ROCR_VISIBLE_DEVICES", "UNRELATED")] == [2, 2]
    assert len(ids("CUDA_VISIBLE_DEVICES", "0", "0")) == 1
