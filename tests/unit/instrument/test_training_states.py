"""The state of the training at a link's first step and at its end, as the next link is compared with it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_ladder_instrument import accelerator
from ddp_ladder_instrument.measurement import Measurement
from ddp_ladder_instrument.torch_facts import MOST_VALUES, States
from instrument_support import python_named, run, script
from scripts_support import run as run_script
from scripts_support import warmed

warm = warmed("torch", "torch._dynamo", "torch.distributed.tensor")


def watched(optimizer: torch.optim.Optimizer, states: States | None = None) -> States:
    states = states or States(list, lambda: False, lambda state: None)
    optimizer.register_step_pre_hook(states.before_step)
    return states


def step(states: States, optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        states.had_backward = True
        optimizer.step()


def steps_of(states: States) -> tuple[Any, Any]:
    last = states.last()
    assert states.first is not None
    assert last is not None
    return states.first["optimizer_steps"], last["optimizer_steps"]


OPTIMIZERS: list[tuple[Callable[[Any], torch.optim.Optimizer], tuple[int | None, int | None]]] = [
    (torch.optim.Adam, (0, 3)),
    (lambda parameters: torch.optim.SGD(parameters, lr=0.1), (None, None)),
    (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), (None, None)),
]


@pytest.mark.parametrize(("make", "steps"), OPTIMIZERS)
def test_steps_and_values_are_those_before_the_first_step_and_at_the_end(make: Any, steps: tuple[Any, Any]) -> None:
    parameter = torch.nn.Parameter(torch.arange(5.0, dtype=torch.float64))
    optimizer = make([parameter])
    states = watched(optimizer)
    step(states, optimizer, 3)
    optimizer.param_groups[0]["lr"] = 0.5
    assert steps_of(states) == steps
    assert states.first is not None
    assert (states.first["values"], states.first["count"]) == ([0.0, 1.0, 2.0, 3.0, 4.0], 5)
    assert states.first["lr"] != [0.5]
    assert states.last() == {"optimizer_steps": steps[1], "lr": [0.5], "values": parameter.tolist(), "count": 5}


def test_a_step_without_gradients_that_makes_the_state_to_load_is_not_the_first_one() -> None:
    """torch.distributed.checkpoint does that."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter])
    states = watched(optimizer)
    parameter.grad = torch.zeros(2)
    optimizer.step(closure=None)
    optimizer.state[parameter]["step"] = torch.tensor(40.0)
    parameter.data.fill_(7.0)
    step(states, optimizer, 2)
    assert steps_of(states) == (40, 42)
    assert states.first is not None
    assert states.first["values"] == [7.0, 7.0]


def test_a_step_that_computes_its_gradients_in_a_closure_is_the_first_one() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    states = watched(optimizer)

    def closure() -> float:
        parameter.grad, states.had_backward = torch.ones(2), True
        return 0.0

    for _ in range(2):
        optimizer.step(closure)
    assert states.first is not None
    assert states.first["values"] == [1.0, 1.0]


