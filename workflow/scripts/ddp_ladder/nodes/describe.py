"""What each node of a scale's job is made of: the answers of lscpu and nvidia-smi as they are, and the facts of a line.

The files are in results/machine/<scale>/<node>, written once per job of the scale, as an ordinary user: each command
has a time limit, and what fails becomes a note.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field

from ddp_ladder.common.files import read_json, write_atomically, write_json
from ddp_ladder.common.formats import count
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.common.process import run_bounded
from ddp_ladder.nodes.sampler import SYS

COMMAND_S = 20.0  # nvidia-smi needs seconds where no persistence daemon keeps the driver loaded
LONGEST_NOTE = 200  # characters of a command's message
GIB = 1024**3
COMMANDS = {"lscpu.txt": ("lscpu",)}
COMMANDS_OF_GPUS = {"nvidia-smi-q.txt": ("nvidia-smi", "-q"), "topo.txt": ("nvidia-smi", "topo", "-m")}

Count = Annotated[int, Field(ge=0)]


class Machine(Model):
    """One node of a scale's job (results/machine/<scale>/<node>/machine.json). Null: not known; notes say why."""

    schema_version: Version1
    job_id: str
    scale: str
    node: str
    host: str
    taken_at_s: float
    system: str = Field(description="Operating system and kernel.")
    processors: str | None = Field(description="From lscpu: 2 x Intel(R) Xeon(R) Platinum 8468.")
    cpus: Count | None = Field(description="Logical ones, of the whole node.")
    memory_bytes: Count
    gpus: Several[str] = Field(description="The name of each, from nvidia-smi.")
    driver: str | None
    interface: str = Field(description="The one that the runs use, with its rate.")
    adapters: Several[str] = Field(description="Network adapters of InfiniBand, RoCE and Slingshot.")
    notes: Several[str] = ()

    @property
    def in_words(self) -> str:
        """Return the line of the report."""
        kinds = ", ".join(f"{number} x {name}" for name, number in Counter(self.gpus).items())
        parts = (
            f"{kinds} (driver {self.driver})" if kinds else "",
            self.processors or "",
            count(self.cpus, "CPU") if self.cpus else "",
            f"{self.memory_bytes / GIB:.0f} GiB",
            self.interface,
            f"adapters {', '.join(self.adapters)}" if self.adapters else "",
            self.system,
            *self.notes,
        )
        return "; ".join(filter(None, parts))


def machine_directory(results: Path, scale: object, node: str) -> Path:
    """Return the directory with the files of a node."""
    return results / "machine" / str(scale) / node


def read_machine(directory: Path) -> Machine | None:
    """Return what is known of a node; None if nothing is, or the file is damaged."""
    try:
        return Machine.from_json(read_json(directory / "machine.json"))
    except (OSError, ValueError):
        return None


def read_machines(results: Path) -> dict[str, tuple[Machine, ...]]:
    """Return the nodes of each scale, in the order of the scales' sizes and of the nodes' names."""
    found: dict[str, list[Machine]] = {}
    for path in sorted((results / "machine").glob("*/*/machine.json")):
        if machine := read_machine(path.parent):
            found.setdefault(machine.scale, []).append(machine)
    sizes = {scale: [int(number) for number in re.findall(r"\d+", scale)] for scale in found}
    return {scale: tuple(found[scale]) for scale in sorted(found, key=lambda scale: sizes[scale])}


def remove_others(results: Path, scale: object, nodes: Iterable[str]) -> None:
    """Remove the nodes of an earlier job that this one, with these nodes, does not have."""
    kept = set(nodes)
    for directory in (results / "machine" / str(scale)).glob("*/"):
        if directory.name not in kept:
            shutil.rmtree(directory, ignore_errors=True)


def describe(
    results: Path,
    job_id: str,
    scale: str,
    node: str,
    interface: str,
    has_gpus: bool,
    environment: Mapping[str, str] = os.environ,
) -> Machine:
    """Write what this node is made of, in place of an earlier job's files; return it. Raises OSError.

    node: its name in the job. interface: the one that the runs use. has_gpus: the runs train on CUDA; else nvidia-smi
    is not asked.
    """
    notes: list[str] = []
    texts: dict[str, str] = {}
    for file, command in {**COMMANDS, **(COMMANDS_OF_GPUS if has_gpus else {})}.items():
        answer = _answer(command, environment, notes)
        if answer is not None:
            texts[file] = answer
    lscpu, query = _fields(texts.get("lscpu.txt", "")), texts.get("nvidia-smi-q.txt", "")
    model = lscpu.get("Model name") or lscpu.get("BIOS Model name") or lscpu.get("Architecture")
    machine = Machine(
        schema_version=1,
        job_id=job_id,
        scale=scale,
        node=node,
        host=socket.gethostname(),
        taken_at_s=time.time(),
        system=_system(),
        processors=f"{lscpu.get('Socket(s)', '1')} x {model}" if model else None,
        cpus=os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(re.findall(r"^\s+Product Name\s+: (.+?)\s*$", query, re.MULTILINE)),
        driver=_fields(query).get("Driver Version"),
        interface=_interface(interface),
        adapters=_adapters(),
        notes=tuple(notes),
    )
    directory = machine_directory(results, scale, node)
    shutil.rmtree(directory, ignore_errors=True)
    for name, text in texts.items():
        write_atomically(directory / name, text)
    write_json(directory / "machine.json", machine.model_dump())
    return machine


def _answer(command: tuple[str, ...], environment: Mapping[str, str], notes: list[str]) -> str | None:
    """Return what a command printed; None, with a note, if it fails. Raises OSError if it was ended from outside."""
    shown = " ".join(command)
    path = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if path is None:
        notes.append(f"{shown}: there is no {command[0]} in PATH")
        return None
    try:
        code, printed = run_bounded((path, *command[1:]), COMMAND_S, {**environment, "LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        notes.append(f"{shown}: no answer in {COMMAND_S:g} s")
        return None
    except OSError as error:
        notes.append(f"{shown}: {error}")
        return None
    if code in (-signal.SIGTERM, -signal.SIGKILL):
        raise OSError(f"{shown} was ended, as the run was: the next one asks again")
    if code != 0:
        notes.append(f"{shown} ended with {code}: {printed.strip()[:LONGEST_NOTE]}")
        return None
    return printed


def _fields(text: str) -> dict[str, str]:
    """Return the values of ``key : value`` lines, of several with the same key the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.system()
    return f"{name}, kernel {platform.release()}"


def _interface(name: str) -> str:
    found = psutil.net_if_stats().get(name)
    return f"{name}, {found.speed / 1000:g} Gbit/s" if found and found.speed else name


def _adapters(sys: Path = SYS) -> tuple[str, ...]:
    return tuple(sorted(path.name for kind in ("infiniband", "cxi") for path in (sys / "class" / kind).glob("*")))
