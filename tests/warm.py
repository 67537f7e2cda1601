"""Run training scripts under the real instrument.py in children of one process that has imported torch.

Starting Python with torch takes seconds; forking a process that has imported it does not. Two ranks are two such
children, with the environment that a launcher would set. Each child ends as an interpreter does, with exit functions,
traceback and exit code, but without the cleanup of all modules, which takes a third of a second. Run as a script, this
file is that process; imported, it is the tests' side of it.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

SCRIPTS = Path(__file__).parents[1] / "workflow" / "scripts"


def serve() -> dict[str, Any] | None:
    """Fork a child for each request; return the request in a child, None in the parent after the last one."""
    children: dict[int, int] = {}
    gc.freeze()  # otherwise a child that ends copies all pages of this process
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        for index, rank in enumerate(request["ranks"]):
            child = os.fork()
            if child == 0:
                os.environ.update(rank["env"])
                os.chdir(request["directory"])
                for number, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(f"{name}.{index}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                return request
            children[child] = index
        codes = {}
        while children:
            child, status = os.wait()
            codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
        print(json.dumps([codes[index] for index in sorted(codes)]), flush=True)
    return None


@dataclass(frozen=True)
class RankRan:
    code: int
    out: str
    err: str


class Warm:
    """The tests' side of one process that has imported these modules."""

    def __init__(self, *modules: str, python: Path = Path(sys.executable)) -> None:
        from instrument_support import environment

        self._process = subprocess.Popen(
            [str(python), __file__, *modules],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, directory: Path, words: list[str], ranks: int, **env: str) -> list[RankRan]:
        """Run ``words`` under instrument.py on ``ranks`` ranks, in this directory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), **env}
        each = [{"env": {**launched, "RANK": str(k), "LOCAL_RANK": str(k)}} for k in range(ranks)]
        request = {"directory": str(directory), "words": words, "ranks": each}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return [RankRan(code, *self._output(directory, rank)) for rank, code in enumerate(codes)]

    def _output(self, directory: Path, rank: int) -> tuple[str, str]:
        return (directory / f"out.{rank}").read_text(), (directory / f"err.{rank}").read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def end(main: Callable[[], None]) -> NoReturn:
    """Call ``main`` and end this process as Python does, with the same exit code."""
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def break_hook(name: str) -> None:
    """Let a function of the instrument raise, such as ``recorder:Recorder.after_step``."""
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    owner: Any = importlib.import_module(f"ddp_ladder_instrument.{module}")
    for each in owners:
        owner = getattr(owner, each)

    @functools.wraps(getattr(owner, last))
    def broken(*args: Any) -> None:
        raise ZeroDivisionError(f"broken by the test: {name}")

    setattr(owner, last, broken)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    asked = serve()
    if asked is not None:
        sys.path[0] = str(SCRIPTS)
        from ddp_ladder_instrument import entry

        sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        for name in os.environ.get("BREAK_HOOKS", "").split():
            break_hook(name)
        # The same as instrument.py, except for the time at which Python started.
        end(lambda: entry.main(asked["words"], started_at_s=time.time(), own_directory=str(SCRIPTS)))
