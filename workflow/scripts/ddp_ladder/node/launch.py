"""Launch lines and environment of the processes that a node starts for a run. Pure; nothing here starts a process."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder_instrument.contract import LAUNCHED_VARIABLE, RUN_VARIABLE
from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT
from pydantic import with_config

from ddp_ladder.common.files import SCRIPTS, RunDirectory
from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.plan.plan import OWN_DIRECTORY, RunSpec, argument_values
from ddp_ladder.settings.placeholders import expand
from ddp_ladder.slurm.steps import NO_JOB_OF_SLURM, step_variables, task_variables

INSTRUMENT = SCRIPTS / "instrument.py"
PROBE = SCRIPTS / "preflight_probe.py"  # the preflight's ranks, in place of the instrument and the script
TORCHRUN = SCRIPTS / "torchrun.py"  # runs torchrun and records how its ranks failed

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

# If the configuration sets one of these, torchrun's own log files stay where it puts them.
LOG_VARIABLES = frozenset({"PET_LOG_DIR", "PET_LOGS_SPECS", "PET_REDIRECTS", "PET_TEE"})

# Without it torchrun refuses arguments of the script that abbreviate several of its own options (--n, --logs).
END_OF_OPTIONS = "--"

# The network interface of a node; its name may differ between nodes.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@with_config(IN_A_MODEL)
@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous endpoint of a run. id: unique per job and attempt, so that no process of another run can join."""

    id: str
    host: str
    port: int


@dataclass(frozen=True)
class Places:
    """Absolute directories of a run. start: where Snakemake was started. run: the run's own."""

    start: Path
    run: Path

    @classmethod
    def here(cls, run: Path) -> Places:
        """Return the directories, for a process in the directory where Snakemake was started."""
        return cls(Path.cwd(), Path(os.path.abspath(run)))

    @property
    def own(self) -> Path:
        """The working directory that no other run uses: {run_dir} in workload.directory."""
        return self.run / OWN_DIRECTORY

    def working(self, spec: RunSpec) -> Path:
        """Return the directory where the training starts."""
        return self.start if spec.directory is None else self.start / spec.directory

    def is_own(self, spec: RunSpec) -> bool:
        """Return True if no other run starts there."""
        return self.working(spec).is_relative_to(self.own)


@dataclass(frozen=True)
class Process:
    """A process to start: its argument list and the variables to add to its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def script_argv(spec: RunSpec, places: Places) -> tuple[str, ...]:
    """Return the script as the user would type it after ``python`` in the run's working directory.

    With workload.directory all paths of the spec become absolute; without it they stay as they were written.
    """
    script, args = spec.script, spec.args
    if spec.directory is not None:
        values = _absolute_values(spec, places)
        args = tuple(expand(argument, values) for argument in spec.args_template)
    if is_module(spec):
        return ("-m", script[3:].strip(), *args)
    return (script if spec.directory is None else str(places.start / script), *args)


def _absolute_values(spec: RunSpec, places: Places) -> dict[str, object]:
    """Return the values of placeholders, with absolute paths, for a working directory of the training's own."""
    data_dir = None if spec.data_dir is None else str(places.start / spec.data_dir)
    return argument_values(spec, str(places.run), data_dir, str(places.start))


def is_module(spec: RunSpec) -> bool:
    """Return True if the script is a module, which Python looks for in its search path."""
    return spec.script.startswith("-m ")


