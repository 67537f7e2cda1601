"""--compile under the real compiler: the same is learnt."""

from __future__ import annotations

import os
from pathlib import Path

import mlp
import pytest
import torch
from instrument_support import need_compiler
from rank_support import on_ranks


@pytest.fixture
def compiler() -> None:
    need_compiler()


def trained(directory: Path, *words: str) -> int:
    """On one rank: the script, up to its checkpoint. Returns how many kernels were compiled for it."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "code")  # not what an earlier run compiled
    from torch._inductor import config, metrics

    config.compile_threads = 1  # no processes for a few lines of C++
    config.cpp.vec_isa_ok = False  # to ask the compiler about each kind of vector unit would take most of the time
    small = ["--samples", "256", "--epochs", "2", "--accumulate", "2", "--checkpoint-dir", str(directory)]
    assert mlp.main([*small, *words]) == 0
    return metrics.generated_kernel_count


def test_a_compiled_workload_learns_the_same(compiler: None, tmp_path: Path) -> None:
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    assert on_ranks(1, trained, plain) == [0]
    (kernels,) = on_ranks(1, trained, compiled, "--compile")
    assert kernels >= 3  # a forward and a backward pass, and an evaluation
    models = [torch.load(directory / "checkpoint.pt", weights_only=True)["model"] for directory in (plain, compiled)]
    assert models[1].keys() == mlp.SimpleModel().state_dict().keys()
    torch.testing.assert_close(*models)