@pytest.mark.parametrize("sizes", [[1], [MOST_VALUES], [10_000], [7, 1, 0, 5000], [3] * 1000])
def test_the_values_are_few_and_from_all_of_the_parameters(sizes: list[int]) -> None:
    parameters = [torch.nn.Parameter(torch.arange(size) + 10_000.0 * k) for k, size in enumerate(sizes)]
    parameters.append(torch.nn.Parameter(torch.zeros(4), requires_grad=False))
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    states = watched(optimizer)
    step(states, optimizer)
    assert states.first is not None
    values = states.first["values"]
    total = sum(sizes)
    assert min(total, MOST_VALUES // 3) <= len(values) <= MOST_VALUES
    assert states.first["count"] == total
    assert max(values) // 10_000 >= 0.98 * (len(sizes) - 1)  # the last tensors, too
    if len(sizes) == 1:
        assert max(values) >= 0.98 * (total - 1)


def test_values_of_every_kind_are_numbers_or_not_known() -> None:
    parameters = [
        torch.nn.Parameter(torch.tensor([1.0, float("nan"), float("inf")])),
        torch.nn.Parameter(torch.tensor([0.5, 1.5], dtype=torch.bfloat16)),
        torch.nn.Parameter(torch.tensor([1 + 2j])),
        torch.nn.Parameter(torch.ones(2, 3).T),
    ]
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    states = watched(optimizer)
    step(states, optimizer)
    assert states.first is not None
    assert states.first["values"] == [1.0, None, None, *([1.0] * 6), 0.5, 1.5, 1.0, 2.0]


ENDS = """
    import os, signal, sys, torch

    def main(how):
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.constant_(model.weight, 1.0)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            schedule.step()
        print(model.weight.tolist()[0])
        if how == "handler":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        if how != "return":
            os.kill(os.getpid(), signal.SIGTERM)
        return 75

    sys.exit(main(sys.argv[1]))
"""


@pytest.mark.parametrize("version", ["newest", "oldest"])
@pytest.mark.parametrize("how", ["return", "handler"])
def test_a_rank_that_saves_and_ends_leaves_both_states(tmp_path: Path, how: str, version: str) -> None:
    ran = run(tmp_path, script(tmp_path, ENDS), how, python=python_named(version), warn_at_s=1.0)
    assert ran.code == 75, ran.err
    record = ran.rank()
    assert record["not_measured"] == []
    assert record["first_state"] == {"optimizer_steps": 0, "lr": [0.5], "values": [1.0, 1.0], "count": 2}
    values = json.loads(ran.out)
    assert record["last_state"] == {"optimizer_steps": 4, "lr": [0.5**5], "values": values, "count": 2}
    assert not ran.path(0, "first.json").exists()


def test_a_rank_that_is_killed_leaves_the_first_state_and_a_run_of_the_ladder_none(tmp_path: Path) -> None:
    ran = run(tmp_path, script(tmp_path, ENDS), "default", warn_at_s=1.0)
    assert ran.code == -signal.SIGTERM
    assert not ran.path(0, "json").exists()
    first = json.loads(ran.path(0, "first.json").read_text())
    assert first["state"] == {"optimizer_steps": 0, "lr": [0.5], "values": [1.0, 1.0], "count": 2}
    measured = run(tmp_path / "measured", script(tmp_path, ENDS), "return").rank()
    assert (measured["first_state"], measured["last_state"]) == (None, None)


@pytest.mark.parametrize(("code", "is_idle", "answers"), [(75, True, True), (75, False, False), (1, True, False)])
def test_a_gpu_is_read_after_exit_code_75_if_it_has_nothing_left_to_do(
    monkeypatch: pytest.MonkeyPatch, code: int, is_idle: bool, answers: bool
) -> None:
    monkeypatch.setattr(accelerator, "is_idle", lambda device: is_idle)
    ended = SimpleNamespace(program_end=SimpleNamespace(exit_code=code, after_training=False), _gpu="cuda:0")
    assert Measurement._device_answers(ended) is answers


@pytest.mark.parametrize("line", ["sharded.py fsdp1 flat", "sharded.py fsdp2", "compiled.py step eager"])
def test_shards_and_compiled_modules_have_states(warm: Any, tmp_path: Path, line: str) -> None:
    measured = run_script(warm, tmp_path, *line.split(), ranks=2, warn_at_s=1.0)
    for rank in (0, 1):
        assert measured.ranks[rank].code == 0, measured.ranks[rank].err
        record = measured.ran.rank(rank)
        assert [note for note in record["not_measured"] if "state" in note] == []
        first, last = record["first_state"], record["last_state"]
        assert len(first["values"]) == len(last["values"]) > 1
        assert first["values"] != last["values"]
        assert first["count"] == last["count"]