def processes(
    spec: RunSpec,
    places: Places,
    node_rank: int,
    rendezvous: Rendezvous,
    binds: Sequence[str] = (),
    simulated: Sequence[str] = (),
    command: Sequence[str] | None = None,
) -> tuple[Process, ...]:
    """Return the processes that a node starts: torchrun, or with launcher ``srun`` one process per GPU.

    With launcher ``python`` it is the script alone, without variables for rank and world size.

    binds: directories to bind into the container, if there is one.
    simulated: names of the run's nodes without Slurm: the processes then get the variables that srun would set.
    command: what Python runs; None is the script under the instrument.
    """
    python = python_command(spec, places, binds)
    command = command or (str(INSTRUMENT), *script_argv(spec, places))
    if spec.launcher == "torchrun":
        recorded = (str(TORCHRUN), str(RunDirectory(places.run).failed_ranks(node_rank)))
        launcher = torchrun(spec, rendezvous.id, str(node_rank), rendezvous.host, str(rendezvous.port))
        logs = {"PET_LOG_DIR": str(RunDirectory(places.run).torchrun_logs(node_rank))}
        argv = (*python, *recorded, *launcher, END_OF_OPTIONS, *command)
        return (Process(argv, {} if spec.env.keys() & LOG_VARIABLES else logs),)
    if spec.launcher == "python":
        return (Process((*python, *command), {}),)
    step = step_variables(spec, simulated_job_id(rendezvous), simulated) if simulated else {}
    return tuple(
        Process((*python, *command), _rank_environment(spec, node_rank, local_rank, rendezvous, step))
        for local_rank in range(spec.gpus_per_node)
    )


def simulated_job_id(rendezvous: Rendezvous) -> str:
    """Return a job id that is the same for all ranks of a run."""
    return str(NO_JOB_OF_SLURM + zlib.crc32(rendezvous.id.encode()) % NO_JOB_OF_SLURM)


def python_command(spec: RunSpec, places: Places, binds: Sequence[str], working: str | None = None) -> tuple[str, ...]:
    """Return the Python that trains, with the container's command in front of it if there is one.

    A container's engine starts where Snakemake was started and enters the working directory inside; any other process
    has to be started in it.

    working: replaces the working directory, for a shell that creates one.
    """
    container = spec.container
    if container is None:
        python = spec.python or sys.executable
        return (str(places.start / python) if spec.directory is not None and "/" in python else python,)
    python = spec.python or "python3"  # the workflow's Python is not in the image
    gpus = container.gpus if spec.device == "cuda" else None
    inside = working or str(places.working(spec))
    if container.engine == "enroot":
        mounts = (f"--mount={_fstab(bind)}" for bind in binds)
        enter = ("env", "--chdir", inside)  # it has no option for the working directory
        return (*_with_environment("enroot"), *mounts, *container.args, container.image, *enter, python)
    if container.engine == "podman-hpc":
        shown = (f"--volume={bind}" if ":" in bind else f"--volume={bind}:{bind}" for bind in binds)
        options = (*PODMAN, *(("--gpu",) if gpus else ()), *shown, f"--workdir={inside}")
        return (*_with_environment("podman-hpc"), *options, *container.args, container.image, python)
    flag = {"nvidia": ("--nv",), "rocm": ("--rocm",), None: ()}[gpus]
    shown = (option for bind in binds for option in ("--bind", bind))
    entered = () if spec.directory is None else ("--pwd", inside)
    return (container.engine, "exec", *flag, *shown, *entered, *container.args, container.image, python)


VERBS = {"enroot": "start", "podman-hpc": "run"}  # of other engines: exec

# The host's namespaces, as the other engines have them: the ranks reach each other, and are seen from outside.
PODMAN = ("--rm", "--network=host", "--ipc=host", "--pid=host")

# Names of the environment's variables, one a line, without those that are the image's own or the shell's.
NAMES = 'compgen -e | grep -vxE "(LD_LIBRARY_)?PATH|LD_PRELOAD|HOME|(OLD)?PWD|SHLVL|_"'


def _with_environment(engine: str) -> tuple[str, ...]:
    """Return the start of a command that passes the environment on by name, for engines that keep it from the image."""
    return ("bash", "-c", f'exec {engine} {VERBS[engine]} $({NAMES} | sed "s/^/--env=/") "$@"', engine)


def _fstab(bind: str) -> str:
    """Return source[:target[:ro]] as enroot's mount, the fields of a line of fstab."""
    source, target, *mode = bind.split(":") if ":" in bind else (bind, bind)
    return f"{source}:{target}:none:{','.join(['x-create=auto', 'rbind', *mode])}"


def training_python(argv: Sequence[str]) -> str:
    """Return the Python that trains from an agent's argument list; empty if the list has no script of ours."""
    ours = (TORCHRUN.name, INSTRUMENT.name, PROBE.name)
    place = next((place for place, word in enumerate(argv) if Path(word).name in ours), 0)
    return argv[place - 1] if place else ""


