"""Run real training scripts, with and without instrument.py, and read their files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_ladder.records.steps import matrix_of
from ddp_ladder_instrument.contract import HEADER
from needed import need

INSTRUMENT = Path(__file__).parents[1] / "workflow" / "scripts" / "instrument.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SPEC_HASH = "5" * 64
JOB = {"id": "local-7", "attempt": 2, "run_id": "6" * 32}
NEWEST = Path(sys.executable)
OLDEST = Path(sys.prefix).parent / ".venv-oldest/bin/python"


def oldest_python() -> Path:
    """Return the Python with the oldest torch that the instrument supports, from `make oldest`."""
    need(OLDEST.exists(), f"no {OLDEST}: make oldest")
    return OLDEST


def need_compiler() -> None:
    """Skip the test, or fail in CI, without the C++ compiler that torch.compile needs on a CPU."""
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    missing = "no g++ or no Python.h (Debian and Ubuntu: apt-get install g++ python3-dev)"
    need(shutil.which("g++") and has_headers, missing)


def python_named(torch: str) -> Path:
    """Return the Python with the ``newest`` or the ``oldest`` torch."""
    return oldest_python() if torch == "oldest" else NEWEST


@dataclass(frozen=True)
class Ran:
    """A finished process and the run directory it wrote to."""

    code: int
    out: str
    err: str
    directory: Path

    def rank(self, rank: int = 0) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.path(rank, "json").read_text())
        return record

    def rows(self, rank: int = 0) -> list[dict[str, float]]:
        matrix = matrix_of(self.path(rank, "steps").read_bytes())
        return [dict(zip(HEADER, row, strict=True)) for row in matrix.T.tolist()]

    def path(self, rank: int, suffix: str) -> Path:
        return self.directory / "ranks" / f"rank{rank}.{suffix}"


def script(directory: Path, text: str, name: str = "train.py") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
    return path


def run_json(directory: Path, warn_at_s: float | None = None, is_witness: bool = False, **measure: Any) -> Path:
    """warn_at_s: of a link of a chain."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "run.json"
    limits = {"warmup_steps": 5, "min_steps": 5, "max_steps": None, "max_seconds": None, **measure}
    of_run = {"hang": {}, "warn_at_s": warn_at_s, "is_witness": is_witness}
    path.write_text(json.dumps({"spec_hash": SPEC_HASH, "job": JOB, "spec": limits, **of_run}))
    return path


def environment(**more: str) -> dict[str, str]:
    """Return the environment without variables of an outer launcher or run, with ``more`` added."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DDP_LADDER", "PYTHON", "TORCHELASTIC"))
        and key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    return {**clean, "OMP_NUM_THREADS": "1", **more}


def run(
    directory: Path,
    *words: object,
    launcher: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    timeout_s: float = 120,
    python: Path = NEWEST,
    **measure: Any,
) -> Ran:
    """Run ``words`` under instrument.py in ``directory``; its records go to ``directory/run``."""
    variables = environment(**(env or {}))
    variables["DDP_LADDER_RUN"] = str(run_json(directory / "run", **measure))
    variables["DDP_LADDER_HEARTBEATS"] = str(directory / "run")
    return _run(directory, (python, *launcher, INSTRUMENT, *words), variables, timeout_s)


def run_plainly(
    directory: Path,
    *words: object,
    launcher: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    python: Path = NEWEST,
) -> Ran:
    """Run ``words`` under plain python."""
    return _run(directory, (python, *launcher, *words), environment(**(env or {})), 120)


def _run(directory: Path, words: tuple[object, ...], env: dict[str, str], timeout_s: float) -> Ran:
    done = subprocess.run([*map(str, words)], cwd=directory, env=env, capture_output=True, text=True, timeout=timeout_s)
    return Ran(done.returncode, done.stdout, done.stderr, directory / "run")
