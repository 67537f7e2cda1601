"""The script alone: the baseline for the cost of DDP, and for programs that start their own processes."""

from __future__ import annotations

from ddp_ladder.platform.launchers.launcher import Launcher, Process, Start


class Python(Launcher):
    """One process, without variables for rank and world size."""

    name = "python"
    starts = "starts one process for all GPUs of a node"
    sets_ranks = False
    per = "node"
    comment = "# The script alone: no launcher, no process group."

    def processes(self, start: Start) -> tuple[Process, ...]:
        return (Process(start.argv(start.command, True), {}),)
