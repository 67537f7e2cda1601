"""The last line that a run's processes printed before torchrun's report, which is as torch 2.4 and 2.15 write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.records.quotes import last_line, last_lines

OLD = (
    "E1121 21:25:55.821000 140500044909440 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 2) "
    "local_rank: 0 (pid: 29023) of binary: /python\nTraceback (most recent call last):\n  File x\n"
)
NEW = (
    "W1121 21:25:51.968000 28862 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28874 closing "
    "signal SIGTERM\nsaving\n"
    "E1121 21:25:51.969000 28862 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        (f"usage: train.py\ntrain.py: error: argument --n: invalid int value: 'x'\n{OLD}",
         "train.py: error: argument --n: invalid int value: 'x'"),
        (f"dataset is missing\n{NEW}====\n", "dataset is missing"),
        ("epoch 1\n 10%|#\r 20%|##\r\n", "20%|##"),
        ("\x1b[31mno such file\x1b[0m\n\n", "no such file"),
        ("x" * 500, "x" * 300 + "..."),
        ("y\n" * 100_000 + "the end", "the end"),
    ],
)  # fmt: skip
def test_last_line(tmp_path: Path, log: str, line: str) -> None:
    file = tmp_path / "train.log"
    file.write_text(log)
    assert last_line(file) == line


def test_another_ranks_exception_is_not_this_ones_last_word(tmp_path: Path) -> None:
    """As rank 0 writes it that lost rank 1, after rank 1 has said why it ends."""
    file = tmp_path / "train.log"
    lost = "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: Connection closed by peer [::1]:901\n"
    file.write_text(f"dataset is missing\n{lost}{NEW}")
    assert last_line(file, 1) == "dataset is missing"
    assert last_line(file, 0) == "[rank0]: RuntimeError: Connection closed by peer [::1]:901"


LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:17829."


@pytest.mark.parametrize(
    "lost",
    [
        f"Training failed: {LOST}\n",
        f'Traceback (most recent call last):\n  File "x.py", line 1\n    loss.backward()\nRuntimeError: {LOST}\n',
    ],
)
def test_a_lost_rank_is_no_last_word_where_the_script_prints_its_exceptions(tmp_path: Path, lost: str) -> None:
    file = tmp_path / "train.log"
    file.write_text(f"epoch 1\nTraining failed: out of coffee\n{lost}{NEW}")
    assert last_line(file, 1) == "Training failed: out of coffee"
    file.write_text(lost)
    assert last_line(file, 1) == lost.split("\n")[-2]


def test_no_log(tmp_path: Path) -> None:
    assert last_line(tmp_path / "train.log") == ""


def test_last_lines(tmp_path: Path) -> None:
    file = tmp_path / "prepare_data.log"
    assert last_lines(file, 3) == []
    file.write_text("one\r\n10 %\r20 %\r\n\n  \x1b[31mtwo\x1b[0m\n" + "x" * 500)
    assert last_lines(file, 3) == ["20 %", "  two", "x" * 300 + "..."]
