"""The event timeline on a device of this test's own making (the real one: tests/gpu)."""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_ladder_instrument import measurement, torch_facts
from ddp_ladder_instrument.recorder import NEVER
from ddp_ladder_instrument.clock import StepClock
from ddp_ladder_instrument.files import read_run_settings
from ddp_ladder_instrument.measurement import Measurement
from ddp_ladder_instrument.program import Program, exit_code
from ddp_ladder_instrument.progress import METRICS_VARIABLE
from ddp_ladder_instrument.torch_facts import CudaTimeline
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

        def query(self) -> bool:
            return self.at_s <= fake.done_s

        def elapsed_time(self, end: Event) -> float:
            if not (self.query() and end.query()):
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
            return (end.at_s - self.at_s) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", fake.finish)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.capturing)
    return fake


@pytest.fixture
def clock(device: Device) -> StepClock:
    """The script stepped once before: an optimizer's first step starts the timeline."""
    clock = StepClock()
    clock.timer.timeline = CudaTimeline(torch.device("cpu"))
    return clock


def step(clock: StepClock, device: Device, loop: Loop, seconds: float) -> None:
    if clock.timer.loop is not loop:
        clock.timer.enter(loop, 0.0)
    clock.yielded(loop, 0.0, 4)
    device.queued_s += seconds
    clock.after_step(device, (), {})


def new_loop(clock: StepClock) -> Loop:
    loop = Loop(lambda: None, NEVER)
    clock.timer.enter(loop, 0.0)
    return loop


def finish(clock: StepClock, wait: bool = True) -> int:
    assert clock.timer.timeline is not None
    return clock.timer.timeline.finish(clock.table.step_time_s, wait)


def test_times_are_those_of_the_device(clock: StepClock, device: Device) -> None:
    device.queued_s = 50.0
    loop = new_loop(clock)
    for seconds in (3.0, 4.0, 5.0):
        step(clock, device, loop, seconds)
    assert device.synchronised == 0
    assert finish(clock) == 0
    assert device.synchronised == 1
    assert list(clock.table.step_time_s) == pytest.approx([3, 4, 5])


def test_validation_between_steps_is_not_counted(clock: StepClock, device: Device) -> None:
    train = new_loop(clock)
    step(clock, device, train, 3.0)
    new_loop(clock)
    device.queued_s += 100.0
    step(clock, device, train, 3.0)
    finish(clock)
    assert list(clock.table.step_time_s) == pytest.approx([3, 3])


@pytest.mark.parametrize("validates", [False, True])
def test_eval_mode_is_timed_by_the_device_too(clock: StepClock, device: Device, validates: bool) -> None:
    """A validation is no part of the step whose batch had been drawn."""
    loop = new_loop(clock)
    for _ in range(40):
        clock.yielded(loop, 0.0, 4)
        clock.timer.eval_mode()
        validation = new_loop(clock) if validates else None
        device.queued_s += 10.0
        if validation is not None:
            clock.left(validation)
        clock.timer.train_mode()
        step(clock, device, loop, 2.0)
        device.done_s = device.queued_s
    finish(clock)
    assert list(clock.table.step_time_s)[1:] == pytest.approx([2.0 if validates else 12.0] * 39)


def test_events_are_used_again(clock: StepClock, device: Device) -> None:
    loop = new_loop(clock)
    for _ in range(50):
        step(clock, device, loop, 1.0)
    while_the_host_ran_ahead = device.events
    for _ in range(200):
        device.done_s = device.queued_s
        step(clock, device, loop, 1.0)
    assert device.events <= while_the_host_ran_ahead + 2
    finish(clock)
    assert list(clock.table.step_time_s) == pytest.approx([1.0] * 250)


def test_after_a_failure_nothing_is_waited_for(clock: StepClock, device: Device) -> None:
    loop = new_loop(clock)
    for _ in range(5):
        step(clock, device, loop, 1.0)
    device.done_s = 2.0
    assert finish(clock, wait=False) == 3
    assert device.synchronised == 0


def test_a_mark_on_a_side_stream_that_comes_last_is_waited_for(clock: StepClock, device: Device) -> None:
    """A prefetcher draws its batches under a stream of its own, which may be behind the training's."""
    timeline = CudaTimeline(torch.device("cpu"))
    begin, end = timeline.mark(), timeline.mark()
    assert begin is not None
    assert end is not None
    begin.at_s = 1.0  # type: ignore[attr-defined]
    times_s = array("d", [7.0, 7.0])
    timeline.add(0, [(begin, end)])
    timeline.add(1, [(end, end)])
    timeline.harvest(times_s)
    assert list(times_s) == [7.0, 7.0]
    device.done_s = 1.0
    timeline.harvest(times_s)
    assert times_s[0] == 0.0  # and not less


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
    measured.observer = SimpleNamespace(device=torch.device("cuda", 1), flops=None)  # type: ignore[assignment]
    monkeypatch.setattr(measured.profiled, "_step", lambda: None)
    measured.clock.table.add(4, 0, 1.0, 0.0)
    if profiled:
        assert measured.profiled.go_on()
    steps_ended_at_s = device.finished_at_s
    measured.end(error)
    assert measured.training_s is not None
    assert measured.clock.table.first_step_ended_at_s is not None
    ended_at_s = measured.clock.table.first_step_ended_at_s + measured.training_s
    assert ended_at_s >= (steps_ended_at_s or device.finished_at_s)
    assert device.synchronised == bool(profiled) + (exit_code(error) == 0)


def test_a_time_that_cannot_be_read_stays_the_host_s(
    clock: StepClock, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(self: object, end: object) -> float:
        raise RuntimeError("the events are of two devices")

    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", raises)
    loop = new_loop(clock)
    for _ in range(3):
        step(clock, device, loop, 1.0)
    host_s = list(clock.table.step_time_s)
    assert finish(clock) == 0
    assert list(clock.table.step_time_s) == host_s
    assert clock.timer.timeline is not None
    assert clock.timer.timeline.unreadable == 3


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


def test_steps_captured_into_a_graph_are_not_steps(clock: StepClock, device: Device) -> None:
    loop = new_loop(clock)
    device.capturing = True
    step(clock, device, loop, 1.0)
    assert clock.table.count == 0
