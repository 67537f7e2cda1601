"""The logs of one run: what each agent's processes print, under a cap, and their join as train.log; NCCL's own.

The head of the output goes straight to the log. The rest goes to parts beside it, of which the two newest are kept; at
the end they are appended to the log. So whatever ends the agent, at most the cap is on the disk, with the head and the
newest output.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.common.files import Agent, RunDirectory, writing, written_atomically
from ddp_ladder.records.raw_models import AgentLog, RunFile

MB = 1_000_000
MOST_OF_NCCL_BYTES = MB  # of each rank
LINE_OF_OURS = 500  # bytes
PIPE_BYTES = 1 << 20
CLOSE_WITHIN_S = 60.0  # for the file system to take the last output
_F_SETPIPE_SZ = 1031  # of Linux


@dataclass(frozen=True)
class BoundedLog:
    """A log under a cap. tail: path of its parts without their numbers. limit: what bounds it, in words."""

    head: Path
    tail: Path
    max_bytes: int
    limit: str

    @property
    def part_bytes(self) -> int:
        """Two parts are kept; while they are appended, room for a third is needed."""
        return self.max_bytes // 5

    @property
    def head_bytes(self) -> int:
        return self.max_bytes - 3 * self.part_bytes - LINE_OF_OURS

    def part(self, offset: int) -> Path:
        """Return the part that begins after so many bytes of the output."""
        return self.tail.with_name(f"{self.tail.name}.{offset}")

    def parts(self) -> list[tuple[int, Path]]:
        """Return offset and path of the parts that there are, in order."""
        found = self.tail.parent.glob(f"{self.tail.name}.*")
        return sorted((int(path.suffix.removeprefix(".")), path) for path in found)

    def join(self) -> None:
        """Append the parts to the head; do nothing if there are none. Raises OSError, with the rest of them kept."""
        parts = self.parts()
        if not parts:
            return
        with self.head.open("ab") as log:
            left_out = parts[0][0] - log.tell()
            if left_out > 0:
                log.write(f"\n==== ddp-ladder: {left_out:,} bytes are left out here: {self.limit} ====\n".encode())
            for _, path in parts:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, log)
                log.flush()
                path.unlink()


class LogPipe:
    """A pipe whose content a thread writes to a bounded log. descriptor: the end to write to.

    A full disk loses what does not fit, and stops no training.
    """

    def __init__(self, log: BoundedLog) -> None:
        """Raises NotWritten if the log cannot be opened."""
        self._log = log
        with writing(log.head):
            self._file: int | None = os.open(log.head, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._room = log.head_bytes
        self._bytes = self._lost_bytes = self._head_bytes = 0
        self._error: str | None = None
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
        self._close_file()

    def _keep(self, data: bytes) -> None:
        while data:
            # Whole lines, unless a line is longer than a part.
            fits = len(data) if len(data) <= self._room else data.rfind(b"\n", 0, self._room) + 1
            if not fits and self._room == self._log.part_bytes:
                fits = self._room
            if fits:
                self._put(data[:fits])
                data = data[fits:]
            else:
                self._next_part()

    def _put(self, data: bytes) -> None:
        self._room -= len(data)
        self._bytes += len(data)
        try:
            while data and self._file is not None:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._error = error.strerror or str(error)
        self._lost_bytes += len(data)

    def _next_part(self) -> None:
        self._close_file()
        self._head_bytes = self._head_bytes or self._bytes
        self._room = self._log.part_bytes
        try:
            for _, oldest in self._log.parts()[:-1]:
                oldest.unlink()
            self._file = os.open(self._log.part(self._bytes), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            self._error = error.strerror or str(error)

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = None

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
        parts = self._log.parts()
        left_out = parts[0][0] - self._head_bytes if parts else 0
        if self._thread.is_alive():
            self._error = f"its file system took no output for {CLOSE_WITHIN_S:.0f} s"
        else:
            for end in (self._output, self._stop_asked, self._stop):
                os.close(end)
            try:
                self._log.join()
            except OSError as failed:
                self._error = self._error or failed.strerror
        return AgentLog(bytes=self._bytes, left_out_bytes=left_out, lost_bytes=self._lost_bytes, error=self._error)


def log_of_agent(directory: RunDirectory, run: RunFile, agent: Agent) -> BoundedLog:
    """Return the log of an agent, with its share of the node's limit."""
    # The logs of several agents are also joined as train.log.
    copies = 1 if run.agents == 1 else 2
    return BoundedLog(
        directory.agent_log(agent, run.agents),
        directory.log_tail(agent.stem),
        run.max_log_mb_per_node * MB // (run.agents_per_node * copies),
        f"logs.max_mb_per_node is {run.max_log_mb_per_node} in config.yaml",
    )


def log_of_launcher(directory: RunDirectory) -> BoundedLog:
    """Return the log of srun itself."""
    return BoundedLog(directory.launcher_log, directory.log_tail("srun"), MB, "1 MB is kept of srun's own output")


def join_logs(directory: RunDirectory, run: RunFile) -> None:
    """Join srun's own messages, if any, and the logs of several agents as train.log; tidy NCCL's.

    All agents have ended, some without joining head and tail of their log.
    """
    agents = run.all_agents
    for log in (log_of_launcher(directory), *(log_of_agent(directory, run, agent) for agent in agents)):
        with contextlib.suppress(OSError):
            log.join()
    for file in directory.nccl_logs():
        with contextlib.suppress(OSError):
            _tidy(file)
    logs = {"srun": directory.launcher_log} | {str(agent): directory.agent_log(agent, len(agents)) for agent in agents}
    parts = {name: file for name, file in logs.items() if file.exists() and file.stat().st_size}
    if len(agents) > 1 or "srun" in parts:
        with written_atomically(directory.log) as joined:
            for name, file in parts.items():
                joined.write(f"==== {name} ====\n".encode())
                with file.open("rb") as part:
                    shutil.copyfileobj(part, joined)


def _tidy(nccl_log: Path) -> None:
    """Remove a log of NCCL that is empty; of a long one keep head and tail."""
    size = nccl_log.stat().st_size
    if size == 0:
        nccl_log.unlink()
    elif size > MOST_OF_NCCL_BYTES:
        part = MOST_OF_NCCL_BYTES // 2 - LINE_OF_OURS
        with nccl_log.open("r+b") as log:
            log.seek(-part, os.SEEK_END)
            tail = log.read()
            log.truncate(part)
            log.seek(part)
            log.write(f"\n==== ddp-ladder: {size - 2 * part:,} bytes are left out here ====\n".encode() + tail)
