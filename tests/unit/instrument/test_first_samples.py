"""Digests of the first batches, and the names of optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ddp_ladder_instrument import batch_sizes, torch_facts


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


class Annotated(torch.Tensor):
    """As MONAI's MetaTensor: each function gives its own kind, and slices need what this tensor does not have."""

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), options: Any = None) -> Any:
        result = super().__torch_function__(function, kinds, args, options or {})
        if isinstance(result, cls):
            raise KeyError("affine")
        return result


def test_a_subclass_is_taken_as_a_plain_tensor() -> None:
    x = torch.randn(12, 3)
    assert batch_sizes.digest(x.as_subclass(Annotated)) == batch_sizes.digest(x)
    rows = torch.nested.nested_tensor([x[:2], x[:3]], layout=torch.jagged)
    assert batch_sizes.digest(rows) is None


def test_how_an_optimizer_steps_is_in_its_name() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight])) == "AdamW"
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight], fused=True)) == "AdamW (fused)"
    assert torch_facts.optimizer_name(torch.optim.SGD([weight], lr=1.0, foreach=True)) == "SGD (foreach)"
