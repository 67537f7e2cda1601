"""FLOPs that a witness counts: against counts by hand, and the kernels for which there is no count."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_ladder_instrument import flops
from ddp_ladder_instrument.contract import WITNESS
from ddp_ladder_instrument.testimony import Step
from instrument_support import oldest_python
from scripts_support import run, warmed
from warm import Warm

MACS_OF_RESNET50 = 4.089e9  # at 224 x 224, as published with torchvision's weights
FIRST_LAYER = 64 * 3 * 7 * 7 * 112 * 112  # has no gradient of its input
WIDTH, LENGTH, LAYERS, WORDS = 64, 96, 2, 1000
PRODUCTS = LAYERS * LENGTH * 12 * WIDTH**2  # 4 projections and an MLP of 8 width^2, in multiply-adds
SCORES = LAYERS * 2 * LENGTH**2 * WIDTH  # q k and p v, of all pairs
HEAD = LENGTH * WIDTH * WORDS
TRANSFORMER = PRODUCTS + SCORES + HEAD, 2 * (PRODUCTS + SCORES + HEAD)
MLP = 100 * 200 + 200 * 10
GROUPED = 32 * 9 * 64


MODULES = ("torch", "torch._dynamo", "torch.utils.flop_counter")
warm = warmed(*MODULES)
oldest = warmed(*MODULES, python=oldest_python)


def counted(warm: Warm, directory: Path, *line: str, ranks: int = 1) -> dict[str, Any]:
    done = run(warm, directory, *line, ranks=ranks, is_witness=True)
    assert done.ranks[0].code == 0, done.ranks[0].err
    found: dict[str, Any] = json.loads((directory / "run/ranks" / WITNESS.format(0)).read_text())["flops"]
    return found


def of_model(warm: Warm, directory: Path, model: str, loop: str = "plain") -> dict[str, Any]:
    return counted(warm, directory, "models.py", model, loop)


def test_resnet50_has_the_published_flops(warm: Warm, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    found = of_model(warm, tmp_path, "resnet50")
    assert found["forward"] == pytest.approx(2 * MACS_OF_RESNET50, rel=0.02)
    assert found["backward"] == pytest.approx(2 * (2 * MACS_OF_RESNET50 - FIRST_LAYER), rel=0.02)
    assert found["precisions"] == {"fp32": 1.0}
    assert (found["steps"], found["spread"]) == (10, 0.0)


COUNTED = [
    ("mlp", MLP, 2 * MLP - 100 * 200, 0),
    ("grouped", GROUPED + 32 * 64 * 10, GROUPED + 2 * 32 * 64 * 10, 0),  # torch's formula has 8 times the gradient
    # The scores that the kernel for attention computes again in its backward pass are no work of the model.
    ("transformer", *TRANSFORMER, 0),
    ("transformer again", *TRANSFORMER, PRODUCTS * 8 / 12 + SCORES),  # up to the last tensor that is needed
    ("transformer reentrant", *TRANSFORMER, PRODUCTS + SCORES),
    ("transformer own", *TRANSFORMER, PRODUCTS + SCORES),
]


@pytest.mark.parametrize(("model", "forward", "backward", "recomputed"), COUNTED)
def test_flops_are_those_counted_by_hand(
    warm: Warm, tmp_path: Path, model: str, forward: float, backward: float, recomputed: float
) -> None:
    as_by_hand(of_model(warm, tmp_path, model), forward, backward, recomputed)


def as_by_hand(found: dict[str, Any], forward: float, backward: float, recomputed: float) -> None:
    assert found["forward"] == pytest.approx(2 * forward, rel=0.02)
    assert found["backward"] == pytest.approx(2 * backward, rel=0.02)
    assert found["recomputed"] == pytest.approx(2 * recomputed, rel=0.02)


def test_so_they_are_with_the_oldest_torch(oldest: Warm, tmp_path: Path) -> None:
    for model, *counts in COUNTED:
        as_by_hand(of_model(oldest, tmp_path / model.replace(" ", "_"), model), *counts)


def test_what_else_a_step_does_is_counted_and_a_validation_is_not(warm: Warm, tmp_path: Path) -> None:
    loops = ("plain", "teacher", "autocast", "lengths", "compiled")
    plain, taught, half, lengths, compiled = (of_model(warm, tmp_path / loop, "mlp", loop) for loop in loops)
    assert taught["forward"] == 2 * plain["forward"]
    assert taught["backward"] == plain["backward"]
    assert (half["forward"], half["precisions"]) == (plain["forward"], {"bf16": 1.0})
    assert lengths["forward"] == 1.5 * plain["forward"]  # every second one is twice as long
    assert lengths["spread"] > 0.4
    assert compiled == plain  # it runs eagerly
    validated = counted(warm, tmp_path / "validated", "validate.py", "--where", "inside", "--grad", "grad")
    assert (validated["forward"], validated["backward"]) == (2 * (32 + 24), 2 * (32 + 2 * 24))


@pytest.mark.parametrize(
    ("model", "loop", "why"),
    [
        ("mlp", "kernel", "hide their products: ours::doubled"),
        ("mlp", "very long", "too much for a mean"),
        ("recurrent", "plain", "rnn_layer"),
    ],
)
def test_what_cannot_be_counted_is_said(warm: Warm, tmp_path: Path, model: str, loop: str, why: str) -> None:
    found = of_model(warm, tmp_path, model, loop)
    assert why in found["why"]
    assert "forward" not in found


@pytest.mark.parametrize(
    ("line", "forward", "backward"),
    [
        ("gan.py same", 2 * (12 + 6 + 6 + 12 + 6), 2 * (6 + 6 + 6 + 6 + 12)),
        ("gan.py twice", 2 * (2 * (12 + 6 + 6) + 12 + 6), 2 * (2 * (6 + 6) + 6 + 6 + 12)),
        ("amp.py foreach", 8, 8),  # with steps that GradScaler skips
    ],
)
def test_loops(warm: Warm, tmp_path: Path, line: str, forward: float, backward: float) -> None:
    found = counted(warm, tmp_path, *line.split(), ranks=2)
    assert (found.get("forward"), found.get("backward")) == (forward, backward), found


def test_kernels_that_nothing_shows_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        __name__ = "fused_loss"

        def run(self, x: int) -> int:
            return x + 1

    def why_not(launch: bool) -> str:
        counter, mm, x = flops.BatchFlops(), torch.ops.aten.mm.default, torch.ones(2, 2)
        counter.add(mm, (x, x), {}, mm(x, x), {0})
        if launch:
            assert Kernel().run(1) == 2
        return counter.summary([Step(0, {0: 2}, frozenset())]).get("why", "")

    original = Kernel.run
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=Kernel))
    assert (why_not(False), why_not(True)) == ("", "kernels that hide their products: Triton's fused_loss")
    assert Kernel.run is original
    monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", SimpleNamespace())
    assert why_not(False) == "flash_attn_2_cuda has kernels that hide their products"
