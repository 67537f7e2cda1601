"""What one node starts for a run: argument lists and environment. Pure; nothing here starts a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.files import RunDirectory
from ddp_ladder.placeholders import expand
from ddp_ladder.plan import OWN_DIRECTORY, RunSpec, argument_values

INSTRUMENT = Path(__file__).parents[1] / "instrument.py"
TORCHRUN = Path(__file__).parents[1] / "torchrun.py"  # torchrun, and how its ranks failed

# Snakemake sets these to the rule's threads. The plan decides for the training; OMP_NUM_THREADS covers them all.
THREAD_VARIABLES = (
    "GOTO_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# How long torchrun waits for the other nodes: longer than their start-ups differ, shorter than its default of 600.
JOIN_TIMEOUT_S = 300

# torchrun's own log files, where the configuration asks for them: they stay where it has them.
LOG_VARIABLES = frozenset({"PET_LOG_DIR", "PET_LOGS_SPECS", "PET_REDIRECTS", "PET_TEE"})

# Without it torchrun refuses arguments of the script that could be short for several of its own options (--n, --logs).
END_OF_OPTIONS = "--"

# The interface of a node, which need not have the same name on the next one.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes of one run meet: unique per job and attempt, so that no stranger can join."""

    id: str
    host: str
    port: int


@dataclass(frozen=True)
class Places:
    """Absolute directories of a run: where Snakemake was started, and the run's own."""

    start: Path
    run: Path

    @classmethod
    def here(cls, run: Path) -> Places:
        """Those of a process in the directory where Snakemake was started."""
        return cls(Path.cwd(), Path(os.path.abspath(run)))

    @property
    def own(self) -> Path:
        """The working directory that no other run has: what {run_dir} in workload.directory is."""
        return self.run / OWN_DIRECTORY

    def working(self, spec: RunSpec) -> Path:
        """Where the training starts."""
        return self.start if spec.directory is None else self.start / spec.directory

    def is_own(self, spec: RunSpec) -> bool:
        """Whether no other run starts there."""
        return self.working(spec).is_relative_to(self.own)


