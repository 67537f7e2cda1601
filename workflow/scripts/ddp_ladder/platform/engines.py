"""The container engines: a class for each, which says what runs a program in an image.

A new one is a class here, and its place in ``ENGINES``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

# Names of the environment's variables, one a line, without those that are the image's own or the shell's.
NAMES = 'compgen -e | grep -vxE "(LD_LIBRARY_)?PATH|LD_PRELOAD|HOME|(OLD)?PWD|SHLVL|_"'


@dataclass(frozen=True)
class ContainerUse:
    """What a run wants of an image."""

    image: str
    args: Sequence[str]  # further options of the engine
    gpus: str | None  # how GPUs are shown inside: a key of Engine.gpu_options; None: not by an option
    binds: Sequence[str]  # source, source:target or source:target:ro
    directory: str  # where the program starts
    is_elsewhere: bool  # the directory is not that in which the engine itself is started


class Engine:
    """A program that runs images; a subclass says how."""

    name: str
    verb = "exec"  # of its command line, before the options
    gpu_options: ClassVar[Mapping[str, Sequence[str]]]  # that show GPUs inside, by kind (``gpus`` of the settings)
    clearing_options: Sequence[str] = ()  # with them a rank does not get its environment
    hides_environment = False  # it keeps the environment from the image; ``with_environment`` passes it on
    binds_directories = True  # it can show directories inside; else the image's own description has to
    starts_step = False  # its processes are those of a job step, and no descendants of what starts the engine

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        """Return the words before the program's own."""
        raise NotImplementedError

    @property
    def program(self) -> str:
        """What has to be installed on the nodes."""
        return self.name

    def trial(self, image: str) -> str:
        """Return the start of a command that runs a program in the image, for a person to type."""
        return f"{self.program} {self.verb} {image}"

    def is_name(self, image: str) -> bool:
        """Return True if the image is not a file: nothing here tells whether it is there."""
        return "://" in image

    def with_environment(self) -> tuple[str, ...]:
        """Return the start of a command that passes the environment on by name, up to the engine's options."""
        return ("bash", "-c", f'exec {self.name} {self.verb} $({NAMES} | sed "s/^/--env=/") "$@"', self.name)


class Apptainer(Engine):
    """It keeps environment and directory."""

    name = "apptainer"
    gpu_options: ClassVar = {"nvidia": ("--nv",), "rocm": ("--rocm",)}
    clearing_options = ("--cleanenv", "-e", "--containall", "-C")

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        shown = () if use.gpus is None else self.gpu_options[use.gpus]
        bound = (option for bind in use.binds for option in ("--bind", bind))
        entered = ("--pwd", use.directory) if use.is_elsewhere else ()
        return (self.name, self.verb, *shown, *bound, *entered, *use.args, use.image)


class Singularity(Apptainer):
    """Apptainer's former name; SingularityCE has kept its options."""

    name = "singularity"


class Enroot(Engine):
    """enroot, also where pyxis calls it: GPUs by its hooks, and no option for the working directory."""

    name = "enroot"
    verb = "start"
    gpu_options: ClassVar = {"nvidia": ()}
    hides_environment = True

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        mounts = (f"--mount={_fstab(bind)}" for bind in use.binds)
        return (*self.with_environment(), *mounts, *use.args, use.image, "env", "--chdir", use.directory)

    def is_name(self, image: str) -> bool:
        return super().is_name(image) or "/" not in image


def _fstab(bind: str) -> str:
    """Return source[:target[:ro]] as enroot's mount, the fields of a line of fstab."""
    source, target, *mode = bind.split(":") if ":" in bind else (bind, bind)
    return f"{source}:{target}:none:{','.join(['x-create=auto', 'rbind', *mode])}"


class PodmanHpc(Engine):
    """NERSC's. It has the host's namespaces, as other engines do: ranks reach each other, and are seen from outside."""

    name = "podman-hpc"
    verb = "run"
    gpu_options: ClassVar = {"nvidia": ("--gpu",)}
    hides_environment = True

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        host = ("--rm", "--network=host", "--ipc=host", "--pid=host")
        gpus = () if use.gpus is None else self.gpu_options[use.gpus]
        bound = (f"--volume={bind}" if ":" in bind else f"--volume={bind}:{bind}" for bind in use.binds)
        inside = f"--workdir={use.directory}"
        return (*self.with_environment(), *host, *gpus, *bound, inside, *use.args, use.image)

    def is_name(self, image: str) -> bool:
        return True


class Shifter(Engine):
    """NERSC's. It keeps the environment, and shows the site's file systems under their own paths.

    It refuses to mount on those, so only a bind with another target becomes an option.
    """

    name = "shifter"
    gpu_options: ClassVar = {"nvidia": ("--module=gpu",)}
    clearing_options = ("--clearenv", "-E")

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        shown = () if use.gpus is None else self.gpu_options[use.gpus]
        bound = (f"--volume={bind}" for bind in use.binds if ":" in bind)
        return (self.name, f"--image={use.image}", *shown, *bound, f"--workdir={use.directory}", *use.args)

    def trial(self, image: str) -> str:
        return f"{self.name} --image={image}"

    def is_name(self, image: str) -> bool:
        return True


# A job step of this node alone, on the cores of the process that starts it. srun would take the outer step's variables
# for its own options, and its task would get others: the outer ones are put back inside.
# $1: the working directory; $2: how many options of srun follow; then the program.
STEP = r"""
cpus=$(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status) outer=()
for name in ${!SLURM_@}; do
    outer+=("$name=${!name}")
    case $name in SLURM_JOB_ID | SLURM_CONF* | SLURM_JWT) ;; *) unset "$name" ;; esac
done
here=${SLURMD_NODENAME:?no job of Slurm: the engine edf starts job steps}
step=(--overlap --nodes=1 --ntasks=1 --nodelist="$here" --mpi=none --cpu-bind=none)
exec srun "${step[@]}" "${@:3:$2}" taskset --cpu-list "$cpus" env --chdir="$1" "${outer[@]}" "${@:$2+3}"
"""


class Edf(Engine):
    """CSCS's, an option of srun. An EDF (environment definition file) describes the image and what is mounted."""

    name = "edf"
    program = "srun"
    gpu_options: ClassVar = {"nvidia": ()}
    binds_directories = False
    starts_step = True

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        options = (f"--environment={use.image}", *use.args)
        return ("bash", "-c", STEP, self.name, use.directory, str(len(options)), *options)

    def trial(self, image: str) -> str:
        return f"srun --environment={image}"

    def is_name(self, image: str) -> bool:
        return "/" not in image


ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (Apptainer(), Singularity(), Enroot(), PodmanHpc(), Shifter(), Edf())
}
