"""The log of an agent's processes: the head and the tail of what they print, under a cap.

The head goes straight to the log. After it the output goes to segments beside it, the oldest of which is deleted for
each new one. At the end the segments are appended to the log, behind a line that says how much is left out. So whatever
ends the agent, at most the cap is on the disk, and the head is in the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from collections import deque
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from ddp_ladder.common.files import writing
from ddp_ladder.common.formats import count
from ddp_ladder.records.raw_models import AgentLog

SEGMENTS = 7  # of the tail; room for one more is needed while they are appended
LINES_OF_OURS = 1000  # bytes for the two lines that we add
PIPE_BYTES = 1 << 20
CLOSE_WITHIN_S = 60.0  # for the file system to take the last output
_F_SETPIPE_SZ = 1031  # of Linux


@dataclass(frozen=True)
class BoundedLog:
    """A log and its segments. tail: path of the segments without their numbers. limit: what bounds it, in words."""

    head: Path
    tail: Path
    max_bytes: int
    limit: str

    @property
    def segment_bytes(self) -> int:
        return self.max_bytes // 2 // (SEGMENTS + 1)

    @property
    def head_bytes(self) -> int:
        return self.max_bytes - (SEGMENTS + 1) * self.segment_bytes - LINES_OF_OURS

    @property
    def goes_on_elsewhere(self) -> bytes:
        """The last line of the head while the run goes on."""
        newest = f"{self.tail.parent.name}/{self.tail.name}.*"
        return f"==== ddp-ladder: half of {self.limit} is used; until the run ends, go on in {newest} ====\n".encode()

    def segment(self, offset: int, line: int) -> Path:
        """Return the segment that begins after so many bytes and lines of the output."""
        return self.tail.with_name(f"{self.tail.name}.{offset}.{line}")

    def segments(self) -> list[tuple[int, int, Path]]:
        """Return offset, line and path of the segments that there are, in order."""
        found = []
        for path in self.tail.parent.glob(f"{self.tail.name}.*.*"):
            offset, line = path.name.removeprefix(f"{self.tail.name}.").split(".")
            found.append((int(offset), int(line), path))
        return sorted(found)

    def join(self) -> None:
        """Append the tail to the head; do nothing if there is none. Raises OSError, with the rest of the tail kept."""
        segments = self.segments()
        if not segments:
            return
        with self.head.open("r+b", buffering=0) as log:
            last = log.seek(-min(len(self.goes_on_elsewhere), self.head.stat().st_size), os.SEEK_END)
            if log.read() == self.goes_on_elsewhere:
                log.truncate(last)
            size = log.seek(0, os.SEEK_END)
            offset, line, _ = segments[0]
            if offset > size:
                _write_all(log.fileno(), self._left_out(offset - size, line - _lines(self.head)))
            for _, _, path in segments:
                _append(path, log)
                path.unlink()

    def _left_out(self, size: int, lines: int) -> bytes:
        what = f"{size:,} bytes ({count(lines, 'line')}) of output are left out here"
        return f"\n==== ddp-ladder: {what}: the log is limited by {self.limit} ====\n".encode()


def _append(segment: Path, log: FileIO) -> None:
    """Append the segment to the log, or nothing of it. Raises OSError."""
    size = log.seek(0, os.SEEK_END)
    try:
        with segment.open("rb") as file:
            while part := file.read(PIPE_BYTES):
                _write_all(log.fileno(), part)
    except OSError:
        log.truncate(size)
        raise


def _lines(file: Path) -> int:
    with file.open("rb") as log:
        return sum(part.count(b"\n") for part in iter(lambda: log.read(PIPE_BYTES), b""))


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class _Writer:
    """Writes a bounded log. A full disk loses what does not fit, and raises nothing."""

    def __init__(self, log: BoundedLog) -> None:
        """Raises NotWritten if the log cannot be opened."""
        self._log = log
        with writing(log.head):
            self._file: int | None = os.open(log.head, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._room = log.head_bytes
        self._segments: deque[tuple[int, Path]] = deque()
        self._in_head = self.bytes = self.lines = self.lost_bytes = 0
        self.error: str | None = None

    @property
    def left_out_bytes(self) -> int:
        """Output between the head and the tail, whose segments were deleted."""
        return self._segments[0][0] - self._in_head if self._segments else 0

    def write(self, data: bytes) -> None:
        while data:
            fits = self._fits(data)
            if fits:
                self._put(data[:fits])
                data = data[fits:]
            else:
                self._next_segment()

    def _fits(self, data: bytes) -> int:
        """Return how much of the data goes to the file in use: whole lines, unless a line is larger than a segment."""
        if len(data) <= self._room:
            return len(data)
        whole_lines = data.rfind(b"\n", 0, self._room) + 1
        return whole_lines or (self._room if self._room == self._log.segment_bytes else 0)

    def _put(self, data: bytes) -> None:
        self._room -= len(data)
        self.bytes += len(data)
        self.lines += data.count(b"\n")
        try:
            while data and self._file is not None:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self.error = error.strerror or str(error)
        self.lost_bytes += len(data)

    def _next_segment(self) -> None:
        if not self._in_head:
            self._in_head = self.bytes
            with contextlib.suppress(OSError):
                _write_all(self._file or -1, self._log.goes_on_elsewhere)
        self.close()
        if len(self._segments) == SEGMENTS:
            with contextlib.suppress(OSError):
                self._segments.popleft()[1].unlink()
        segment = self._log.segment(self.bytes, self.lines)
        self._room = self._log.segment_bytes
        try:
            self._file = os.open(segment, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self._segments.append((self.bytes, segment))
        except OSError as error:
            self.error = error.strerror or str(error)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = None


class LogPipe:
    """A pipe whose content a thread writes to a bounded log. descriptor: the end to write to."""

    def __init__(self, log: BoundedLog) -> None:
        """Raises NotWritten if the log cannot be opened."""
        self._log, self._writer = log, _Writer(log)
        self._output, self.descriptor = os.pipe()
        self._stop_asked, self._stop = os.pipe()
        with contextlib.suppress(OSError):  # a larger pipe spares a script that prints much some waiting
            fcntl.fcntl(self.descriptor, _F_SETPIPE_SZ, PIPE_BYTES)
        self._closing = threading.Lock()
        self._kept: AgentLog | None = None
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Write after what the processes have written."""
        _write_all(self.descriptor, data)

    def _drain(self) -> None:
        ready = select.poll()
        for end in (self._output, self._stop_asked):
            ready.register(end, select.POLLIN)
        left = PIPE_BYTES  # to read at the end, for a process that outlives the run may go on printing
        while left > 0:
            events = dict(ready.poll())
            if self._output not in events:
                break
            data = os.read(self._output, PIPE_BYTES)
            if not data:
                break
            self._writer.write(data)
            if self._stop_asked in events:
                left -= len(data)
        self._writer.close()

    def close(self) -> AgentLog:
        """End the log with what was printed so far, and return what is in it; a second call returns the same.

        Processes that outlive the run may still hold the pipe.
        """
        with self._closing:
            self._kept = self._kept or self._close()
            return self._kept

    def _close(self) -> AgentLog:
        os.close(self.descriptor)
        os.write(self._stop, b".")
        self._thread.join(CLOSE_WITHIN_S)
        writer = self._writer
        error = writer.error
        if self._thread.is_alive():
            error = f"its file system took no output for {CLOSE_WITHIN_S:.0f} s"
        else:
            for end in (self._output, self._stop_asked, self._stop):
                os.close(end)
            try:
                self._log.join()
            except OSError as failed:
                error = error or failed.strerror
        return AgentLog(
            bytes=writer.bytes, left_out_bytes=writer.left_out_bytes, lost_bytes=writer.lost_bytes, error=error
        )
