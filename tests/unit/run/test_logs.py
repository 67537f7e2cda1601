"""The logs of a run: head and tail under a cap, whatever is printed and however it ends. Real pipes and files."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.run import logs as run_logs
from ddp_ladder.run.logs import MOST_OF_NCCL_BYTES, LogPipe, join_logs, log_of_agent
from make_records import make_spec
from make_runs import write_run

CAP = 80_000
LINES = [f"line {number} {'x' * (number % 90)}\n".encode() for number in range(10_000)]
LEFT_OUT = re.compile(rb"\n==== ddp-ladder: ([0-9,]+) bytes are left out here: THE KEY ====\n")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    before = set(os.listdir("/proc/self/fd"))
    yield tmp_path / "train.log"
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("at_once", [1, 1000])
def test_head_and_tail_of_a_flood_are_kept(log: Path, at_once: int) -> None:
    pipe = LogPipe(log, CAP, "THE KEY")
    for first in range(0, len(LINES), at_once):
        pipe.write(b"".join(LINES[first : first + at_once]))
    kept = pipe.close()
    printed, content = b"".join(LINES), log.read_bytes()
    mark = LEFT_OUT.search(content)
    assert mark
    head, tail = content[: mark.start()], content[mark.end() :]
    assert printed.startswith(head)
    assert printed.endswith(tail)
    assert head.endswith(b"\n")  # whole lines on both sides
    assert tail.startswith(b"line ")
    assert int(mark[1].replace(b",", b"")) == len(printed) - len(head) - len(tail) == kept.left_out_bytes
    assert kept.bytes == len(printed)
    assert min(len(head), len(tail)) > CAP // 6
    assert len(content) <= CAP


def test_a_full_disk_loses_output_and_blocks_nothing(log: Path) -> None:
    log.symlink_to("/dev/full")
    pipe = LogPipe(log, 100_000_000, "THE KEY")
    pipe.write(b"x" * (4 << 20))  # more than any pipe holds
    kept = pipe.close()
    assert kept.error == "No space left on device"
    assert kept.lost_bytes == kept.bytes == 4 << 20


@pytest.mark.parametrize("argv", [["sleep", "600"], ["yes"]])
def test_a_process_that_holds_the_pipe_does_not_delay_the_end(log: Path, argv: list[str]) -> None:
    pipe = LogPipe(log, CAP, "THE KEY")
    pipe.write(b"mine\n")
    with subprocess.Popen(argv, stdout=pipe.descriptor) as survivor:
        kept = pipe.close()
        survivor.kill()
    assert kept.error is None
    assert log.read_bytes().startswith(b"mine\n")


def joined(results: Path, scale: str, **texts: str) -> RunDirectory:
    run = write_run(results, make_spec(scale))
    for name, text in texts.items():
        (run.nodes / name.replace("__", ".")).write_text(text)
    join_logs(run, read_run_file(run))
    return run


def test_logs_that_are_too_long_together_give_their_heads_and_tails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "JOINED_BYTES", 8_000)
    long = "first\n" + "x" * 20_000 + "\nlast\n"
    run = joined(tmp_path, "2x1", node0__log=long, node1__log="short\n")
    text = run.log.read_text()
    assert len(text) < 8_000
    assert text.startswith("==== node 0 ====\nfirst\nxx")
    assert text.endswith("xx\nlast\n==== node 1 ====\nshort\n")
    assert "bytes are left out here (all: nodes/node0.log)" in text
    assert (run.nodes / "node0.log").read_text() == long


def test_the_logs_of_a_node_share_its_limit_with_their_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logs, "LogPipe", lambda path, max_bytes, limit: (max_bytes, limit))
    for scale, agents_per_node, copies in (("1x1", 1, 1), ("2x2", 1, 2), ("2x2", 2, 2), ("1x2", 2, 2)):
        spec = make_spec(scale, launcher="srun" if agents_per_node == 2 else "torchrun")
        directory = write_run(tmp_path, spec, agents_per_node=agents_per_node)
        run = read_run_file(directory)
        logs: list[Any] = [log_of_agent(directory, run, agent) for agent in run.all_agents]
        assert sum(max_bytes for max_bytes, _ in logs) * copies == 100_000_000 * len(run.nodes)
        assert {limit for _, limit in logs} == {"logs.max_mb_per_node is 100 in config.yaml"}


def test_nccls_logs_are_removed_if_empty_and_cut_if_long(tmp_path: Path) -> None:
    long = "first\n" + "x" * 3 * MOST_OF_NCCL_BYTES + "\nlast\n"
    short = "NCCL WARN Cuda failure\n"
    run = joined(tmp_path, "2x1", nccl__node7__1__log="", nccl__node7__2__log=short, nccl__node7__3__log=long)
    assert not (run.nodes / "nccl.node7.1.log").exists()
    assert (run.nodes / "nccl.node7.2.log").read_text() == short
    content = (run.nodes / "nccl.node7.3.log").read_text()
    assert len(content) <= MOST_OF_NCCL_BYTES
    assert re.fullmatch(r"first\nx+\n==== ddp-ladder: [\d,]+ bytes are left out here ====\nx+\nlast\n", content)
