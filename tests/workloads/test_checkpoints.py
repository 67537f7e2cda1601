"""A run that is killed, and resumed, ends like one that never was: bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cifar
import gpt
import imagenet
import mlp
import mnist
import pytest
import torch
from rank_support import Ended, on_ranks
from small_datasets import accept_cifar
from torch.utils._pytree import tree_flatten_with_path

import common

SCRIPTS = {"gpt": gpt.main, "mlp": mlp.main, "mnist": mnist.main, "cifar": cifar.main, "imagenet": imagenet.main}
EPOCHS = 3


def nothing() -> None:
    pass


def words(name: str, data: Path, directory: Path) -> list[str]:
    """Small runs that use everything that has a state: momentum, dropout, crops, BatchNorm, warm-up, a scaler."""
    here = ["--data-dir", str(data)]
    own = {
        "gpt": ["--layers", "1", "--width", "16", "--sequence", "8", "--samples", "48", "--batch-size", "8"],
        "mlp": ["--samples", "400", "--batch-size", "32", "--accumulate", "2", "--precision", "fp16"],
        "mnist": [*here, "--batch-size", "8"],
        "cifar": [*here, "--depth", "10", "--width", "1", "--batch-size", "8"],
        "imagenet": [*here, "--model", "shufflenet_v2_x0_5", "--image-size", "32", "--batch-size", "3"],
    }
    return [*own[name], "--epochs", str(EPOCHS), "--checkpoint-dir", str(directory)]


def run(name: str, data: Path, directory: Path, more: Sequence[str] = (), fault: Callable[[], None] = nothing) -> int:
    """On one rank: the script, after ``fault`` has prepared what is to go wrong."""
    if name == "cifar":
        accept_cifar(data)
    fault()
    return SCRIPTS[name]([*words(name, data, directory), *more])


def content(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(directory / "checkpoint.pt", weights_only=True)
    return loaded


def assert_same(found: Any, wanted: Any) -> None:
    (ours, shape), (theirs, other) = tree_flatten_with_path(found), tree_flatten_with_path(wanted)
    assert shape == other
    for (where, one), (_, two) in zip(ours, theirs, strict=True):
        assert torch.equal(one, two) if isinstance(two, torch.Tensor) else one == two, where


class Kill:
    """The last rank is killed in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self) -> None:
        train_step, steps = common.train_step, 0

        def counted(*arguments: Any) -> None:
            nonlocal steps
            steps += 1
            if steps == self.step and int(os.environ["RANK"]) + 1 == int(os.environ["WORLD_SIZE"]):
                os.kill(os.getpid(), signal.SIGKILL)
            train_step(*arguments)

        common.train_step = counted


def run_into_a_kill(name: str, data: Path, directory: Path, step: int) -> None:
    with pytest.raises(RuntimeError):  # of a rank that loses its peer
        run(name, data, directory, (), Kill(step))


@pytest.mark.parametrize(
    ("name", "size", "step"), [("mnist", 2, 7), ("cifar", 2, 10), ("imagenet", 2, 4), ("mlp", 1, 9)]
)
def test_killed_in_the_second_epoch_and_resumed(name: str, size: int, step: int, data: Path, tmp_path: Path) -> None:
    assert on_ranks(size, run, name, data, tmp_path / "whole") == [0] * size
    killed = tmp_path / "killed"
    end = on_ranks(size, run_into_a_kill, name, data, killed, step)[-1]
    assert isinstance(end, Ended)
    assert end.code == -signal.SIGKILL
    assert content(killed)["epoch"] == 1
    assert on_ranks(size, run, name, data, killed, ["--resume"]) == [0] * size
    assert_same(content(killed), content(tmp_path / "whole"))


def test_an_unfinished_checkpoint_leaves_the_last_one(data: Path, tmp_path: Path) -> None:
    assert on_ranks(1, run, "mlp", data, tmp_path, ["--resume"]) == [0]  # from nothing, as there is none yet
    before = (tmp_path / "checkpoint.pt").read_bytes()
    ended = on_ranks(1, run_into_a_full_disk, data, tmp_path)
    assert ended == ["No space left on device"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def run_into_a_full_disk(data: Path, directory: Path) -> str:
    def fsync(stream: int) -> None:
        raise OSError(28, "No space left on device")

    os.fsync = fsync
    with pytest.raises(OSError, match="No space left") as full:
        run("mlp", data, directory)
    return str(full.value.strerror)
