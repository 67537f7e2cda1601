"""How the ranks of a run are started, in the measured run and in job.sh: a class for each launcher.

A new one is a class here, and its place in ``LAUNCHERS``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import with_config

from ddp_ladder.common.files import SCRIPTS, RunDirectory
from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.common.process import start_allowance_s

# Slurm's job ids end at 67 million, so simulated ones start here: a script may call scancel with its SLURM_JOB_ID, and
# this machine may be a cluster's login node.
NO_JOB_OF_SLURM = 100_000_000


@with_config(IN_A_MODEL)
@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous endpoint of a run."""

    id: str  # unique per job and attempt, so that no process of another run can join
    host: str
    port: int

    @property
    def simulated_job_id(self) -> str:
        """A job id that is the same for all ranks of a run."""
        return str(NO_JOB_OF_SLURM + zlib.crc32(self.id.encode()) % NO_JOB_OF_SLURM)


@dataclass(frozen=True)
class Process:
    """A process to start: its argument list and the variables to add to its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


class Run(Protocol):
    """What a launcher reads of a run's spec."""

    @property
    def nodes(self) -> int: ...
    @property
    def gpus_per_node(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def threads_per_rank(self) -> int: ...
    @property
    def numa_binding(self) -> str | None: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def wrapper_per(self) -> str: ...


@dataclass(frozen=True)
class Start:
    """A node's part of a run."""

    run: Run
    container: Sequence[str]  # the words before what runs in it; none without one
    wrapper: Sequence[str]  # the words before the Python of each rank, or of each node; none without one
    python: str  # the Python that trains
    command: Sequence[str]  # what Python runs: a program and its arguments
    directory: RunDirectory
    node_rank: int
    rendezvous: Rendezvous
    simulated: Sequence[str]  # the run's nodes, if processes get the variables that a launcher of Slurm would set

    def argv(self, words: Sequence[str], is_wrapped: bool) -> tuple[str, ...]:
        """Return the Python that trains with these words, in the container, started by the wrapper if it is wrapped."""
        return (*self.container, *(self.wrapper if is_wrapped else ()), self.python, *words)


class Launcher:
    """One process per GPU, each under an agent of its own in a Slurm job. A subclass says what differs."""

    name: str
    starts: str  # the rest of a sentence that begins with its name
    sets_ranks = True  # False: it starts one process on one node, which is in no process group
    binds_numa = False  # it has an option for the key numa_binding
    reports_failed_ranks = False  # by RunDirectory.failed_ranks; else the agent starts the ranks, and sees how they end
    per = "GPU"  # of what there is one task of a job step, and one agent: GPU or node

    # job.sh
    comment: str  # why its line is as it is
    step_comment = ""  # what the job step starts on each node

    def tasks_per_node(self, run: Run) -> int:
        """Return the number of tasks, and of agents, on each node of a Slurm job."""
        return run.gpus_per_node if self.per == "GPU" else 1

    def needs_step(self, run: Run) -> bool:
        """Return True if job.sh starts it with a job step."""
        return self.sets_ranks

    def words(self, run: Run, rdzv_id: str, node_rank: str, host: str, port: str) -> tuple[str, ...]:
        """Return the words between the Python and the script: a module and its options; none if there is none."""
        return ()

    def processes(self, start: Start) -> tuple[Process, ...]:
        """Return the processes that a node starts."""
        run, head, node_rank = start.run, start.rendezvous, start.node_rank
        step = self.step_variables(run, head.simulated_job_id, start.simulated) if start.simulated else {}
        common: dict[str, object] = {"GROUP_RANK": node_rank, "MASTER_ADDR": head.host, "MASTER_PORT": head.port}
        common |= {"WORLD_SIZE": run.world_size, "LOCAL_WORLD_SIZE": run.gpus_per_node}
        made = []
        for local_rank in range(run.gpus_per_node):
            rank = node_rank * run.gpus_per_node + local_rank
            task = self.task_variables(rank, local_rank, node_rank) if step else {}
            own = {"RANK": rank, "LOCAL_RANK": local_rank, **common}
            env = {**step, **task, **{name: str(value) for name, value in own.items()}}
            is_wrapped = run.wrapper_per == "rank" or local_rank == 0
            made.append(Process(start.argv(start.command, is_wrapped), env))
        return tuple(made)

    def step_variables(self, run: Run, job_id: str, nodes: Sequence[str]) -> dict[str, str]:
        """Return the variables that it sets for all ranks of a run, for ranks that it does not start itself."""
        return {}

    def task_variables(self, rank: int | str, local_rank: int | str, node_rank: int | str) -> dict[str, str]:
        """Return the variables that it sets for one rank."""
        return {}

    def ranks_text(self, run: Run) -> str:
        """Return the lines of job.sh before the training's own line."""
        return self.comment


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


class Srun(Launcher):
    """srun with one task per GPU. Without Slurm its agents set the variables that srun would set."""

    name = "srun"
    starts = "starts one process per GPU"
    comment = "# The script reads its rank where torchrun would have set it; the values come from Slurm."
    step_comment = "# One process per GPU. Each sees all GPUs of its node, as NCCL wants, and takes its LOCAL_RANK's."

    def step_variables(self, run: Run, job_id: str, nodes: Sequence[str]) -> dict[str, str]:
        per_node = run.gpus_per_node
        on_all = f"(x{run.nodes})" if run.nodes > 1 else ""
        values: Mapping[str, object] = {
            "SLURM_JOB_ID SLURM_JOBID": job_id,
            "SLURM_STEP_ID SLURM_STEPID": 0,
            "SLURM_JOB_NODELIST SLURM_NODELIST SLURM_STEP_NODELIST": ",".join(nodes),
            "SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_STEP_NUM_NODES": run.nodes,
            "SLURM_NTASKS SLURM_NPROCS SLURM_STEP_NUM_TASKS": run.world_size,
            "SLURM_NTASKS_PER_NODE SLURM_GPUS_ON_NODE": per_node,
            "SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE": f"{per_node}{on_all}",
            "SLURM_CPUS_PER_TASK": run.threads_per_rank,
            "SLURM_CPUS_ON_NODE": per_node * run.threads_per_rank,
        }
        return {name: str(value) for names, value in values.items() for name in names.split()}

    def task_variables(self, rank: int | str, local_rank: int | str, node_rank: int | str) -> dict[str, str]:
        return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local_rank), "SLURM_NODEID": str(node_rank)}

    def ranks_text(self, run: Run) -> str:
        return (
            f"{self.comment}\n"
            'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"\n'
            f"export WORLD_SIZE={run.world_size} LOCAL_WORLD_SIZE={run.gpus_per_node} "
            'GROUP_RANK="$SLURM_NODEID"'
        )


class Python(Launcher):
    """The script alone: the baseline for the cost of DDP, and for programs that start their own processes."""

    name = "python"
    starts = "starts one process for all GPUs of a node"
    sets_ranks = False
    per = "node"
    comment = "# The script alone: no launcher, no process group."

    def processes(self, start: Start) -> tuple[Process, ...]:
        return (Process(start.argv(start.command, True), {}),)


LAUNCHERS: Mapping[str, Launcher] = {launcher.name: launcher for launcher in (Torchrun(), Srun(), Python())}
WITH_RANKS: Mapping[str, Launcher] = {name: launcher for name, launcher in LAUNCHERS.items() if launcher.sets_ranks}
"""Those that a site may have; the others are for a variant."""