def torchrun(spec: RunSpec, rdzv_id: str, node_rank: str, host: str, port: str) -> tuple[str, ...]:
    """Return torchrun with its options, the words between the Python and the script.

    The rendezvous is static: c10d sorts nodes by the text of their addresses, 10.0.0.10 before 10.0.0.9, and NCCL's
    rings, which follow the ranks, would not follow the order of the nodes.
    """
    return (
        "-m",
        "torch.distributed.run",
        f"--nnodes={spec.nodes}",
        f"--node-rank={node_rank}",
        f"--nproc-per-node={spec.gpus_per_node}",
        *(() if spec.numa_binding is None else (f"--numa-binding={spec.numa_binding}",)),
        "--max-restarts=0",
        "--rdzv-backend=static",
        f"--rdzv-id={rdzv_id}",
        f"--rdzv-conf=timeout={JOIN_TIMEOUT_S}",
        f"--master-addr={host}",
        f"--master-port={port}",
    )


def _rank_environment(
    spec: RunSpec, node_rank: int, local_rank: int, rendezvous: Rendezvous, step: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one rank. step: srun's variables for all tasks; empty if srun itself sets them."""
    rank = node_rank * spec.gpus_per_node + local_rank
    return {
        **step,
        **(task_variables(rank, local_rank, node_rank) if step else {}),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.gpus_per_node),
        "GROUP_RANK": str(node_rank),
        "MASTER_ADDR": rendezvous.host,
        "MASTER_PORT": str(rendezvous.port),
    }


def node_environment(
    spec: RunSpec,
    places: Places,
    inherited: Mapping[str, str],
    run_file: Path,
    interface: str,
    launched_at_s: float,
) -> dict[str, str]:
    """Return the environment of every process that a node starts for a run.

    inherited: the agent's own environment, which has the secrets. The user's settings override ours, except those that
    identify the run.
    """
    env = {key: value for key, value in inherited.items() if key not in THREAD_VARIABLES}
    env.update(dict.fromkeys(INTERFACE_VARIABLES, interface))
    ours = training_environment(spec, places)
    env.update({name: value for name, value in ours.items() if value != FROM_ENVIRONMENT})
    if spec.backend == "nccl":
        log = RunDirectory(places.run).nccl_log
        directory = str(log.parent).replace("%", "%%")
        env = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{directory}/{log.name}", **env}
    if search_path := python_path(spec, places, env.get("PYTHONPATH", "")):
        env["PYTHONPATH"] = search_path
    env[RUN_VARIABLE] = str(run_file)
    env[LAUNCHED_VARIABLE] = repr(launched_at_s)
    return env


def python_path(spec: RunSpec, places: Places, given: str) -> str:
    """Return PYTHONPATH for the working directory; empty if none is needed.

    With workload.directory, relative entries stay relative to where Snakemake was started, and a module (-m) is found
    there as without it.
    """
    if spec.directory is None or not (given or is_module(spec)):
        return given
    entries = [str(places.start / entry) for entry in given.split(os.pathsep) if entry]
    return os.pathsep.join([str(places.start), *entries] if is_module(spec) else entries)


def training_environment(spec: RunSpec, places: Places) -> dict[str, str]:
    """Return the variables that are the same on every node of a run, with a marker for each secret.

    The user's settings override ours.

    As in the arguments, with workload.directory all paths of placeholders become absolute.
    """
    env = {
        "OMP_NUM_THREADS": str(spec.threads_per_rank),
        "PYTHONUNBUFFERED": "1",  # so that the log can be followed while the run goes on
        # torchrun's default leaves out SIGUSR1 and SIGUSR2, the schedulers' "time is nearly up". By variable and not
        # by option (--signals-to-handle), which an older torchrun would refuse.
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
    }
    if spec.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""  # a CPU site uses no GPU that the machine may have
    if spec.directory is None:
        return {**env, **spec.env}
    values = _absolute_values(spec, places)
    return {**env, **{name: expand(value, values) for name, value in spec.env_template.items()}}
