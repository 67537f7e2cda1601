"""The logs of one run: what each agent's processes print, under a cap, and their join as train.log; NCCL's own.

The head of the output goes straight to the log. Of the rest, the newest is kept in memory and appended at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

from ddp_ladder.common.files import Agent, RunDirectory, opened, writing, written_atomically
from ddp_ladder.records.raw_models import AgentLog, RunFile

MB = 1_000_000
MOST_OF_NCCL_BYTES = MB  # of each rank
MOST_OF_TAIL_BYTES = 4 * MB
JOINED_BYTES = 256 * MB  # of train.log, which a thousand nodes may fill
LINE_OF_OURS = 500  # bytes
PIPE_BYTES = 1 << 20
CLOSE_WITHIN_S = 60.0  # for the file system to take the last output
_F_SETPIPE_SZ = 1031  # of Linux


class LogPipe:
    """A pipe whose content a thread writes to a bounded log. descriptor: the end to write to.

    A full disk loses what does not fit, and stops no training.
    """

    def __init__(self, path: Path, max_bytes: int, limit: str) -> None:
        """limit: what sets max_bytes, in words. Raises NotWritten if the log cannot be opened."""
        self._limit = limit
        with writing(path):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._tail_bytes = min(max_bytes // 4, MOST_OF_TAIL_BYTES)
        self._room = max_bytes - self._tail_bytes - LINE_OF_OURS
        self._tail = bytearray()
        self._bytes = self._left_out_bytes = self._lost_bytes = 0
        self._error: str | None = None
        self._output, self.descriptor = os.pipe()
        self._stop_asked, self._stop = os.pipe()
        with contextlib.suppress(OSError):  # a larger pipe spares a script that prints much some waiting
            fcntl.fcntl(self.descriptor, _F_SETPIPE_SZ, PIPE_BYTES)
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Write after what the processes have written."""
        while data:
            data = data[os.write(self.descriptor, data) :]

    def _drain(self) -> None:
        ready = select.poll()
        for end in (self._output, self._stop_asked):
            ready.register(end, select.POLLIN)
        left = PIPE_BYTES  # to read at the end, for a process that outlives the run may go on printing
        while left > 0:
            events = dict(ready.poll())
            data = os.read(self._output, PIPE_BYTES) if self._output in events else b""
            if not data:
                break
            self._keep(data)
            if self._stop_asked in events:
                left -= len(data)
        self._end()

    def _keep(self, data: bytes) -> None:
        self._bytes += len(data)
        fits = len(data) if len(data) <= self._room else data.rfind(b"\n", 0, self._room) + 1  # whole lines
        self._room = self._room - fits if fits == len(data) else 0
        self._put(data[:fits])
        self._tail += data[fits:]
        if (over := len(self._tail) - self._tail_bytes) > 0:
            del self._tail[:over]
            self._left_out_bytes += over

    def _put(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._error = error.strerror or str(error)
        self._lost_bytes += len(data)

    def _end(self) -> None:
        """Append the tail, and close the log."""
        tail = bytes(self._tail)
        if self._left_out_bytes:
            begin = tail.find(b"\n") + 1  # a whole line
            size = self._left_out_bytes = self._left_out_bytes + begin
            tail = tail[begin:]
            self._put(f"\n==== ddp-ladder: {size:,} bytes are left out here: {self._limit} ====\n".encode())
        self._put(tail)
        with contextlib.suppress(OSError):
            os.close(self._file)

    def close(self) -> AgentLog:
        """End the log with what was printed so far, and return what is in it.

        Processes that outlive the run may still hold the pipe.
        """
        os.close(self.descriptor)
        os.write(self._stop, b".")
        self._thread.join(CLOSE_WITHIN_S)
        if self._thread.is_alive():
            self._error = f"its file system took no output for {CLOSE_WITHIN_S:.0f} s"
        else:
            for end in (self._output, self._stop_asked, self._stop):
                os.close(end)
        left_out, lost = self._left_out_bytes, self._lost_bytes
        return AgentLog(bytes=self._bytes, left_out_bytes=left_out, lost_bytes=lost, error=self._error)


def log_of_agent(directory: RunDirectory, run: RunFile, agent: Agent) -> LogPipe:
    """Open the log of an agent, with its share of the node's limit. Raises NotWritten."""
    # The logs of several agents are also joined as train.log.
    copies = 1 if run.agents == 1 else 2
    max_bytes = run.max_log_mb_per_node * MB // (run.agents_per_node * copies)
    limit = f"logs.max_mb_per_node is {run.max_log_mb_per_node} in config.yaml"
    return LogPipe(directory.agent_log(agent, run.agents), max_bytes, limit)


def join_logs(directory: RunDirectory, run: RunFile) -> None:
    """Join srun's own messages, if any, and the logs of several agents as train.log; tidy NCCL's.

    Of logs that are too long for it together, each gives its head and its tail; the rest stays in its own file.
    """
    for file in directory.nccl_logs():
        with contextlib.suppress(OSError):
            _shorten(file)
    agents = run.all_agents
    logs = {"srun": directory.launcher_log} | {str(agent): directory.agent_log(agent, len(agents)) for agent in agents}
    parts = {name: file for name, file in logs.items() if file.exists() and file.stat().st_size}
    if len(agents) > 1 or "srun" in parts:
        with written_atomically(directory.log) as joined:
            for name, file in parts.items():
                joined.write(f"==== {name} ====\n".encode())
                # The log of an only agent is what is written now: nothing else has it.
                most = file.stat().st_size if file == directory.log else JOINED_BYTES // len(parts)
                joined.writelines(_head_and_tail(file, most, f" (all: nodes/{file.name})"))


def _shorten(nccl_log: Path) -> None:
    """Remove a log of NCCL that is empty; of a long one keep head and tail."""
    size = nccl_log.stat().st_size
    if size == 0:
        nccl_log.unlink()
    elif size > MOST_OF_NCCL_BYTES:
        nccl_log.write_bytes(b"".join(_head_and_tail(nccl_log, MOST_OF_NCCL_BYTES)))


def _head_and_tail(file: Path, most_bytes: int, where: str = "") -> Iterator[bytes]:
    """Yield the content of a log; of a longer one than most_bytes its head and its tail. where: the rest is."""
    with opened(file) as log:
        left_out = os.fstat(log.fileno()).st_size - most_bytes
        if left_out <= 0:
            yield log.read()
            return
        part = most_bytes // 2 - LINE_OF_OURS
        yield log.read(part)
        yield f"\n==== ddp-ladder: {left_out + 2 * LINE_OF_OURS:,} bytes are left out here{where} ====\n".encode()
        log.seek(-part, os.SEEK_END)
        yield log.read()
