"""Read a batch script (job.sh or a guide's): its sbatch options, modules, exports and commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

CONTINUED = " \\\n"


@dataclass(frozen=True)
class BatchScript:
    """The parts of a batch script. ``srun`` and ``launch`` are lists of words; variables are not expanded."""

    sbatch: dict[str, str]
    modules: tuple[str, ...]
    exports: dict[str, str]
    interfaces: dict[str, str]  # of `case $(hostname -s)`
    interface: str | None  # if all nodes have the same
    srun: tuple[str, ...]
    launch: tuple[str, ...]


def read_job_script(text: str) -> BatchScript:
    joined = text.replace(CONTINUED, " ")
    return BatchScript(
        sbatch=options(re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)),
        modules=tuple(re.findall(r"^module load (\S+)", text, re.MULTILINE)),
        exports=exports(joined),
        interfaces=dict(re.findall(r"^ *([\w-]+)\) own_interface=(\S+) ;;$", text, re.MULTILINE)),
        interface=one(re.findall(r"^ *own_interface=([\w.-]+)$", text, re.MULTILINE)),
        srun=command("srun", joined),
        launch=command("exec", joined),
    )


def one(found: list[str]) -> str | None:
    return found[0] if len(found) == 1 else None


def options(lines: list[str]) -> dict[str, str]:
    """Return the long options by name; an option without a value has an empty string."""
    words = [word for line in lines for word in shlex.split(line)]
    return {name.removeprefix("--"): value for name, _, value in (word.partition("=") for word in words)}


def exports(text: str) -> dict[str, str]:
    lines = re.findall(r"^export ((?:'[^']*'|\"[^\"]*\"|[^'\"\n])*)$", text, re.MULTILINE)
    words = [word for line in lines for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def command(first: str, text: str) -> tuple[str, ...]:
    """Return the words after ``first`` in the line that begins with it; empty if there is none."""
    found = re.search(rf"^ *{first} ((?:'[^']*'|\"[^\"]*\"|[^'\"\n])*)$", text, re.MULTILINE)
    return tuple(shlex.split(found[1])) if found else ()
