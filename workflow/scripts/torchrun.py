"""usage: torchrun.py FAILURES -m torch.distributed.run [OPTIONS] SCRIPT [ARGS...]

Run torchrun as ``python -m`` would, and write to FAILURES (JSON) how its ranks failed, or why torch could not be
imported. torchrun knows which rank ended first and by which signal, but only prints it. Output, exit code and signals
are torchrun's, but a signal that comes again does not end ranks that save their state.
Needs only torch and the standard library (Python 3.9 or newer, torch 2.4 or newer).

example (the agent does this for you):
  python torchrun.py failed.json -m torch.distributed.run --standalone --nproc-per-node=2 train.py --epochs 2
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from typing import Any


def main(failures: str, module: str) -> None:
    """Run the module; raise what it raises. Write ``failures`` only if a rank failed, or torch is missing."""
    try:
        from torch.distributed.elastic.multiprocessing import api
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
    except (ImportError, OSError) as error:  # OSError: a library of CUDA's is missing
        write(failures, {"cannot_import_torch": f"{type(error).__name__}: {error}"})
        raise
    signalled = pids_signalled_through(SubprocessHandler)
    handle_signals_once(api)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        failed = [describe(rank, failure) for rank, failure in error.failures.items() if failure.pid not in signalled]
        write(failures, failed)
        raise


def pids_signalled_through(handler: Any) -> set[int]:
    """Return a set that gets the pid of each rank that torchrun ends because of another.

    torch 2.4 does not list these ranks; newer ones list them as failed, by the signal that they were sent.
    """
    pids, close = set(), handler.close

    def noted(self: Any, *args: Any, **options: Any) -> None:
        pids.add(self.proc.pid)
        close(self, *args, **options)

    handler.close = noted
    return pids


def handle_signals_once(api: Any) -> None:
    """Pass each signal on once, and the schedulers' warnings of PET_SIGNALS_TO_HANDLE with torch 2.4 too.

    Slurm signals every process of a step, and again as its srun is told to end. torchrun would take the second for an
    interruption of its wait for the ranks, and leave, and they would die with it. 2.4 does not know the variable.
    """
    handler, handled = api._terminate_process_handler, set()

    def once(signum: int, frame: Any) -> None:
        if signum not in handled:
            handled.add(signum)
            handler(signum, frame)

    api._terminate_process_handler = once
    named = os.environ.get("PET_SIGNALS_TO_HANDLE", "").split(",")
    for warning in (signal.SIGUSR1, signal.SIGUSR2):
        if warning.name in named:
            signal.signal(warning, once)


def describe(rank: int, failure: Any) -> dict[str, Any]:
    """Describe a rank that failed by itself.

    ended_at_s: unix time in whole seconds, rounded down.
    """
    return {
        "rank": rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid,
        "exit_code": failure.exitcode,
        "ended_at_s": failure.timestamp,
    }


def write(path: str, content: Any) -> None:
    """Write JSON whole or not at all. If that fails, the ranks' own records still show most failures."""
    try:
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(f"{path}.part", path)
    except OSError as error:
        print(f"torchrun.py: cannot write {path}: {error}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "-m":
        print(__doc__, end="", file=sys.stdout if sys.argv[1:] == ["--help"] else sys.stderr)
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    # As under `python -m`: the current directory is searched in place of this file's.
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = os.getcwd()
    path, name = sys.argv[1], sys.argv[3]
    sys.argv[:] = [name, *sys.argv[4:]]
    main(path, name)
