"""torchrun: one agent of torch on each node, which starts the node's ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.common.files import SCRIPTS
from ddp_ladder.common.limits import start_allowance_s
from ddp_ladder.platform.launchers.launcher import Launcher, Process, Run, Start

TORCHRUN = SCRIPTS / "torchrun.py"  # runs torchrun and records how its ranks failed

# How long torchrun waits for the other nodes, with start_allowance_s for many: longer than their start-ups differ,
# shorter than its default of 600.
JOIN_TIMEOUT_S = 300

# If the configuration sets one of these, torchrun's own log files stay where it puts them.
LOG_VARIABLES = frozenset({"PET_LOG_DIR", "PET_LOGS_SPECS", "PET_REDIRECTS", "PET_TEE"})

# Without it torchrun refuses arguments of the script that abbreviate several of its own options (--n, --logs).
END_OF_OPTIONS = "--"


def wrapped_ranks(run: Run, wrapper: Sequence[str], python: str) -> tuple[str, ...]:
    """Return the words between torchrun's options and what Python runs: their end, and the wrapper of each rank."""
    if not wrapper or run.wrapper_per == "node":
        return (END_OF_OPTIONS,)
    return ("--no-python", END_OF_OPTIONS, *wrapper, python)


class Torchrun(Launcher):
    """torchrun under one agent per node."""

    name = "torchrun"
    starts = "starts one agent per node"
    binds_numa = True
    reports_failed_ranks = True
    per = "node"
    comment = "# torchrun starts a process per GPU and sets the ranks, in the order of the job's nodes."
    step_comment = "# One torchrun on each node, which starts a process per GPU."

    def needs_step(self, run: Run) -> bool:
        return run.nodes > 1

    def words(self, run: Run, rdzv_id: str, node_rank: str, host: str, port: str) -> tuple[str, ...]:
        """Return torchrun with its options.

        The rendezvous is static: c10d sorts nodes by the text of their addresses, 10.0.0.10 before 10.0.0.9, and NCCL's
        rings, which follow the ranks, would not follow the order of the nodes.
        """
        return (
            "-m",
            "torch.distributed.run",
            f"--nnodes={run.nodes}",
            f"--node-rank={node_rank}",
            f"--nproc-per-node={run.gpus_per_node}",
            *(() if run.numa_binding is None else (f"--numa-binding={run.numa_binding}",)),
            "--max-restarts=0",
            "--rdzv-backend=static",
            f"--rdzv-id={rdzv_id}",
            f"--rdzv-conf=timeout={JOIN_TIMEOUT_S + start_allowance_s(run.nodes):.0f}",
            f"--master-addr={host}",
            f"--master-port={port}",
        )

    def processes(self, start: Start) -> tuple[Process, ...]:
        head, node_rank = start.rendezvous, start.node_rank
        recorded = (str(TORCHRUN), str(start.directory.failed_ranks(node_rank)))
        words = self.words(start.run, head.id, str(node_rank), head.host, str(head.port))
        logs = {"PET_LOG_DIR": str(start.directory.torchrun_logs(node_rank))}
        wrapped = wrapped_ranks(start.run, start.wrapper, start.python)
        argv = start.argv((*recorded, *words, *wrapped, *start.command), start.run.wrapper_per == "node")
        return (Process(argv, {} if start.run.env.keys() & LOG_VARIABLES else logs),)
