"""Launch lines and environment of the processes that a node starts for a run, and its network interfaces and ports.

Nothing here starts a process.
"""

from __future__ import annotations

import os
import socket
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from ddp_ladder_instrument.contract import LAUNCHED_VARIABLE, RUN_VARIABLE
from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT

from ddp_ladder.common.files import SCRIPTS, RunDirectory
from ddp_ladder.plan.plan import OWN_DIRECTORY, WRAPPER_DIRECTORY, RunSpec, argument_values
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.platform.engines import ENGINES, ContainerUse
from ddp_ladder.platform.launchers import LAUNCHERS, TORCHRUN, Process, Rendezvous, Start
from ddp_ladder.settings.terms import Interface, expand, interface_on

INSTRUMENT = SCRIPTS / "instrument.py"
PROBE = SCRIPTS / "preflight_probe.py"  # the preflight's ranks, in place of the instrument and the script

# Snakemake sets these to the rule's threads. The plan decides for the training; OMP_NUM_THREADS covers them all.
THREAD_VARIABLES = (
    "GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS".split()
)

# The network interface of a node; its name may differ between nodes.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Places:
    """Absolute directories of a run."""

    start: Path  # where Snakemake was started
    run: Path  # the run's own

    @classmethod
    def here(cls, run: Path) -> Places:
        """Return the directories, for a process in the directory where Snakemake was started."""
        return cls(Path.cwd(), Path(os.path.abspath(run)))

    @property
    def own(self) -> Path:
        """The working directory that no other run uses: {run_dir} in workload.directory."""
        return self.run / OWN_DIRECTORY

    @property
    def of_wrapper(self) -> Path:
        """The directory of a wrapper's files: {run_dir} in workload.wrapper."""
        return self.run / WRAPPER_DIRECTORY

    def working(self, spec: RunSpec) -> Path:
        return self.start if spec.directory is None else self.start / spec.directory

    def is_own(self, spec: RunSpec) -> bool:
        """Return True if no other run starts there."""
        return self.working(spec).is_relative_to(self.own)


def script_argv(spec: RunSpec, places: Places) -> tuple[str, ...]:
    """Return the script as the user would type it after ``python`` in the run's working directory.

    With workload.directory all paths of the spec become absolute; without it they stay as they were written.
    """
    script, args = spec.script, spec.args
    if spec.directory is not None:
        values = _absolute_values(spec, places)
        args = tuple(expand(argument, values) for argument in spec.args_template)
        script = script if is_module(spec) else str(places.start / script)
    return ("-m", script[3:].strip(), *args) if is_module(spec) else (script, *args)


def wrapper_argv(spec: RunSpec, places: Places, own: str | None = None) -> tuple[str, ...]:
    """Return the words before the training's Python; none without a wrapper. own: replaces the wrapper's directory."""
    if not spec.wrapper or (spec.directory is None and own is None):
        return spec.wrapper
    values = {**_absolute_values(spec, places), "run_dir": own or str(places.of_wrapper)}
    program, *words = (expand(word, values) for word in spec.wrapper_template)
    is_path = spec.directory is not None and "/" in program
    return (str(places.start / program) if is_path else program, *words)


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
    """Return the processes that a node starts for a run, as its launcher does.

    binds: directories to bind into the container, if there is one.
    simulated: names of the run's nodes without Slurm: the processes then get the variables of their launcher.
    command: what Python runs; None is the script under the instrument.
    """
    *container, python = python_command(spec, places, binds)
    wrapper = wrapper_argv(spec, places) if command is None else ()
    command = command or (*((str(INSTRUMENT),) if spec.instrument else ()), *script_argv(spec, places))
    directory = RunDirectory(places.run)
    start = Start(spec, container, wrapper, python, command, directory, node_rank, rendezvous, simulated)
    return LAUNCHERS[spec.launcher].processes(start)


def python_command(spec: RunSpec, places: Places, binds: Sequence[str], working: str | None = None) -> tuple[str, ...]:
    """Return the Python that trains, with the container's command in front of it if there is one.

    A container's engine starts where Snakemake was started and enters the working directory inside; any other process
    has to be started in it. working: replaces the working directory, for a shell that creates one.
    """
    container = spec.container
    if container is None:
        python = spec.python or sys.executable
        return (str(places.start / python) if spec.directory is not None and "/" in python else python,)
    use = ContainerUse(
        container.image,
        container.args,
        gpus=container.gpus if ACCELERATORS[spec.device].is_gpu else None,
        binds=binds,
        directory=working or str(places.working(spec)),
        is_elsewhere=spec.directory is not None,
    )
    return (*ENGINES[container.engine].command(use), spec.python or "python3")  # ours is not in the image


