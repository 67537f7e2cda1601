"""FLOPs of a step: against counts by hand, and the loops and kernels for which there is no count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder_instrument import flops
from ddp_ladder_instrument.recorder import Recorder
from instrument_support import python_named
from scripts_support import run
from torch.utils._python_dispatch import TorchDispatchMode
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


@pytest.fixture(scope="module", params=["newest", "oldest"])
def warm(request: pytest.FixtureRequest) -> Iterator[Warm]:
    process = Warm("torch", "torch._dynamo", "torch.utils.flop_counter", python=python_named(request.param))
    yield process
    process.close()


def counted(warm: Warm, directory: Path, model: str, loop: str = "plain", code: int = 0) -> dict[str, Any]:
    done = run(warm, directory, "models.py", model, loop, ranks=1, warmup_steps=8, count_flops=True)
    assert done.ranks[0].code == code, done.ranks[0].err
    found: dict[str, Any] = done.ran.rank()["flops"]
    return found


def test_resnet50_has_the_published_flops(warm: Warm, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    found = counted(warm, tmp_path, "resnet50")
    assert found["forward"] == pytest.approx(2 * MACS_OF_RESNET50, rel=0.02)
    assert found["backward"] == pytest.approx(2 * (2 * MACS_OF_RESNET50 - FIRST_LAYER), rel=0.02)
    assert found["precisions"] == {"fp32": 1.0}
    assert (found["steps"], found["spread"]) == (flops.STEPS, 0.0)


@pytest.mark.parametrize(
    ("model", "forward", "backward", "recomputed"),
    [
        ("mlp", MLP, 2 * MLP - 100 * 200, 0),
        ("grouped", GROUPED + 32 * 64 * 10, GROUPED + 2 * 32 * 64 * 10, 0),  # torch's formula has 8 times the gradient
        # The scores that the kernel for attention computes again in its backward pass are no work of the model.
        ("transformer", *TRANSFORMER, 0),
        ("transformer again", *TRANSFORMER, PRODUCTS * 8 / 12 + SCORES),  # up to the last tensor that is needed
        ("transformer reentrant", *TRANSFORMER, PRODUCTS + SCORES),
        ("transformer own", *TRANSFORMER, PRODUCTS + SCORES),
    ],
)
def test_flops_are_those_counted_by_hand(
    warm: Warm, tmp_path: Path, model: str, forward: float, backward: float, recomputed: float
) -> None:
    found = counted(warm, tmp_path, model)
    assert found["forward"] == pytest.approx(2 * forward, rel=0.02)
    assert found["backward"] == pytest.approx(2 * backward, rel=0.02)
    assert found["recomputed"] == pytest.approx(2 * recomputed, rel=0.02)


def test_what_else_a_step_does_is_counted(warm: Warm, tmp_path: Path) -> None:
    plain, taught = (counted(warm, tmp_path / loop, "mlp", loop) for loop in ("plain", "teacher"))
    assert taught["forward"] == 2 * plain["forward"]
    assert taught["backward"] == plain["backward"]
    half = counted(warm, tmp_path / "autocast", "mlp", "autocast")
    assert (half["forward"], half["precisions"]) == (plain["forward"], {"bf16": 1.0})
    lengths = counted(warm, tmp_path / "lengths", "mlp", "lengths")
    assert (lengths["steps"], lengths["forward"]) == (4, 1.5 * plain["forward"])  # every second one is twice as long
    assert lengths["spread"] > 0.4


@pytest.mark.parametrize(
    ("model", "loop", "why"),
    [
        ("mlp", "compiled", flops.COMPILED),
        ("mlp", "kernel", "hide their products: ours::doubled"),
        ("mlp", "validates", flops.NO_STEPS),
        ("mlp", "uneven", flops.UNEVEN),
        ("mlp", "very long", "too much for a mean"),
        ("recurrent", "plain", "rnn_layer"),
    ],
)
def test_what_cannot_be_counted_is_said(warm: Warm, tmp_path: Path, model: str, loop: str, why: str) -> None:
    found = counted(warm, tmp_path, model, loop)
    assert why in found["why"]
    assert "forward" not in found


@pytest.mark.parametrize(
    ("line", "forward", "backward"),
    [
        ("gan.py same", 2 * (12 + 6 + 6 + 12 + 6), 2 * (6 + 6 + 6 + 6 + 12)),
        ("gan.py twice", 2 * (2 * (12 + 6 + 6) + 12 + 6), 2 * (2 * (6 + 6) + 6 + 6 + 12)),
        ("gan.py own", None, None),  # one of the two optimizers steps at every fifth step
        ("amp.py foreach", 8, 8),  # with steps that GradScaler skips
    ],
)
def test_loops(warm: Warm, tmp_path: Path, line: str, forward: float | None, backward: float | None) -> None:
    done = run(warm, tmp_path, *line.split(), ranks=2, warmup_steps=8, count_flops=True)
    found = done.ran.rank()["flops"]
    assert (found.get("forward"), found.get("backward")) == (forward, backward)
    assert found.get("why") == (flops.UNEVEN if forward is None else None)
    assert done.ran.rank(1)["flops"] is None


def test_neither_an_error_nor_a_forked_worker_keeps_the_counter(warm: Warm, tmp_path: Path) -> None:
    assert counted(warm, tmp_path / "forks", "mlp", "forks")["steps"] == flops.STEPS
    assert counted(warm, tmp_path / "fails", "mlp", "fails", code=1)["steps"] == 2


def test_without_a_warmup_nothing_is_counted(warm: Warm, tmp_path: Path) -> None:
    done = run(warm, tmp_path, "models.py", "mlp", "plain", ranks=1, warmup_steps=2, count_flops=True)
    assert done.ran.rank()["flops"] == {"why": flops.SHORT_WARMUP}


def test_kernels_of_triton_are_seen_only_while_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        __name__ = "fused_loss"

        def run(self, x: int) -> int:
            return x + 1

    original = Kernel.run
    flops.formulas()  # imports the real module
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=Kernel))
    counter = flops.FlopCounter()
    assert Kernel().run(1) == 2
    counter.stop()
    assert [*counter.uncounted] == ["Triton's fused_loss"]
    assert Kernel.run is original


def test_what_would_spoil_the_count_or_the_run_is_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def why(clock: Recorder) -> str | None:
        clock.count_flops = lambda step: 0
        counted = flops.StepFlops(clock, warmup_steps=10)
        assert clock.count_at == 5
        clock.count_at = clock.count_flops(5)
        counted.stop()
        return counted.why

    assert why(Recorder()) is None
    replays = Recorder()
    replays.machine.replays = 1
    assert why(replays) == flops.GRAPHS
    with TorchDispatchMode():  # type: ignore[no-untyped-call]
        assert why(Recorder()) == flops.MODE
    monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", SimpleNamespace())
    assert why(Recorder()) == "flash_attn_2_cuda has kernels that hide their products"
