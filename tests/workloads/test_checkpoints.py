"""A run that is killed or told to stop, and resumed, ends like one that never was: bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cifar
import imagenet
import mlp
import mnist
import pytest
import torch
from rank_support import Ended, on_ranks
from small_datasets import accept_cifar
from torch.utils._pytree import tree_flatten_with_path

import common
from common import INTERRUPTED

SCRIPTS = {"mlp": mlp.main, "mnist": mnist.main, "cifar": cifar.main, "imagenet": imagenet.main}
EPOCHS = 3


def nothing() -> None:
    pass


def words(name: str, data: Path, directory: Path) -> list[str]:
    """Small runs that use everything that has a state: momentum, dropout, crops, BatchNorm, warm-up, a scaler."""
    here = ["--data-dir", str(data)]
    own = {
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


class Tell:
    """A signal to one rank in the middle of a step."""

    def __init__(self, signum: int, rank: int, step: int) -> None:
        self.signum, self.rank, self.step = signum, rank, step

    def __call__(self) -> None:
        train_step, steps = common.train_step, 0

        def counted(*arguments: Any) -> None:
            nonlocal steps
            steps += 1
            if steps == self.step and os.environ["RANK"] == str(self.rank):
                os.kill(os.getpid(), self.signum)
            train_step(*arguments)

        common.train_step = counted


@pytest.mark.parametrize(
    ("name", "size", "tell"),
    [
        ("mnist", 2, Tell(signal.SIGTERM, rank=1, step=8)),
        ("cifar", 2, Tell(signal.SIGUSR1, rank=0, step=4)),  # the last step of the first epoch
        ("imagenet", 2, Tell(signal.SIGUSR1, rank=0, step=3)),
        ("mlp", 1, Tell(signal.SIGTERM, rank=0, step=9)),
    ],
)
def test_stopped_by_a_signal_and_resumed(name: str, size: int, tell: Tell, data: Path, tmp_path: Path) -> None:
    """The signal reaches one rank; all save at the next step. Told again as they leave, all end with that code."""
    assert on_ranks(size, run, name, data, tmp_path / "whole") == [0] * size
    stopped = tmp_path / "stopped"
    assert on_ranks(size, run_told_again, name, data, stopped, tell) == [INTERRUPTED] * size
    found = content(stopped)
    if "scheduler" in found:
        assert found["scheduler"]["_step_count"] - 1 in (tell.step, tell.step + 1)
    assert found["epoch"] < EPOCHS
    assert on_ranks(size, run, name, data, stopped, ["--resume"]) == [0] * size
    assert_same(content(stopped), content(tmp_path / "whole"))


def run_told_again(name: str, data: Path, directory: Path, tell: Tell) -> int:
    code = run(name, data, directory, (), tell)
    os.kill(os.getpid(), tell.signum)
    return code


def test_a_run_without_a_place_for_checkpoints_ends_by_the_signal(data: Path, tmp_path: Path) -> None:
    ended = on_ranks(1, run_without_checkpoints, data, Tell(signal.SIGTERM, rank=0, step=2))
    assert isinstance(ended[0], Ended)
    assert ended[0].code == -signal.SIGTERM


def run_without_checkpoints(data: Path, tell: Tell) -> int:
    tell()
    return mnist.main(["--data-dir", str(data), "--epochs", "1"])


def test_a_checkpoint_of_another_run_is_refused(data: Path, tmp_path: Path) -> None:
    assert on_ranks(1, run, "mnist", data, tmp_path) == [0]
    message = on_ranks(2, refusal, data, tmp_path)[1]
    assert "belongs to another run" in message
    assert "world_size: 1 there, 2 now" in message
    assert "gamma: 0.7 there, 0.5 now" in message


def refusal(data: Path, directory: Path) -> str:
    with pytest.raises(SystemExit) as refused:
        run("mnist", data, directory, ["--resume", "--gamma", "0.5"])
    return str(refused.value)


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
