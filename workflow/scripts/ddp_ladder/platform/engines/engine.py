"""What a container engine is: the command that runs a program in an image."""

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
