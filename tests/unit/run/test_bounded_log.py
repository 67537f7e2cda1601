"""The bounded log: head and tail under a cap, whatever is printed and however it ends. Real pipes and files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.common.files import NotWritten
from ddp_ladder.run.bounded_log import SEGMENTS, BoundedLog, LogPipe, _Writer

CAP = 80_000
LINES = [f"line {number} {'x' * (number % 90)}\n".encode() for number in range(10_000)]
LEFT_OUT = re.compile(
    rb"\n==== ddp-ladder: ([0-9,]+) bytes \(([0-9]+) lines\) of output are left out here: .*THE KEY ====\n"
)


@pytest.fixture
def log(tmp_path: Path) -> BoundedLog:
    return BoundedLog(tmp_path / "train.log", tmp_path / "nodes/tail.node0", CAP, "THE KEY")


@pytest.fixture(autouse=True)
def nodes(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "nodes").mkdir()
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def on_disk(log: BoundedLog) -> int:
    return sum(path.stat().st_size for path in (log.head, *log.tail.parent.iterdir()))


def test_output_below_the_cap_is_kept_as_it_is(log: BoundedLog) -> None:
    for text in (b"", b"no line end", b"a\n" * (CAP // 2 - log.segment_bytes)):
        log.head.unlink(missing_ok=True)
        pipe = LogPipe(log)
        pipe.write(text)
        kept = pipe.close()
        assert log.head.read_bytes() == text
        assert (kept.bytes, kept.left_out_bytes, kept.lost_bytes, kept.error) == (len(text), 0, 0, None)
        assert not list(log.tail.parent.iterdir())


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_head_and_tail_of_a_flood_are_kept(log: BoundedLog, at_once: int) -> None:
    pipe = LogPipe(log)
    for first in range(0, len(LINES), at_once):
        pipe.write(b"".join(LINES[first : first + at_once]))
    kept = pipe.close()
    printed, content = b"".join(LINES), log.head.read_bytes()
    mark = LEFT_OUT.search(content)
    assert mark
    head, tail = content[: mark.start()], content[mark.end() :]
    assert printed.startswith(head)
    assert printed.endswith(tail)
    # Whole lines on both sides.
    assert head.endswith(b"\n")
    assert tail.startswith(b"line ")
    left_out = len(printed) - len(head) - len(tail)
    assert int(mark[1].replace(b",", b"")) == left_out == kept.left_out_bytes
    assert int(mark[2]) == printed.count(b"\n") - head.count(b"\n") - tail.count(b"\n")
    assert kept.bytes == len(printed)
    assert min(len(head), len(tail)) > CAP * (SEGMENTS - 2) // (SEGMENTS + 1) // 2
    assert len(content) <= CAP
    assert not list(log.tail.parent.iterdir())


def test_at_no_time_is_more_than_the_cap_on_the_disk(log: BoundedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def seen_write(file: int, data: bytes) -> int:
        done = os_write(file, data)
        seen.append(on_disk(log))
        return done

    os_write = os.write
    monkeypatch.setattr(os, "write", seen_write)
    writer = _Writer(log)
    for line in LINES:
        writer.write(line)
    writer.close()
    before = len(seen)
    log.join()
    assert len(seen) > before + SEGMENTS
    assert CAP * (SEGMENTS - 2) // (SEGMENTS + 1) < max(seen) <= CAP


def test_lines_longer_than_everything(log: BoundedLog) -> None:
    pipe = LogPipe(log)
    pipe.write(b"head\n" + b"x" * 5 * CAP + b"last")
    kept = pipe.close()
    content = log.head.read_bytes()
    assert content.startswith(b"head\n")
    assert content.endswith(b"xlast")
    assert len(content) <= CAP
    assert kept.left_out_bytes > 3 * CAP


PRINTS_UNTIL_KILLED = """
import sys
from pathlib import Path
from ddp_ladder.run.bounded_log import BoundedLog, LogPipe
pipe = LogPipe(BoundedLog(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), "THE KEY"))
for number in range(1_000_000_000):
    pipe.write(b"line %d\\n" % number)
    if number % 100_000 == 99_999:
        print(number, flush=True)
"""


def test_a_killed_writer_leaves_the_head_and_what_can_be_joined(log: BoundedLog) -> None:
    argv = [sys.executable, "-c", PRINTS_UNTIL_KILLED, str(log.head), str(log.tail), str(CAP)]
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as writer:
        assert writer.stdout
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    assert on_disk(log) <= CAP
    assert log.head.read_bytes().startswith(b"line 0\nline 1\n")
    assert f"go on in nodes/{log.tail.name}.* ====".encode() in log.head.read_bytes().splitlines()[-1]
    log.join()
    head, tail = LEFT_OUT.split(log.head.read_bytes())[0], LEFT_OUT.split(log.head.read_bytes())[-1]
    first, last = int(head.split()[-1]), int(tail.split()[1])
    mark = LEFT_OUT.search(log.head.read_bytes())
    assert mark
    assert int(mark[2]) == last - first - 1
    assert not list(log.tail.parent.iterdir())


def test_a_full_disk_loses_output_and_blocks_nothing(log: BoundedLog) -> None:
    log.head.symlink_to("/dev/full")
    pipe = LogPipe(replace(log, max_bytes=100_000_000))
    pipe.write(b"x" * (4 << 20))  # more than any pipe holds
    kept = pipe.close()
    assert kept.error == "No space left on device"
    assert kept.lost_bytes == kept.bytes == 4 << 20


def test_a_log_that_cannot_be_opened_is_reported(log: BoundedLog) -> None:
    log.head.mkdir()
    with pytest.raises(NotWritten):
        LogPipe(log)


@pytest.mark.parametrize("argv", [["sleep", "600"], ["yes"]])
def test_a_process_that_holds_the_pipe_does_not_delay_the_end(log: BoundedLog, argv: list[str]) -> None:
    pipe = LogPipe(log)
    pipe.write(b"mine\n")
    with subprocess.Popen(argv, stdout=pipe.descriptor) as survivor:
        kept = pipe.close()
        survivor.kill()
    assert kept == pipe.close()
    assert log.head.read_bytes().startswith(b"mine\n")
