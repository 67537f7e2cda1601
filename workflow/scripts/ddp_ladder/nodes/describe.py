"""What each node of a scale's job is made of: the answers of lscpu and of its driver's program, and one line.

The files are in results/machine/<scale>/<node>, written by the preflight of each job of the scale, as an ordinary user:
each command has a time limit, and what fails becomes a note.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import Field

from ddp_ladder.common.files import read_json, write_atomically, write_json
from ddp_ladder.common.formats import count, fields
from ddp_ladder.common.model import Model, Version1
from ddp_ladder.common.process import run_bounded
from ddp_ladder.nodes.sampler import SYS
from ddp_ladder.platform.accelerators import Accelerator
from ddp_ladder.settings.terms import Scale

COMMAND_S = 20.0  # nvidia-smi needs seconds where no daemon keeps the driver loaded
LONGEST_NOTE = 200  # characters of a command's message
GIB = 1024**3


class NodeDescription(Model):
    """One node of a scale's job (results/machine/<scale>/<node>/machine.json)."""

    schema_version: Version1
    scale: str
    node: str
    in_words: str = Field(description="The line of the report; at its end why something is not known.")


def machine_directory(results: Path, scale: object) -> Path:
    """Return the directory of the nodes of a scale."""
    return results / "machine" / str(scale)


def read_machines(results: Path) -> dict[str, tuple[NodeDescription, ...]]:
    """Return the nodes of each scale, by the scales' sizes and the nodes' names. Damaged files are left out."""
    nodes: dict[str, list[NodeDescription]] = {}
    for path in sorted((results / "machine").glob("*/*/machine.json")):
        with suppress(OSError, ValueError):
            node = NodeDescription.from_json(read_json(path))
            nodes.setdefault(node.scale, []).append(node)
    return {scale: tuple(nodes[scale]) for scale in sorted(nodes, key=lambda name: Scale.parse(name).world_size)}


def describe(
    results: Path,
    scale: str,
    node: str,
    interface: str,
    accelerator: Accelerator,
    environment: Mapping[str, str] = os.environ,
) -> NodeDescription:
    """Write what this node is made of; return it. Raises OSError.

    node: its name in the job. interface: the one that the runs use. accelerator: of the runs.
    """
    notes: list[str] = []
    texts: dict[str, str] = {}
    for file, command in {"lscpu.txt": ("lscpu",), **accelerator.commands}.items():
        try:
            code, printed = run_bounded(command, COMMAND_S, {**environment, "LC_ALL": "C"})
            if code != 0:
                raise OSError(f"exit code {code}: {printed.strip()[:LONGEST_NOTE]}")
            texts[file] = printed
        except (OSError, subprocess.TimeoutExpired) as error:
            notes.append(f"{' '.join(command)}: {error}")
    directory = machine_directory(results, scale) / node
    for name, text in texts.items():
        write_atomically(directory / name, text)
    gpus = accelerator.described(texts)
    words = [*([gpus] if gpus else []), *_words(texts.get("lscpu.txt", ""), interface), *notes]
    description = NodeDescription(schema_version=1, scale=scale, node=node, in_words="; ".join(words))
    write_json(directory / "machine.json", description.model_dump())
    return description


def _words(lscpu: str, interface: str) -> Iterator[str]:
    """Yield what the node has, as far as it is known: from lscpu, and of the system."""
    cpus = fields(lscpu)
    if model := cpus.get("Model name") or cpus.get("BIOS Model name") or cpus.get("Architecture"):
        yield f"{cpus.get('Socket(s)', '1')} x {model}"
    yield count(os.cpu_count() or 1, "CPU")
    yield f"{psutil.virtual_memory().total / GIB:.0f} GiB"
    link = psutil.net_if_stats().get(interface)
    yield f"{interface}, {link.speed / 1000:g} Gbit/s" if link and link.speed else interface
    if adapters := sorted(path.name for kind in ("infiniband", "cxi") for path in (SYS / "class" / kind).glob("*")):
        yield f"adapters {', '.join(adapters)}"
    yield f"{_system_name()}, kernel {platform.release()}"


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
