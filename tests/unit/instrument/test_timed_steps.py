"""Which steps DDP times, and to which step its times belong. No GPU is needed: the wrapped module is a stand-in."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
import torch
from ddp_ladder_instrument.batches import BackwardPasses, StepTable
from ddp_ladder_instrument.ddp import SPARSEST, DdpTimings, is_timed, next_timed

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
    monkeypatch.setattr(time, "time", lambda: next(ticks) * 1e-3)
    table, unmeasured, module = StepTable(), list[str](), Reducer(passes)
    timings = DdpTimings(table, BackwardPasses(), 10, max_steps, unmeasured)
    timings.attach(module, torch.device(device))  # type: ignore[arg-type]
    steps = max_steps or 800
    read_at = 0
    for step in range(steps):
        module.step(step)
        table.add(1, 0, step_s, 0.0)
        if table.count >= read_at:
            read_at = timings.read(table.count)
    # The last step is given out in a next one, which there is not.
    measured = [row for row in table.ddp if row >= 10]
    assert least - 1 <= len(measured) <= most
    for row, times in table.ddp.items():
        assert round((times.backward_s - 1) * 1e9) == row
    if passes == 1:  # DDP times no others, which would cost the script time
        assert {iteration - 1 for iteration in module.timed if iteration > 11} <= {*table.ddp}
    summary = timings.summary()
    assert summary
    assert (summary["bucket_bytes"], unmeasured) == ([400, 16], [])


@pytest.mark.parametrize(
    ("sent", "made", "modules", "compute", "comm"),
    [
        (1, 1, 1, 1, 1),
        (4, 4, 1, 4, 4),  # an accumulation that sends the gradients of each batch
        (1, 4, 1, 4, 1),  # and one with no_sync
        (2, 1, 1, 1, 1),  # two forward passes, one backward pass
        (3, 3, 2, 3, 3),
        (1, 3, 2, 1, 1),  # the other passes are of the other module
    ],
)
def test_the_times_of_a_step_are_those_of_all_its_passes(
    sent: int, made: int, modules: int, compute: int, comm: int
) -> None:
    table, backwards = StepTable(), BackwardPasses()
    timings, module = DdpTimings(table, backwards, 10, None, []), Reducer(sent)
    for _ in range(modules):
        timings.attach(module, torch.device("cpu"))  # type: ignore[arg-type]
    for step in range(30):
        module.step(0)
        backwards.count += made
        table.add(1, 0, 0.02, 0.0)
        timings.read(step + 1)
    timings.summary()
    assert {(round(times.backward_s, 6), times.comm_s) for times in table.ddp.values()} == {(compute, comm * 5e-9)}


@pytest.mark.parametrize(("sends", "compute", "comm"), [(True, {4, 1}, {4, 1}), (False, {4, 1}, {1})])
def test_the_shorter_last_step_of_an_epoch_has_passes_of_its_own(
    sends: bool, compute: set[int], comm: set[int]
) -> None:
    """Epochs of two steps, of four batches and of one: 2.5 in the mean."""
    table, backwards = StepTable(), BackwardPasses()
    timings, module = DdpTimings(table, backwards, 10, None, []), Reducer(1)
    timings.attach(module, torch.device("cpu"))  # type: ignore[arg-type]
    for step in range(40):
        made = 1 if step % 2 else 4
        module.passes = made if sends else 1
        module.step(0)
        backwards.count += made
        table.add(1, 0, 0.02, 0.0)
        backwards.end_row()
        timings.read(step + 1)
    summary = timings.summary()
    assert summary
    assert (backwards.usual, summary["exchanges"]) == (4, 4 if sends else 1)
    assert {round(times.backward_s) for times in table.ddp.values()} == compute
    assert {round(times.comm_s / 5e-9) for times in table.ddp.values()} == comm


def test_without_the_methods_nothing_is_timed_and_it_is_said() -> None:
    table, unmeasured = StepTable(), list[str]()
    timings = DdpTimings(table, BackwardPasses(), 10, None, unmeasured)
    timings.attach(torch.nn.Linear(1, 1), torch.device("cpu"))  # type: ignore[arg-type]
    assert timings.read(1) > 10**6
    assert timings.summary() == {
        "bucket_bytes": [], "comm_hook": None, "exchanges": 1, "samples": 0, "exposed_comm_s": None,
    }  # fmt: skip
    assert [why.partition(" is ")[0] for why in unmeasured] == [
        "ddp: DistributedDataParallel._get_ddp_logging_data", "ddp: DDP timed no step",
    ]  # fmt: skip
