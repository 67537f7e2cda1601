"""Steps that GradScaler skips, of each optimizer of torch in each of its implementations: whoever skips them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_ladder_instrument import hooks
from ddp_ladder_instrument.recorder import Recorder

BATCHES, SIZE, SKIPPED = 24, 4, (3, 9, 10, 17, 20)
NEEDS_MORE = ("LBFGS", "SparseAdam")  # a closure, which GradScaler takes from none; sparse gradients
IMPLEMENTATIONS = ("", "foreach", "fused", "capturable")
FUSED = {"SGD", "Adam", "AdamW", "Adagrad"}  # on a CPU


def optimizers() -> dict[str, Callable[..., Any]]:
    classes = {name: each for name, each in vars(torch.optim).items() if isinstance(each, type)}
    return {name: each for name, each in classes.items() if each is not torch.optim.Optimizer}


class ByArgument(torch.optim.SGD):
    """It gets the scaler as an argument, by the older contract with GradScaler, as Apex's optimizers."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:
        (found_inf,) = grad_scaler._check_inf_per_device(self).values()
        return None if found_inf else super().step(closure)


def matrix() -> list[Any]:
    found = []
    for name, make in optimizers().items():
        for how in IMPLEMENTATIONS if name not in NEEDS_MORE else ():
            weight = torch.ones(4, 4, requires_grad=True)
            weight.grad = torch.ones(4, 4)
            try:
                make([weight], **({how: True} if how else {})).step()
            except (TypeError, RuntimeError, AssertionError):  # it has no such implementation, or not on a CPU
                continue
            found.append(pytest.param(make, how, id=f"{name} {how}"))
    return [*found, pytest.param(ByArgument, "", id="by argument")]


MATRIX = matrix()


def test_the_matrix_has_what_torch_has() -> None:
    ids = {str(each.id) for each in MATRIX}
    assert {name.removesuffix(" fused") for name in ids if name.endswith(" fused")} == FUSED
    assert len(ids) > 20


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop passing itself")
@pytest.mark.parametrize(("make", "how"), MATRIX)
def test_skipped_steps_are_not_counted(make: Callable[..., Any], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "step", torch.amp.GradScaler.step)
    recorder = Recorder()
    hooks.patch_grad_scaler(recorder)
    weight = torch.randn(4, 4, requires_grad=True)
    optimizer = make([weight], **({how: True} if how else {}))
    optimizer.register_step_post_hook(recorder.after_step)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    recorder.begin()
    each = recorder.new_pass(0, -1, True)
    trained = 0
    for index in range(BATCHES):
        recorder.drawn(each, time.perf_counter(), SIZE, 0, True, -1)
        loss = (torch.randn(SIZE, 4) @ weight).square().mean() * (float("inf") if index in SKIPPED else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        recorder.backward(time.perf_counter())
        before = weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        trained += not torch.equal(before, weight)
    recorder.end()
    judged = recorder.judged()
    assert trained == BATCHES - len(SKIPPED)
    assert list(judged.table.samples) == [SIZE] * trained
    assert (judged.batches.drawn, judged.batches.untrained) == (BATCHES, len(SKIPPED))


class OnDevice:
    """What a fused optimizer finds on a GPU: nobody may read it, or the copy of it before the device has passed it."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, marks: Marks, is_skipped: bool) -> None:
        self._marks, self._is_skipped = marks, is_skipped
        self._number = -1

    def to(self, device: str, non_blocking: bool) -> OnDevice:
        assert (device, non_blocking) == ("cpu", True)
        self._number = self._marks.added  # the device passes the copy before the next mark
        return self

    def __bool__(self) -> bool:
        assert 0 <= self._number < self._marks.read, "this would wait for the device"
        return self._is_skipped


class Marks:
    """Stands in for the marks of a GPU that is ``behind`` so many of them."""

    def __init__(self, behind: int) -> None:
        self.behind, self.added = behind, 0

    def add(self) -> int:
        self.added += 1
        return self.added - 1

    @property
    def read(self) -> int:
        return max(0, self.added - self.behind)

    def passed_s(self) -> list[tuple[int, float]]:
        return []

    def keep_no_more(self) -> None:
        pass


@pytest.mark.parametrize("behind", [0, 1, 5, 100])
@pytest.mark.parametrize("whole", [10, 1000])
def test_on_a_gpu_nobody_waits_for_what_the_optimizer_found(
    behind: int, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits depend on all steps, which do not depend on how far the device is; the figures on those that were made."""
    monkeypatch.setattr("ddp_ladder_instrument.log.WHOLE_STEPS", whole)
    recorder, marks = Recorder(), Marks(behind)
    recorder.use_device(marks, lambda: False)  # type: ignore[arg-type]
    recorder.begin()
    each = recorder.new_pass(0, -1, True)
    optimizer: Any = type("Optimizer", (), {})()
    for index in range(60):
        recorder.drawn(each, time.perf_counter(), SIZE, 0, True, -1)
        recorder.backward(time.perf_counter())
        optimizer.found_inf = OnDevice(marks, index % 24 in SKIPPED)
        recorder.after_step(optimizer, (), {})
    recorder.feed()
    assert recorder.steps == 60
    marks.behind = 0  # the device is waited for at the end
    recorder.end()
    made = [SIZE] * sum(index % 24 not in SKIPPED for index in range(60))
    assert list(recorder.judged().table.samples) == made
    assert recorder.counted()[:2] == (len(made), sum(made))


def test_steps_of_which_a_gpu_that_does_not_answer_tells_nothing_count() -> None:
    recorder, marks = Recorder(), Marks(7)
    recorder.use_device(marks, lambda: False)  # type: ignore[arg-type]
    recorder.begin()
    optimizer: Any = type("Optimizer", (), {})()
    for index in range(10):
        optimizer.found_inf = OnDevice(marks, index in (1, 8))
        recorder.backward(time.perf_counter())
        recorder.after_step(optimizer, (), {})
    recorder.end()
    assert recorder.judged().table.count == 9
