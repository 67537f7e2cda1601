"""The logs of one run: those of its agents and of srun, and their join as train.log; NCCL's own."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ddp_ladder.common.files import Agent, RunDirectory, written_atomically
from ddp_ladder.records.raw_models import RunFile
from ddp_ladder.run.bounded_log import BoundedLog

MB = 1_000_000
MOST_OF_NCCL_BYTES = MB  # of each rank


def log_of_agent(directory: RunDirectory, run: RunFile, agent: Agent) -> BoundedLog:
    """Return the log of an agent, with its share of the node's limit."""
    # The logs of several agents are also joined as train.log.
    copies = 1 if run.agents == 1 else 2
    return BoundedLog(
        directory.agent_log(agent, run.agents),
        directory.log_tail(agent.stem),
        run.max_log_mb_per_node * MB // (run.agents_per_node * copies),
        f"logs.max_mb_per_node: {run.max_log_mb_per_node} in config.yaml",
    )


def log_of_launcher(directory: RunDirectory) -> BoundedLog:
    """Return the log of srun itself."""
    return BoundedLog(directory.launcher_log, directory.log_tail("srun"), MB, "1 MB for srun itself")


def join_logs(directory: RunDirectory, run: RunFile) -> None:
    """Join srun's own messages, if any, and the logs of several agents as train.log; tidy NCCL's.

    All agents have ended, some without joining head and tail of their log.
    """
    agents = run.all_agents
    for log in (log_of_launcher(directory), *(log_of_agent(directory, run, agent) for agent in agents)):
        with contextlib.suppress(OSError):
            log.join()
    _tidy_nccl_logs(directory)
    logs = {"srun": directory.launcher_log} | {str(agent): directory.agent_log(agent, len(agents)) for agent in agents}
    parts = {name: file for name, file in logs.items() if file.exists() and file.stat().st_size}
    if len(agents) > 1 or "srun" in parts:
        with written_atomically(directory.log) as joined:
            for name, file in parts.items():
                joined.write(f"==== {name} ====\n".encode())
                with file.open("rb") as part:
                    shutil.copyfileobj(part, joined)


def _tidy_nccl_logs(directory: RunDirectory) -> None:
    """Remove NCCL's files that are empty; of long ones keep head and tail."""
    for file in directory.nccl_logs():
        with contextlib.suppress(OSError):
            size = file.stat().st_size
            if size == 0:
                file.unlink()
            elif size > MOST_OF_NCCL_BYTES:
                _cut_middle(file, size)


def _cut_middle(file: Path, size: int) -> None:
    part = MOST_OF_NCCL_BYTES // 2 - 100
    with file.open("r+b") as log:
        log.seek(-part, os.SEEK_END)
        tail = log.read()
        log.truncate(part)
        log.seek(part)
        log.write(f"\n==== ddp-ladder: {size - 2 * part:,} bytes are left out here ====\n".encode())
        log.write(tail)
