"""A checkpoint that cannot be written leaves the last one."""

from __future__ import annotations

import os
from pathlib import Path

import mlp
import pytest
import torch
from rank_support import on_ranks

WORDS = ["--samples", "400", "--batch-size", "32", "--precision", "fp16", "--epochs", "2", "--checkpoint-dir"]


def run(directory: Path) -> int:
    return mlp.main([*WORDS, str(directory)])


def run_into_a_full_disk(directory: Path) -> str:
    def fsync(stream: int) -> None:
        raise OSError(28, "No space left on device")

    os.fsync = fsync
    with pytest.raises(OSError, match="No space left") as full:
        run(directory)
    return str(full.value.strerror)


def test_an_unfinished_checkpoint_leaves_the_last_one(tmp_path: Path) -> None:
    assert on_ranks(1, run, tmp_path) == [0]
    before = (tmp_path / "checkpoint.pt").read_bytes()
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert (set(content), content["epoch"]) == ({"model", "optimizer", "scaler", "epoch"}, 2)
    assert on_ranks(1, run_into_a_full_disk, tmp_path) == ["No space left on device"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint.pt"]
