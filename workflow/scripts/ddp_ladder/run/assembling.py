"""Records of runs that have ended, assembled by a process of its own, so that the next run need not wait for them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from functools import cached_property

from ddp_ladder.assembly.assemble import assemble, not_run
from ddp_ladder.common.files import SCRIPTS, RunDirectory
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record, read_record

ASSEMBLE = SCRIPTS / "assemble.py"
LEAST_PRIORITY = 19  # of nice: ranks of the next run train on the same node


class Assembler:
    """The process that assembles the records of a job, one after the other: it imports what it needs once.

    It starts with the first run that has ended, and again if it has died. It waits without work, and ends with the job.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: deque[Assembly] = deque()  # without an answer yet

    def begin(self, directory: RunDirectory, spec: RunSpec, wall_s: float) -> Assembly:
        """Begin to assemble the record of a run."""
        self.look(0.0)  # it may have died
        assembly = Assembly(self, directory, spec, wall_s)
        self._asked.append(assembly)
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(ASSEMBLE), "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the job alone
                preexec_fn=_in_the_background,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: its answers say so
            self._process.stdin.write(json.dumps(str(directory.path)).encode() + b"\n")
            self._process.stdin.flush()
        return assembly

    def look(self, timeout_s: float | None) -> None:
        """Take the answers that are there, and wait for one so long; None: as long as it takes."""
        if self._process is None or self._process.stdout is None:
            return
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN)
        while waiting.poll(None if timeout_s is None else 1000 * timeout_s):
            answers = os.read(self._process.stdout.fileno(), len(self._asked) + 1)
            if not answers:
                self.close()
                return
            for answer in answers:
                self._asked.popleft().is_assembled = answer == ord("1")
            timeout_s = 0.0

    def close(self) -> None:
        """End the process; what it has not assembled, the job assembles if it needs it."""
        process, self._process = self._process, None
        while self._asked:
            self._asked.popleft().is_assembled = False
        if process is not None:
            process.kill()
            process.communicate()


class Assembly:
    """A record that is being assembled."""

    def __init__(self, assembler: Assembler, directory: RunDirectory, spec: RunSpec, wall_s: float) -> None:
        self.spec, self.wall_s = spec, wall_s  # what the run took
        self.is_assembled: bool | None = None  # None: not yet
        self._assembler, self._directory, self._began_s = assembler, directory, time.monotonic()

    @property
    def is_done(self) -> bool:
        self._assembler.look(0.0)
        return self.is_assembled is True  # what failed is assembled by the job, between two runs

    @cached_property
    def record(self) -> Record:
        """Return the record, as soon as it is there."""
        while self.is_assembled is None:
            self._assembler.look(None)
        try:
            if self.is_assembled:
                with contextlib.suppress(OSError, ValueError):
                    return read_record(self._directory.assembled)
            return assemble(self._directory)  # here, to see why it failed there
        except OSError as error:
            gone = f"{error.filename} is gone: the script, or someone else, deleted it during the run"
            if not isinstance(error, FileNotFoundError):
                gone = f"{error.filename} cannot be read: {error.strerror}"
            advice = f"let nothing delete what is below {self._directory.path}, and start snakemake again"
            return not_run(self.spec, "files deleted", gone, advice, "the run directory was deleted")

    @cached_property
    def took_s(self) -> float:
        """Return the seconds from the end of the run to its record."""
        assert self.record
        return time.monotonic() - self._began_s


def _in_the_background() -> None:
    die_with_parent(signal.SIGTERM)
    with contextlib.suppress(OSError):
        os.nice(LEAST_PRIORITY)
