"""Which steps DDP times, and to which step its times belong. No GPU is needed: the wrapped module is a stand-in."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections import Counter

import pytest
import torch
from ddp_ladder_instrument import log
from ddp_ladder_instrument.contract import MOST_ROWS, SINGLE_ROWS, TOTALS
from ddp_ladder_instrument.ddp import SPARSEST, DdpTimings, is_timed, next_timed
from ddp_ladder_instrument.judgement import ddp_summary
from ddp_ladder_instrument.log import Log
from ddp_ladder_instrument.machine import judge
from ddp_ladder_instrument.recorder import Recorder

STEPS = 4096


@pytest.mark.parametrize("level", [1, 3, SPARSEST])
def test_steps_are_timed_at_random_in_equal_shares_and_ranks_at_other_levels_time_common_ones(level: int) -> None:
    timed = [step for step in range(STEPS) if is_timed(step, level)]
    assert len(timed) == STEPS >> level
    assert {*timed} <= {step for step in range(STEPS) if is_timed(step, level - 1)}
    assert [next_timed(step, level) for step in (0, timed[0] + 1, timed[5])] == [timed[0], timed[1], timed[5]]
    for period in (10, 16):
        phases = Counter(step % period for step in timed)
        # Each phase of what recurs is timed about as often: in multiples of the standard deviation of a fair draw.
        mean = len(timed) / period
        assert all(abs(phases[phase] - mean) < 3.5 * mean**0.5 for phase in range(period))


class Reducer:
    """Stands in for DistributedDataParallel: it logs as torch's Reducer and Logger do, in steps of ``passes`` passes.

    An iteration is timed if its rate divides it or it is one of the first ten; the next forward pass gives it out.
    """

    def __init__(self, passes: int = 1) -> None:
        self.passes = passes
        self._rate = 100
        self._iteration = 0
        self._events: dict[int, int] = {}
        self._data: dict[str, int | str] = {"bucket_sizes": "400, 16"}
        self.timed: set[int] = set()

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self._rate = rate

    def _get_ddp_logging_data(self) -> dict[str, int | str]:
        return self._data

    def _is_timed(self) -> bool:
        return self._iteration > 0 and (self._iteration <= 10 or self._iteration % self._rate == 0)

    def step(self, step: int) -> None:
        """Make a step: its backward pass takes ``step`` ns more than a second."""
        for _ in range(self.passes):
            if self._is_timed():
                self.timed.add(self._iteration)
                ended_ns = self._events[self._iteration]
                of_step = (self._iteration - 1) // self.passes
                self._data |= {"iteration": self._iteration, "backward_comm_time_end": ended_ns}
                self._data |= {"backward_compute_time": 10**9 + of_step, "backward_comm_time": 5}
            self._iteration += 1
            self._events[self._iteration] = time.time_ns()


def train(module: Reducer, recorder: Recorder, timings: DdpTimings, steps: int, step_s: float) -> None:
    read_at = 0
    for step in range(steps):
        module.step(step)
        ended_s = time.time_ns() * 1e-9
        recorder.machine.table.add(1, 0, step_s, 0.0, ended_s, 0.0, 1, 0, 0, ended_s)
        if recorder.steps >= read_at:
            read_at = timings.read(recorder.steps)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize(
    ("device", "step_s", "max_steps", "least", "most"),
    [
        ("cpu", 0.02, None, 780, 790),  # every step
        ("cpu", 0.002, None, 97, 100),  # every eighth
        ("cpu", 0.00001, None, 24, 26),  # no less than every 32nd
        ("cpu", 0.00001, 74, 16, 16),  # no fewer than sixteen
        ("cuda", 0.1, None, 196, 199),  # every fourth
        ("cuda", 0.01, None, 24, 26),
    ],
)
def test_times_belong_to_the_step_that_they_are_of(
    passes: int,
    device: str,
    step_s: float,
    max_steps: int | None,
    least: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count(1_000_000)  # milliseconds: on some machines the real clock stands still for a step
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks) * 10**6)
    unmeasured, module = list[str](), Reducer(passes)
    recorder = Recorder()
    timings = DdpTimings(recorder, 10, max_steps, unmeasured)
    timings.attach(module, torch.device(device))  # type: ignore[arg-type]
    train(module, recorder, timings, max_steps or 800, step_s)
    rows = {bisect_left(recorder.machine.table.host_ended_s, event[2]): event[4] for event in recorder.log.events()}
    # The last step is given out in a next one, which there is not.
    measured = [row for row in rows if row >= 10]
    assert least - 1 <= len(measured) <= most
    for row, backward_s in rows.items():
        assert round((backward_s - 1) * 1e9) == row
    if passes == 1:  # DDP times no others, which would cost the script time
        assert {iteration - 1 for iteration in module.timed if iteration > 11} <= {*rows}
    facts = timings.facts()
    assert facts is not None
    assert (facts["bucket_bytes"], unmeasured) == ([400, 16], [])


def test_steps_go_on_to_be_timed_where_rows_are_blocks_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(1_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks) * 10**6)
    module, recorder, steps = Reducer(), Recorder(), MOST_ROWS + 4000
    timings = DdpTimings(recorder, 10, None, [])
    timings.attach(module, torch.device("cpu"))  # type: ignore[arg-type]
    train(module, recorder, timings, steps, 1e-5)
    timed = [round((event[4] - 1) * 1e9) for event in recorder.log.events()]
    assert [step for step in timed if step > 20] == [k for k in range(21, steps - 1) if is_timed(k, SPARSEST)]
    recorder.feed()
    totals = recorder.totals()
    assert totals
    assert totals[TOTALS.index("timed_steps")] == len(timed)
    assert totals[TOTALS.index("comm_s")] == round(len(timed) * 5e-9, 6)
    assert len(recorder.machine.judged().table.ddp) <= SINGLE_ROWS


def of_module(events: Log, made: int, sent: int, other: int) -> None:
    """Write a step with DDP's times of one of its ``made`` passes, beside ``other`` passes of an earlier module."""
    now_s = float(len(events))
    for module, passes in ((1, other), (2, made)):
        for number in range(passes):
            events.add(log.FORWARD, now_s, now_s, module, 0, 0, log.SENDS if number < sent else log.NO_SYNC)
    events.add(log.BACKWARD, now_s, now_s)
    events.add(log.STEP, now_s, now_s)
    events.add(log.DDP, 0.001, now_s, 2, 1.0, 5e-9, 0.0)


