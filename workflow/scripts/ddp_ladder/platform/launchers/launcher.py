"""What a launcher is: how the ranks of a run are started, in the measured run and in job.sh."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import with_config

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.model import IN_A_MODEL

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
    program = "srun"  # starts its tasks in a job step
    reports_failed_ranks = False  # by RunDirectory.failed_ranks; else the agent starts the ranks, and sees how they end
    per = "GPU"  # of what there is one task of a job step, and one agent: GPU or node

    # job.sh
    comment: str  # why its line is as it is
    step_comment = ""  # what the job step starts on each node
    simulated_text = ""  # before the variables that step_variables sets without Slurm

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

    def step(
        self, srun: Callable[[int], list[str]], agent: Sequence[str], run: Run, job_id: str, nodes: Sequence[str]
    ) -> list[str]:
        """Return the command that starts the agents of a run on its nodes.

        srun: returns srun with its options, for a number of tasks per node.
        """
        return [*srun(self.tasks_per_node(run)), *agent]

    def ranks_text(self, run: Run) -> str:
        """Return the lines of job.sh before the training's own line."""
        return self.comment

    def step_text(self, run: Run, options: Callable[[int], list[str]], of_gpus: Sequence[str]) -> str:
        """Return the lines of job.sh that start the function on_each on all nodes.

        options: returns lines of srun's options, for a number of tasks per node. of_gpus: variables that would hide
        GPUs.
        """
        lines = "".join(f"    {line} \\\n" for line in options(self.tasks_per_node(run)))
        return (
            f"{self.step_comment}\n"
            "# Counts in full: srun takes no --cpus-per-task from sbatch since Slurm 22.05. kill-on-bad-exit:\n"
            "# others would wait for a process that failed. mpi=none: torch brings its own communication.\n"
            "# block:block: neighbouring ranks on neighbouring cores. unset: defaults that would hide GPUs.\n"
            f"unset {' '.join(of_gpus)}\n"
            f"srun \\\n{lines}    bash -c on_each"
        )
