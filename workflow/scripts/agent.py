"""Run one agent's part of a run: started by the scale's job once on every node, or under Slurm once for every GPU, if
the launcher starts a process for each (srun)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from ddp_ladder.common.command import node_parser, option
from ddp_ladder.common.files import NotWritten
from ddp_ladder.run.agent import NodeTask, run_node
from ddp_ladder.run.signs import sign_of_life


def main(argv: Sequence[str] | None = None) -> int:
    """Run the part; return the exit code of its first process to fail, 0 if none did.

    EX_CANTCREAT if its log or its end record cannot be written.
    """
    words = "which of the node's agents this is, if it has several (default: as Slurm says)"
    local_rank = option("--local-rank", type=int, default=os.environ.get("SLURM_LOCALID"), help=words)
    example = "agent.py --run results/runs/default/weak/1x2/r1 --node-rank 0"
    arguments = node_parser(__doc__, example, local_rank).parse_args(argv)
    try:
        task = NodeTask.read(arguments.run, arguments.node_rank, arguments.local_rank)
        sign = task.directory.sign(task.agent.node_rank)
        with sign_of_life(sign) if task.agent.is_first else nullcontext():
            return run_node(task)
    except NotWritten as error:
        # The job prints what to do, once for all agents.
        print(f"agent of node {arguments.node_rank}: {error.filename}: {error.strerror}", file=sys.stderr)
        return os.EX_CANTCREAT


if __name__ == "__main__":
    sys.exit(main())