@dataclass(frozen=True)
class Process:
    """One process to start: argument list and what its environment adds."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def script_argv(spec: RunSpec, places: Places) -> tuple[str, ...]:
    """The script as the user would type it after ``python`` in the run's working directory.

    In a directory of its own all paths of the spec become absolute; without one they stay as they were written.
    """
    script, args = spec.script, spec.args
    if spec.directory is not None:
        values = _absolute_values(spec, places)
        args = tuple(expand(argument, values) for argument in spec.args_template)
    if is_module(spec):
        return ("-m", script[3:].strip(), *args)
    return (script if spec.directory is None else str(places.start / script), *args)


def _absolute_values(spec: RunSpec, places: Places) -> dict[str, object]:
    """What placeholders stand for in a working directory other than where Snakemake was started."""
    data_dir = None if spec.data_dir is None else str(places.start / spec.data_dir)
    return argument_values(spec, str(places.run), data_dir, str(places.start))


def is_module(spec: RunSpec) -> bool:
    """Whether the script is a module, which Python looks for in its search path."""
    return spec.script.startswith("-m ")


def processes(
    spec: RunSpec, places: Places, node_rank: int, meet: Rendezvous, binds: Sequence[str] = ()
) -> tuple[Process, ...]:
    """The processes that one node starts: torchrun, or with launcher ``srun`` one process per GPU.

    With launcher ``python`` the script alone, which is told of no rank and no world.

    binds: directories to show inside the container, if there is one.
    """
    python = python_command(spec, places, binds)
    command = (str(INSTRUMENT), *script_argv(spec, places))
    if spec.launcher == "torchrun":
        recorded = (str(TORCHRUN), str(RunDirectory(places.run).failed_ranks(node_rank)))
        launcher = torchrun(spec, meet.id, str(node_rank), meet.host, str(meet.port))
        logs = {"PET_LOG_DIR": str(RunDirectory(places.run).torchrun_logs(node_rank))}
        argv = (*python, *recorded, *launcher, END_OF_OPTIONS, *command)
        return (Process(argv, {} if spec.env.keys() & LOG_VARIABLES else logs),)
    if spec.launcher == "python":
        return (Process((*python, *command), {}),)
    return tuple(
        Process((*python, *command), _rank_environment(spec, node_rank, local_rank, meet))
        for local_rank in range(spec.gpus_per_node)
    )


def python_command(spec: RunSpec, places: Places, binds: Sequence[str], working: str | None = None) -> tuple[str, ...]:
    """The Python that trains, with the container in front of it if there is one.

    A container's engine starts where Snakemake was started and enters the working directory inside; any other process
    has to be started in it.

    working: in place of the working directory, for a shell that makes one.
    """
    container = spec.container
    if container is None:
        python = spec.python or sys.executable
        return (str(places.start / python) if spec.directory is not None and "/" in python else python,)
    gpus = ("--nv",) if spec.device == "cuda" else ()
    shown = (option for bind in binds for option in ("--bind", bind))
    inside = () if spec.directory is None else ("--pwd", working or str(places.working(spec)))
    python = spec.python or "python3"  # ours is not in the image
    return (container["engine"], "exec", *gpus, *shown, *inside, *container["args"], container["image"], python)


def training_python(argv: Sequence[str]) -> str:
    """The Python that trains, in the argument list that an agent started; empty where it is none of ours."""
    ours = (TORCHRUN.name, INSTRUMENT.name)
    place = next((place for place, word in enumerate(argv) if Path(word).name in ours), 0)
    return argv[place - 1] if place else ""


def torchrun(spec: RunSpec, rdzv_id: str, node_rank: str, host: str, port: str) -> tuple[str, ...]:
    """What stands between the Python and the script: torchrun with its options.

    Static, because c10d numbers the nodes by the text of their addresses, 10.0.0.10 before 10.0.0.9: rings follow the
    ranks, and would not follow the nodes.
    """
    return (
        "-m",
        "torch.distributed.run",
        f"--nnodes={spec.nodes}",
        f"--node-rank={node_rank}",
        f"--nproc-per-node={spec.gpus_per_node}",
        "--max-restarts=0",
        "--rdzv-backend=static",
        f"--rdzv-id={rdzv_id}",
        f"--rdzv-conf=timeout={JOIN_TIMEOUT_S}",
        f"--master-addr={host}",
        f"--master-port={port}",
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
    places: Places,
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
    env.update(training_environment(spec, places))
    if search_path := python_path(spec, places, env.get("PYTHONPATH", "")):
        env["PYTHONPATH"] = search_path
    env["DDP_LADDER_RUN"] = str(run_file)
    env["DDP_LADDER_LAUNCHED_AT"] = repr(launched_at_s)
    return env


def python_path(spec: RunSpec, places: Places, given: str) -> str:
    """PYTHONPATH as it has to be in the working directory; empty where there is none.

    With a directory of its own, relative entries are those of where Snakemake was started, and a module (-m) is found
    there as it is without one.
    """
    if spec.directory is None or not (given or is_module(spec)):
        return given
    entries = [str(places.start / entry) for entry in given.split(os.pathsep) if entry]
    return os.pathsep.join([str(places.start), *entries] if is_module(spec) else entries)


def training_environment(spec: RunSpec, places: Places) -> dict[str, str]:
    """What a run's processes are told on every node alike; the user's settings win over ours.

    As in the arguments, in a directory of its own all paths of placeholders become absolute.
    """
    env = {
        "OMP_NUM_THREADS": str(spec.threads_per_rank),
        "PYTHONUNBUFFERED": "1",  # so that the log can be followed while the run goes on
        # torchrun's default leaves out SIGUSR1 and SIGUSR2, the schedulers' "time is nearly up". By variable and not
        # by option (--signals-to-handle), which an older torchrun would refuse.
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
    }
    if spec.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""  # a CPU site stays one on a machine that has a GPU
    if spec.directory is None:
        return {**env, **spec.env}
    values = _absolute_values(spec, places)
    return {**env, **{name: expand(value, values) for name, value in spec.env_template.items()}}
