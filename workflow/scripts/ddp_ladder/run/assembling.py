"""The record of a run that has ended, assembled by a process of its own, so that the next run need not wait for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from functools import cached_property

from ddp_ladder.assembly.assemble import assemble, not_run
from ddp_ladder.common.files import SCRIPTS, RunDirectory
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record, read_record

ASSEMBLE = SCRIPTS / "assemble.py"
LEAST_PRIORITY = 19  # of nice: ranks of the next run train on the same node


class Assembly:
    """The process that assembles the record of a run."""

    def __init__(self, directory: RunDirectory, spec: RunSpec, wall_s: float) -> None:
        self.spec, self.wall_s = spec, wall_s  # what the run took
        self._directory, self._began_s = directory, time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, str(ASSEMBLE), str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the job alone
            preexec_fn=_in_the_background,
        )

    @property
    def is_done(self) -> bool:
        return self._process.poll() == 0  # what failed is assembled by the job, between two runs

    @cached_property
    def record(self) -> Record:
        """Return the record, as soon as it is there."""
        try:
            if self._process.wait() == 0:
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