def training_python(argv: Sequence[str]) -> str:
    """Return the Python that trains from an agent's argument list; empty if the list has no script of ours."""
    ours = (TORCHRUN.name, INSTRUMENT.name, PROBE.name)
    place = next((place for place, word in enumerate(argv) if Path(word).name in ours), 0)
    return argv[place - 1] if place else ""


def node_environment(
    spec: RunSpec, places: Places, inherited: Mapping[str, str], run_file: Path, interface: str, launched_at_s: float
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
    return {**env, RUN_VARIABLE: str(run_file), LAUNCHED_VARIABLE: repr(launched_at_s)}


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

    The user's settings override ours. As in the arguments, with workload.directory all paths of placeholders become
    absolute.
    """
    env = {
        "OMP_NUM_THREADS": str(spec.threads_per_rank),
        "PYTHONUNBUFFERED": "1",  # so that the log can be followed while the run goes on
        # torchrun's default leaves out SIGUSR1 and SIGUSR2, the schedulers' "time is nearly up". By variable and not
        # by option (--signals-to-handle), which an older torchrun would refuse.
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
    }
    if not spec.instrument:  # which shows itself where a rank stood that a signal ended
        env["PYTHONFAULTHANDLER"] = "1"
    if not ACCELERATORS[spec.device].is_gpu:  # a CPU site uses no GPU that the machine may have
        env.update({kind.visible_variable: "" for kind in ACCELERATORS.values() if kind.visible_variable})
    if spec.directory is None:
        return {**env, **spec.env}
    values = _absolute_values(spec, places)
    return {**env, **{name: expand(value, values) for name, value in spec.env_template.items()}}


LOOPBACK = "127.0.0.1"
NO_ADDRESS = "has no address for the name"  # of a message: the name service, and no interface, is wrong

# Below Linux's and IANA's ephemeral ranges (from 32768): no outgoing connection takes such a port first.
PORTS = range(20_000, 30_000)


def node_name() -> str:
    """Return this node's name in the site's interface map: Slurm's name if Slurm started this process."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface of this machine that has one."""
    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }


def address(interface: str) -> str:
    """Return the IPv4 address of an interface. Raises OSError if it has none, naming the interfaces that do."""
    known = addresses()
    if interface not in known:
        raise OSError(f"no interface {interface} with an IPv4 address on {node_name()}; there are {', '.join(known)}")
    return known[interface]


def route_to(host: str) -> str:
    """Return this machine's address on the route to a host. Raises OSError if there is no route, or no such name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing
        except socket.gaierror as error:
            raise OSError(f"{node_name()} {NO_ADDRESS} {host}: {error.strerror}") from error
        except OSError as error:
            raise OSError(f"no route from {node_name()} to {host}: {error.strerror}") from error
        own: str = probe.getsockname()[0]
        return own


def interface_here(host: str) -> str:
    """Return the interface of the route to a host. Raises OSError if there is none."""
    own = route_to(host)
    if (name := next((name for name, at in addresses().items() if at == own), None)) is None:
        raise OSError(f"no interface of {node_name()} has the address {own}, which leads to {host}")
    return name


def interface_towards(wanted: Interface, host: str) -> str:
    """Return the interface that this node uses: the configured one, or that of the route to a host. Raises OSError."""
    name = interface_on(wanted, node_name())
    return interface_here(host) if name == "auto" else name


def address_towards(wanted: Interface, host: str) -> str:
    """Return this node's address on the interface that it uses. Raises OSError."""
    name = interface_on(wanted, node_name())
    return route_to(host) if name == "auto" else address(name)


def is_loopback(address: str) -> bool:
    """Return True if only the machine itself reaches the address."""
    return address.startswith("127.")


def free_ports(key: str) -> Iterator[int]:
    """Yield TCP ports of this machine that are free now; the search starts at a port that depends on the key."""
    start = zlib.crc32(key.encode()) % len(PORTS)
    for port in (*PORTS[start:], *PORTS[:start]):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        yield port


def free_port(key: str) -> int:
    """Return the first free port. Raises OSError if all ports of the range are taken."""
    if (port := next(free_ports(key), None)) is None:
        raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1} on {node_name()}")
    return port
