"""What one node starts for a run: argument lists and environment. Pure; nothing here starts a process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.plan import RunSpec

INSTRUMENT = Path(__file__).parents[1] / "instrument.py"

# Snakemake sets these to the rule's threads. The plan decides for the training; OMP_NUM_THREADS covers them all.
THREAD_VARIABLES = (
    "GOTO_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# The interface of a node, which need not have the same name on the next one.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes of one run meet: unique per job and attempt, so that no stranger can join."""

    id: str
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Process:
    """One process to start: argument list and what its environment adds."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def script_argv(spec: RunSpec) -> tuple[str, ...]:
    """The script as the user would type it after ``python``."""
    if spec.script.startswith("-m "):
        return ("-m", spec.script[3:].strip(), *spec.args)
    return (spec.script, *spec.args)


def processes(
    spec: RunSpec, node_rank: int, meet: Rendezvous, own_address: str, binds: Sequence[str] = ()
) -> tuple[Process, ...]:
    """The processes that one node starts: torchrun, or with launcher ``srun`` one process per GPU.

    With launcher ``python`` the script alone, which is told of no rank and no world.

    own_address: this node's, where the others reach it.
    binds: directories to show inside the container, if there is one.
    """
    python = python_command(spec, binds)
    command = (str(INSTRUMENT), *script_argv(spec))
    if spec.launcher == "torchrun":
        # is_host: on one machine every agent would take the endpoint for its own and race for the port.
        is_host = "true" if node_rank == 0 else "false"
        return (Process((*python, *torchrun(spec, meet.id, meet.endpoint, is_host, own_address), *command), {}),)
    if spec.launcher == "python":
        return (Process((*python, *command), {}),)
    return tuple(
        Process((*python, *command), _rank_environment(spec, node_rank, local_rank, meet))
        for local_rank in range(spec.gpus_per_node)
    )


def python_command(spec: RunSpec, binds: Sequence[str]) -> tuple[str, ...]:
    """The Python that trains, with the container in front of it if there is one."""
    container = spec.container
    if container is None:
        return (spec.python or sys.executable,)
    gpus = ("--nv",) if spec.device == "cuda" else ()
    shown = (option for bind in binds for option in ("--bind", bind))
    python = spec.python or "python3"  # ours is not in the image
    return (container["engine"], "exec", *gpus, *shown, *container["args"], container["image"], python)


def torchrun(spec: RunSpec, rdzv_id: str, endpoint: str, is_host: str, own_address: str) -> tuple[str, ...]:
    """What stands between the Python and the script: torchrun with its options."""
    return (
        "-m",
        "torch.distributed.run",
        f"--nnodes={spec.nodes}",
        f"--nproc-per-node={spec.gpus_per_node}",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        f"--rdzv-id={rdzv_id}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-conf=is_host={is_host}",
        f"--local-addr={own_address}",
    )


def _rank_environment(spec: RunSpec, node_rank: int, local_rank: int, meet: Rendezvous) -> dict[str, str]:
    return {
        "RANK": str(node_rank * spec.gpus_per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.gpus_per_node),
        "GROUP_RANK": str(node_rank),
        "MASTER_ADDR": meet.host,
        "MASTER_PORT": str(meet.port),
    }


def node_environment(
    spec: RunSpec,
    inherited: Mapping[str, str],
    run_file: Path,
    interface: str,
    launched_at_s: float,
) -> dict[str, str]:
    """Environment of everything that a node starts for a run.

    inherited: the agent's own environment. The user's settings win over ours, except for what identifies the run.
    """
    env = {key: value for key, value in inherited.items() if key not in THREAD_VARIABLES}
    env.update(dict.fromkeys(INTERFACE_VARIABLES, interface))
    env.update(training_environment(spec))
    env["DDP_LADDER_RUN"] = str(run_file)
    env["DDP_LADDER_LAUNCHED_AT"] = repr(launched_at_s)
    return env


def training_environment(spec: RunSpec) -> dict[str, str]:
    """What a run's processes are told on every node alike; the user's settings win over ours."""
    env = {
        "OMP_NUM_THREADS": str(spec.threads_per_rank),
        "PYTHONUNBUFFERED": "1",  # so that the log can be followed while the run goes on
        # torchrun's default leaves out SIGUSR1 and SIGUSR2, the schedulers' "time is nearly up". By variable and not
        # by option (--signals-to-handle), which an older torchrun would refuse.
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
    }
    if spec.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""  # a CPU site stays one on a machine that has a GPU
    return {**env, **spec.env}
