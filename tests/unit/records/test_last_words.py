"""The last line that a rank printed before torchrun's report, which is as torch 2.4 and 2.15 write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.common.files import Agent
from ddp_ladder.records.signatures import last_lines
from make_records import make_spec
from make_runs import edit, failure_of, write_run

OLD = (
    "E1121 21:25:55.821000 140500044909440 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 2) "
    "local_rank: 0 (pid: 29023) of binary: /python\nTraceback (most recent call last):\n  File x\n"
)
NEW = (
    "W1121 21:25:51.968000 28862 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28874 closing "
    "signal SIGTERM\nsaving\n"
    "E1121 21:25:51.969000 28862 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
)


MARKED = "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: Connection closed by peer [::1]:901\n"
LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:17829."
RAISED = f'Traceback (most recent call last):\n  File "x.py", line 1\n    loss.backward()\nRuntimeError: {LOST}\n'


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
        # Rank 0 has lost rank 1, after it has said why it ends.
        (f"dataset is missing\n{MARKED}{NEW}", "dataset is missing"),
        (f"epoch 1\nTraining failed: out of coffee\nTraining failed: {LOST}\n{NEW}", "Training failed: out of coffee"),
        (f"epoch 1\nTraining failed: out of coffee\n{RAISED}{NEW}", "Training failed: out of coffee"),
        (RAISED, f"RuntimeError: {LOST}"),
    ],
)  # fmt: skip
def test_an_exit_code_is_explained_by_the_last_line(tmp_path: Path, log: str, line: str) -> None:
    run = write_run(tmp_path, make_spec("1x2"))
    edit(run.ranks / "rank1.json", lambda end: end.update(exit_code=3))
    run.agent_log(Agent(0), 1).write_text(log)
    failure = failure_of(run)
    said = f"; the last line that was printed: {line}" if line else ""
    assert failure.why == f"rank 1: exit code 3{said}"


def test_last_lines(tmp_path: Path) -> None:
    file = tmp_path / "prepare_data.log"
    assert last_lines(file, 3) == []
    file.write_text("one\r\n10 %\r20 %\r\n\n  \x1b[31mtwo\x1b[0m\n" + "x" * 500)
    assert last_lines(file, 3) == ["20 %", "two", "x" * 300 + "..."]
