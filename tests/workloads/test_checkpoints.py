"""Checkpoints: one that cannot be written leaves the last one, and a training that was cut ends as one that was not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import mlp
import mnist
import pytest
import torch
from rank_support import on_ranks

import common

WORDS = ["--samples", "400", "--batch-size", "32", "--precision", "fp16"]


def run(directory: Path, epochs: int) -> int:
    return mlp.main([*WORDS, "--epochs", str(epochs), "--checkpoint-dir", str(directory)])


def run_into_a_full_disk(directory: Path) -> str:
    def fsync(stream: int) -> None:
        raise OSError(28, "No space left on device")

    os.fsync = fsync
    with pytest.raises(OSError, match="No space left") as full:
        run(directory, 3)
    return str(full.value.strerror)


def test_an_unfinished_checkpoint_leaves_the_last_one(tmp_path: Path) -> None:
    assert on_ranks(1, run, tmp_path, 2) == [0]
    before = (tmp_path / "checkpoint.pt").read_bytes()
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert (set(content), content["epoch"]) == ({"model", "optimizer", "scaler", "epoch"}, 2)
    assert on_ranks(1, run_into_a_full_disk, tmp_path) == ["No space left on device"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


CUT_AFTER = 2


def train_digits(directory: Path, data: Path, is_cut: bool) -> int:
    """Train four epochs, with dropout, momentum and a schedule; if cut, rank 1 alone gets the signal in the second."""
    train_epoch = common.train_epoch

    def cut_epoch(training: common.Training, *rest: object) -> None:
        if is_cut and training.epoch + 1 == CUT_AFTER and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGUSR1)
        train_epoch(training, *rest)  # type: ignore[arg-type]

    common.train_epoch = cut_epoch
    words = ["--data-dir", str(data), "--batch-size", "16", "--epochs", "4", "--checkpoint-dir", str(directory)]
    return mnist.main(words)


def test_a_training_that_a_signal_cuts_goes_on_and_ends_as_one_that_is_not_cut(tmp_path: Path, data: Path) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    assert on_ranks(2, train_digits, cut, data, True) == [common.GO_ON, common.GO_ON]
    assert torch.load(cut / "checkpoint.pt", weights_only=True)["epoch"] == CUT_AFTER
    assert on_ranks(2, train_digits, cut, data, False) == [0, 0]
    assert on_ranks(2, train_digits, whole, data, False) == [0, 0]
    assert (cut / "checkpoint.pt").read_bytes() == (whole / "checkpoint.pt").read_bytes()
