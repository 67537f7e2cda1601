"""The loss and the first samples, as they are seen without waiting for a device."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from ddp_ladder_instrument import batch_sizes, torch_facts
from ddp_ladder_instrument.hooks import MOST_LOSSES, Backwards


class Clock:
    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen(clock: Clock) -> Iterator[Backwards]:
    original = torch.autograd.backward
    backwards = Backwards(lambda: clock.count, [])
    assert backwards.install() is None
    yield backwards
    torch.autograd.backward = original


def test_losses_are_kept_when_wanted_and_read_at_the_end(seen: Backwards, clock: Clock) -> None:
    weight = torch.ones(1, requires_grad=True)
    for step, factor in enumerate([1.0, 2.0, math.nan, 4.0]):
        clock.count = step
        seen.wanted = step != 1
        loss = (factor * weight).sum()
        loss.backward()
        with torch.no_grad():
            loss.zero_()  # the script's own doing must not change what was seen
    assert seen.losses() == {"samples": 3, "first": 1.0, "last": 4.0, "last_step": 4, "not_finite_steps": [3]}
    assert weight.grad is not None
    assert math.isnan(weight.grad.item())


def test_no_more_than_a_few_losses_are_held(seen: Backwards, clock: Clock) -> None:
    weight = torch.ones(1, requires_grad=True)
    for step in range(5 * MOST_LOSSES):
        clock.count, seen.wanted = step, True
        (step * weight).sum().backward()
    summary = seen.losses()
    assert summary is not None
    assert MOST_LOSSES / 2 <= summary["samples"] <= MOST_LOSSES
    assert (summary["first"], summary["last"], summary["last_step"]) == (0.0, 319.0, 320)


def test_batches_that_differ_anywhere_have_different_digests() -> None:
    x, y = torch.randn(12, 3), torch.arange(12)
    images = torch.zeros(2, 3, 300, 300)
    lit = images.clone()
    lit[1, :, 200:] = 1.0
    long = torch.arange(1_000_000).reshape(1, -1)
    batches = [(x, {"label": y}), (x, {"label": y + 1}), images, lit, long, long + 1]
    found = [batch_sizes.digest(batch) for batch in batches]
    assert len({*found}) == len(batches)
    assert batch_sizes.digest(lit.to(memory_format=torch.channels_last)) == found[3]


@pytest.mark.parametrize("batch", ["text", None, 3, [], torch.empty(4, device="meta"), torch.eye(3).to_sparse()])
def test_nothing_is_said_of_other_batches(batch: object) -> None:
    assert batch_sizes.digest(batch) is None


def test_how_an_optimizer_steps_is_in_its_name() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight])) == "AdamW"
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight], fused=True)) == "AdamW (fused)"
    assert torch_facts.optimizer_name(torch.optim.SGD([weight], lr=1.0, foreach=True)) == "SGD (foreach)"
