"""What each node of a scale's job is made of: the answers of lscpu and nvidia-smi as they are, and the facts of a line.

The files are in results/machine/<scale>/<node>, written by the preflight of each job of the scale, as an ordinary user:
each command has a time limit, and what fails becomes a note.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field

from ddp_ladder.common.files import read_json, write_atomically, write_json
from ddp_ladder.common.formats import count
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.common.process import run_bounded
from ddp_ladder.nodes.sampler import SYS
from ddp_ladder.settings.terms import Scale

COMMAND_S = 20.0  # nvidia-smi needs seconds where no persistence daemon keeps the driver loaded
LONGEST_NOTE = 200  # characters of a command's message
GIB = 1024**3
COMMANDS = {"lscpu.txt": ("lscpu",)}
COMMANDS_OF_GPUS = {"nvidia-smi-q.txt": ("nvidia-smi", "-q"), "topo.txt": ("nvidia-smi", "topo", "-m")}

Count = Annotated[int, Field(ge=0)]


class Machine(Model):
    """One node of a scale's job (results/machine/<scale>/<node>/machine.json). Null: not known; notes say why."""

    schema_version: Version1
    scale: str
    node: str
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


def machine_directory(results: Path, scale: object) -> Path:
    """Return the directory of the nodes of a scale."""
    return results / "machine" / str(scale)


def read_machines(results: Path) -> dict[str, tuple[Machine, ...]]:
    """Return the nodes of each scale, in the order of the scales' sizes and of the nodes' names.

    A damaged file is left out.
    """
    found: dict[str, list[Machine]] = {}
    for path in sorted((results / "machine").glob("*/*/machine.json")):
        with suppress(OSError, ValueError):
            machine = Machine.from_json(read_json(path))
            found.setdefault(machine.scale, []).append(machine)
    return {scale: tuple(found[scale]) for scale in sorted(found, key=lambda name: Scale.parse(name).world_size)}


def describe(
    results: Path,
    scale: str,
    node: str,
    interface: str,
    has_gpus: bool,
    environment: Mapping[str, str] = os.environ,
) -> Machine:
    """Write what this node is made of; return it. Raises OSError.

    node: its name in the job. interface: the one that the runs use. has_gpus: the runs train on CUDA; else nvidia-smi
    is not asked.
    """
    notes: list[str] = []
    texts: dict[str, str] = {}
    for file, command in {**COMMANDS, **(COMMANDS_OF_GPUS if has_gpus else {})}.items():
        try:
            code, printed = run_bounded(command, COMMAND_S, {**environment, "LC_ALL": "C"})
            if code != 0:
                raise OSError(f"exit code {code}: {printed.strip()[:LONGEST_NOTE]}")
            texts[file] = printed
        except (OSError, subprocess.TimeoutExpired) as error:
            notes.append(f"{' '.join(command)}: {error}")
    lscpu, query = _fields(texts.get("lscpu.txt", "")), texts.get("nvidia-smi-q.txt", "")
    model = lscpu.get("Model name") or lscpu.get("BIOS Model name") or lscpu.get("Architecture")
    link = psutil.net_if_stats().get(interface)
    kinds = (SYS / "class/infiniband", SYS / "class/cxi")
    machine = Machine(
        schema_version=1,
        scale=scale,
        node=node,
        system=f"{_system_name()}, kernel {platform.release()}",
        processors=f"{lscpu.get('Socket(s)', '1')} x {model}" if model else None,
        cpus=os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(re.findall(r"^\s+Product Name\s+: (.+?)\s*$", query, re.MULTILINE)),
        driver=_fields(query).get("Driver Version"),
        interface=f"{interface}, {link.speed / 1000:g} Gbit/s" if link and link.speed else interface,
        adapters=tuple(sorted(path.name for kind in kinds for path in kind.glob("*"))),
        notes=tuple(notes),
    )
    directory = machine_directory(results, scale) / node
    for name, text in texts.items():
        write_atomically(directory / name, text)
    write_json(directory / "machine.json", machine.model_dump())
    return machine


def _fields(text: str) -> dict[str, str]:
    """Return the values of ``key : value`` lines, of several with the same key the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
