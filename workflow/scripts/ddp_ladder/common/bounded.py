"""Commands that may hang, such as a driver's: they get a time limit, and leave no process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ddp_ladder.common.lifetime import die_with_parent


def run_bounded(
    argv: Sequence[str],
    within_s: float,
    env: Mapping[str, str] | None = None,
    output: int = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a command to its end; return its exit code and its output, errors included (empty with a descriptor).

    Its processes are in a group of their own, which is killed at the end. Raises OSError, and TimeoutExpired after
    within_s.
    """
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )
    try:
        printed, _ = process.communicate(timeout=within_s)
        return process.returncode, printed or ""
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()
