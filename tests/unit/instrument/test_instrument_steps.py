"""The step clock with a simulated clock, and facts about loaders; no processes."""

from __future__ import annotations

import pytest
import torch
from ddp_ladder_instrument import torch_facts
from ddp_ladder_instrument.recorder import NEVER
from ddp_ladder_instrument.clock import MOST_STEPS, StepClock


class Clock:
    """Replaces time.perf_counter in the step clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Script:
    """Does what a training script does, seen from the hooks. It is its own optimizer."""

    param_groups = ()

    def __init__(self, clock: Clock) -> None:
        self.time = clock
        self.clock = StepClock()

    def loop(self, real_samples: int = NEVER) -> Loop:
        loop = Loop(lambda: None, real_samples)
        self.clock.timer.enter(loop, self.time.now_s)
        return loop

    def batch(self, loop: Loop, size: int = 8, wait_s: float = 1.0) -> None:
        entered_s = self.time.now_s
        if self.clock.timer.loop is not loop:
            self.clock.timer.enter(loop, entered_s)
        self.time.now_s += wait_s
        self.clock.yielded(loop, entered_s, size)

    def leave(self, loop: Loop) -> None:
        self.clock.left(loop)

    def compute(self, seconds: float) -> None:
        self.time.now_s += seconds

    def step(self, seconds: float = 0.0, optimizer: object = None) -> None:
        self.compute(seconds)
        self.clock.after_step(optimizer or self, (), {})

    def evaluate(self, seconds: float) -> None:
        self.clock.timer.eval_mode()
        self.compute(seconds)
        self.clock.timer.train_mode()

    def rows(self) -> list[tuple[int, int, float, float]]:
        table = self.clock.table
        return list(zip(table.samples, table.padding_samples, table.step_time_s, table.data_wait_s, strict=True))


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Script:
    clock = Clock()
    monkeypatch.setattr("ddp_ladder_instrument.clock.time.perf_counter", clock)
    return Script(clock)


@pytest.fixture
def unix_time(code: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_ladder_instrument.clock.time.time", lambda: 1e9 + code.time.now_s)


def test_steps_of_one_pass_follow_each_other(code: Script) -> None:
    code.compute(50)
    train = code.loop()
    for _ in range(2):
        code.batch(train)
        code.step(4)
    code.compute(2)  # logging between steps belongs to the loop
    code.batch(train, size=3)
    code.step(4)
    assert code.rows() == [(8, 0, 5, 1), (8, 0, 5, 1), (3, 0, 7, 1)]


def test_what_leads_to_the_first_step_of_a_loop_without_a_loader_is_no_part_of_it(code: Script) -> None:
    code.compute(50)  # import torch
    code.clock.timer.started()
    code.compute(20)  # a process group
    code.clock.timer.started()
    code.compute(2)
    code.step(4)
    code.compute(1)
    code.clock.timer.started()  # another process group
    code.step(4)
    assert [seconds for _, _, seconds, _ in code.rows()] == [6, 5]


def test_time_between_passes_is_not_counted(code: Script) -> None:
    for _ in range(2):
        train = code.loop()
        code.batch(train)
        code.step(4)
        code.leave(train)
        code.compute(100)  # a checkpoint
        val = code.loop()
        code.batch(val, size=1000)
        code.compute(100)
        code.leave(val)
    assert code.rows() == [(8, 0, 5, 1), (8, 0, 5, 1)]


def test_batches_drawn_without_gradients_never_train(code: Script) -> None:
    train, val = code.loop(), code.loop()
    for _ in range(2):
        code.batch(train)
        code.clock.grad_enabled = lambda: False
        code.batch(val, size=1000)  # a loader kept for later: its pass goes on
        code.clock.grad_enabled = lambda: True
        code.step(4)
    assert [row[0] for row in code.rows()] == [8, 8]


@pytest.mark.usefixtures("unix_time")
def test_eval_mode_is_training_once_the_batch_was_drawn(code: Script) -> None:
    """Adversarial examples; a validation between the steps is no part of any, nor is the time around it."""
    train = code.loop()
    for index in range(4):
        if index == 2:
            code.compute(1)
            code.evaluate(100)
            code.compute(2)
        code.batch(train)
        code.evaluate(10)
        code.step(4)
    assert [row[2] for row in code.rows()] == [15] * 4
    assert code.clock.phases.summary()["validations_s"] == [(1e9 + 31, 1e9 + 131)]


class Loader:
    """Something that passes are made over, or another optimizer."""

    param_groups = ()


def test_remainder_of_a_pass_belongs_to_the_next_over_the_same_loader(code: Script) -> None:
    loader = Loader()
    rows = []
    for again in (loader, Loader()):
        code.clock = StepClock()
        first, second = code.loop(), None
        first.loader = lambda: loader
        code.batch(first)
        code.step(4)
        code.batch(first)
        code.compute(2)
        code.leave(first)
        second = code.loop()
        second.loader = lambda again=again: again  # type: ignore[misc]
        code.batch(second)
        code.step(4)
        rows.append(code.rows()[1])
    assert rows == [(16, 0, 8, 2), (8, 0, 5, 1)]


def test_each_gradient_is_a_step_of_a_loop_without_a_loader(code: Script) -> None:
    code.clock = StepClock(samples_per_step=16)
    backward(code)
    code.step(1)
    for _ in range(2):
        code.clock.backwards.replays += 1  # the backward pass was captured into a CUDA graph
        code.step(1)
    for _ in range(2):
        code.step(1)  # and this one is part of the step before: no gradient at all
    assert [row[2] for row in code.rows()] == [3, 1, 3]


def test_a_pass_that_yields_no_further_batch_does_not_hold_its_row_for_ever(code: Script) -> None:
    train = code.loop()
    code.batch(train)
    for _ in range(MOST_STEPS + 3):
        backward(code, 0)
        code.step(1)
    assert [row[0] for row in code.rows()] == [8, 0]


def backward(code: Script, seconds: float = 2.0) -> None:
    after = code.clock.before_backward()
    code.compute(seconds)
    if after is not None:
        after()


def test_batches_drawn_ahead_wait_for_their_step(code: Script) -> None:
    train = code.loop(real_samples=27)
    for size in (5, 6, 7, 8, 4):
        if size != 5:
            code.batch(train, size)
            backward(code)
            code.step()
        else:
            code.batch(train, size)
    code.leave(train)
    backward(code)
    code.step()
    assert [row[:2] for row in code.rows()] == [(5, 0), (6, 0), (7, 0), (8, 0), (1, 3)]


def test_a_step_left_out_of_one_optimizer_only(code: Script) -> None:
    """A GradScaler with two optimizers: the batch is lost where neither steps."""
    train, other = code.loop(), Loader()
    for skipped in ((), ("first",), ("first", "other"), ()):
        code.batch(train)
        for name, optimizer in (("first", code), ("other", other)):
            backward(code)
            code.clock.batches.skipped() if name in skipped else code.step(0, optimizer)
    assert [row[0] for row in code.rows()] == [8, 8, 8]
    assert sum(row[2] for row in code.rows()) == 4 * 5


def test_padding_comes_last(code: Script) -> None:
    train = code.loop(real_samples=10)
    for size in (4, 4, 4, 1):
        code.batch(train, size)
        code.step(1)
    assert [row[:2] for row in code.rows()] == [(4, 0), (4, 0), (2, 2), (0, 1)]


@pytest.mark.usefixtures("unix_time")
def test_csv(code: Script) -> None:
    train = code.loop()
    code.batch(train, wait_s=0.25)
    code.step(1)
    assert "".join(code.clock.table.csv()) == (
        "step,samples,padding_samples,step_time_s,data_wait_s,ended_at_s,forward_s,backward_s,comm_s,overlap_s\n"
        "1,8,0,1.250000000,0.250000000,1000000001.250,,,,\n"
    )


@pytest.mark.usefixtures("unix_time")
def test_phases_of_two_epochs_with_validation(code: Script) -> None:
    code.clock.timer.eval_mode()  # before the first step: start-up
    code.clock.timer.train_mode()
    for _ in range(2):
        train = code.loop()
        for _ in range(3):
            code.batch(train)
            code.step(1)
        code.leave(train)
        code.clock.timer.eval_mode()
        code.compute(5)
        code.clock.timer.train_mode()
    assert code.clock.phases.summary() == {
        "epoch_steps": [1, 4],
        "validations_s": [(1e9 + 6, 1e9 + 11), (1e9 + 17, 1e9 + 22)],
        "without_a_pass_s": [(1e9 + 6, 1e9 + 11), (1e9 + 17, 1e9 + 22)],
        "saves_s": [],
    }


@pytest.mark.usefixtures("unix_time")
@pytest.mark.parametrize("grad", [True, False])
def test_a_pass_without_a_step_is_a_validation(code: Script, grad: bool) -> None:
    train = code.loop()
    code.batch(train)
    code.step(1)
    code.clock.grad_enabled = lambda: grad
    validation = code.loop()
    code.batch(validation, wait_s=4)
    code.leave(validation)
    assert code.clock.phases.summary()["validations_s"] == [(1e9 + 2, 1e9 + 6)]


def checksum(named: list[tuple[str, torch.Tensor]]) -> str:
    return str(torch_facts.summary(named)["checksum"])


def test_checksum_sees_every_bit_and_dtype() -> None:
    weights = torch.randn(3, 5, dtype=torch.bfloat16)
    changed = weights.clone()
    changed[2, 4] += 1
    assert checksum([("w", weights)]) == checksum([("w", weights.clone())])
    sums = {
        checksum(named)
        for named in (
            [("w", weights)],
            [("v", weights)],
            [("w", changed)],
            [("w", weights.float())],
            [("w", weights.T)],
            [("w", weights), ("empty", torch.empty(0))],
        )
    }
    assert len(sums) == 6
    assert checksum([("w", weights.T)]) == checksum([("w", weights.T.contiguous())])
    assert torch_facts.main_dtype([("w", weights), ("b", torch.zeros(2))]) == "bfloat16"
