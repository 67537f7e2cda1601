"""Start train_loop.py on one GPU, with one rank or two, with the instrument or without."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import read_json
from ddp_ladder.records.steps import matrix_of
from ddp_ladder_instrument.contract import HEADER

LOOP = Path(__file__).with_name("train_loop.py")
INSTRUMENT = Path(__file__).parents[2] / "workflow" / "scripts" / "instrument.py"
LIMIT_S = 90.0


@dataclass(frozen=True)
class Ran:
    """A training that has ended. problem: its exit codes if a rank failed or hung, else empty."""

    directory: Path
    problem: str

    def result(self, rank: int = 0) -> dict[str, Any]:
        """Return what the script wrote."""
        found: dict[str, Any] = read_json(self.directory / f"result.{rank}.json")
        return found

    def record(self, rank: int = 0) -> dict[str, Any]:
        """Return the rank's end record."""
        found: dict[str, Any] = read_json(self.directory / "ranks" / f"rank{rank}.json")
        return found

    def step_times_s(self) -> list[float]:
        """Return the times of rank 0's steps, from the instrument."""
        matrix = matrix_of((self.directory / "ranks" / "rank0.steps").read_bytes())
        times_s: list[float] = matrix[HEADER.index("step_time_s")].tolist()
        return times_s


def train(
    directory: Path, words: list[object], ranks: int, instrumented: bool, max_steps: int | None = None, **env: str
) -> Ran:
    """Train in a new directory. NCCL takes two ranks on one GPU only as those of two hosts: each has a NCCL_HOSTID."""
    directory.mkdir(parents=True)
    run = directory / "run.json"
    run.write_text(json.dumps({"spec_hash": "0", "job": {}, "spec": {"max_steps": max_steps}, "hang": {}}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, **env, "DDP_LADDER_RUN": str(run), "DDP_LADDER_HEARTBEATS": str(directory)}
    shared["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    shared.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(ranks))
    argv = [sys.executable, *([str(INSTRUMENT)] if instrumented else []), str(LOOP), *map(str, words)]
    processes = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": "0", "NCCL_HOSTID": f"host{rank}"}
        with (directory / f"log.{rank}").open("wb") as log:
            processes.append(subprocess.Popen(argv, cwd=directory, env={**shared, **own}, stdout=log, stderr=log))
    until_s = time.monotonic() + LIMIT_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until_s - time.monotonic()))
    codes = [process.poll() for process in processes]  # None: it hangs
    for process in processes:
        process.kill()
        process.wait()
    if any(code != 0 for code in codes):
        for rank in range(ranks):
            tail = (directory / f"log.{rank}").read_text(errors="replace").splitlines()[-20:]
            print(f"{directory.name}, rank {rank}:", *tail, sep="\n", flush=True)
        return Ran(directory, f"{directory.name}: exit codes {codes}")
    return Ran(directory, "")