@pytest.mark.parametrize(
    ("sent", "made", "other", "compute", "comm"),
    [
        (1, 1, 0, 1, 1),
        (4, 4, 0, 4, 4),  # an accumulation that sends the gradients of each batch
        (1, 4, 0, 4, 1),  # and one with no_sync
        (3, 3, 2, 3, 3),  # the other passes are of the other module
    ],
)
def test_the_times_of_a_step_are_those_of_all_passes_of_its_module(
    sent: int, made: int, other: int, compute: int, comm: int
) -> None:
    events = Log()
    events.begin(0)
    for _ in range(30):
        of_module(events, made, sent, other)
    table = judge(events, None).table
    assert {(round(times.backward_s, 6), times.comm_s) for times in table.ddp.values()} == {(compute, comm * 5e-9)}


@pytest.mark.parametrize(("sends", "compute", "comm"), [(True, {4, 1}, {4, 1}), (False, {4, 1}, {1})])
def test_the_shorter_last_step_of_an_epoch_has_passes_of_its_own(
    sends: bool, compute: set[int], comm: set[int]
) -> None:
    """Epochs of two steps, of four batches and of one."""
    events = Log()
    events.begin(0)
    for step in range(40):
        made = 1 if step % 2 else 4
        of_module(events, made, made if sends else 1, 0)
    table = judge(events, None).table
    summary = ddp_summary(table, {"bucket_bytes": [4], "comm_hook": None}, 10)
    assert summary is not None
    assert (summary["exchanges"], summary["samples"]) == (4 if sends else 1, 30)
    assert {round(times.backward_s) for times in table.ddp.values()} == compute
    assert {round(times.comm_s / 5e-9) for times in table.ddp.values()} == comm
