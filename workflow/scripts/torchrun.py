"""usage: torchrun.py FAILURES -m torch.distributed.run [OPTIONS] SCRIPT [ARGS...]

Run torchrun as ``python -m`` would, and write to FAILURES (JSON) how its ranks failed, or why torch could not be
imported. torchrun knows which rank ended first and by which signal, but only prints it. Output, exit code and signals
are torchrun's.
Needs only torch and the standard library (Python 3.9 or newer, torch 2.4 or newer).

example (the agent does this for you):
  python torchrun.py failed.json -m torch.distributed.run --standalone --nproc-per-node=2 train.py --epochs 2
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any


def main(failures: str, module: str) -> None:
    """Run the module; raise what it raises. Write ``failures`` only if a rank failed, or torch is missing."""
    try:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except (ImportError, OSError) as error:  # OSError: a library of CUDA's is missing
        write(failures, {"cannot_import_torch": f"{type(error).__name__}: {error}"})
        raise
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        write(failures, [describe(rank, failure) for rank, failure in error.failures.items()])
        raise


def describe(rank: int, failure: Any) -> dict[str, Any]:
    """Describe a rank that failed by itself; torchrun does not list the ranks that it ended because of it.

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
