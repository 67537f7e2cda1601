"""Files: atomic writes, JSON, digests, and the layout of the results directory."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from ddp_ladder.messages import Problem, printable

LONGEST_KEY = 60  # characters of a key in a message
_ESCAPED = re.compile(r"\\(?:[bfr]|u00|u20)", re.IGNORECASE)  # in JSON: may be a control character


_ROOM = 1_000_000  # bytes: a few runs' files
FULL = {
    errno.ENOSPC: "free some space or inodes there: df -h {there}; df -i {there}",
    errno.EDQUOT: "your quota there is used up: delete files or ask your site for more (quota -s, lfs quota {there})",
    errno.EROFS: "{there} is mounted read-only here: ask your site, or name another directory in `results`",
    errno.EACCES: "you may not write there: see ls -ld {there}, have the permissions corrected",
    errno.EPERM: "you may not write there: see ls -ld {there}, have the permissions corrected",
}


class NotWritten(OSError):
    """A file of ours that could not be written: ``filename`` says which, ``strerror`` why."""

    lost = "nothing that was measured: finished runs are kept"

    @property
    def problem(self) -> Problem:
        """What to tell of it."""
        there = quote(str(nearest(Path(self.filename).parent)))
        advice = FULL.get(self.errno or 0, "look at the file system: df -h {there}").format(there=there)
        next_step = f"{advice}; then start snakemake again: it repeats what is missing"
        return Problem(str(self.filename), f"it cannot be written: {self.strerror}", lost=self.lost, next=next_step)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What is done here writes ``path``: an OSError becomes NotWritten, which names it."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        raise NotWritten(error.errno, error.strerror or str(error), str(path)) from None


def make_directory(path: Path) -> None:
    """Make a directory and its parents where they are missing. Raises NotWritten."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def nearest(path: Path) -> Path:
    """The path, or the first of its parents that is there."""
    return next(each for each in (path, *path.parents) if each.exists())


def check_room(directory: Path) -> None:
    """Raise NotWritten where a directory, or the parent that it will be made in, takes no file of some size."""
    with writing(directory), tempfile.TemporaryFile(dir=nearest(directory.absolute())) as file:
        file.write(bytes(_ROOM))
        file.flush()
        os.fsync(file.fileno())  # some file systems notice only then


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write ``content`` so that a reader sees the old file or the new one, never a part.

    mode: permissions, of which the umask takes its part. Creates missing parent directories.
    Raises NotWritten, and leaves no temporary file, when the disk is full.
    """
    with written_atomically(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_atomically(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """As write_atomically, for what is written piece by piece."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode & ~_umask())
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):  # what went wrong is told, not what that makes of the clean-up
                os.unlink(name)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as indented JSON, atomically. NaN and infinity are refused (ValueError)."""
    write_atomically(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises OSError, or ValueError naming the file when it is not JSON.

    Read strictly, so that two readers cannot read two things: UTF-8 without a BOM, no key twice. Figures that nothing
    can be computed with are refused: NaN, infinity, integers beyond 64 bits. Texts are made printable: some quote what
    a script, a library or a node has said.
    """
    try:
        text = path.read_bytes().decode()
        data = json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_finite, parse_float=_finite, parse_int=_int64
        )
        if "\\ud" in text.lower():
            json.dumps(data, ensure_ascii=False).encode()  # half of a pair is no text: it cannot be printed
        return data if printable(text) == text and not _ESCAPED.search(text) else _printable(data)
    except RecursionError:
        raise ValueError(f"{path} is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def _printable(data: Any) -> Any:
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, list):
        return [_printable(item) for item in data]
    return {printable(key): _printable(value) for key, value in data.items()} if isinstance(data, dict) else data


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key {twice[:LONGEST_KEY]!r} is there twice")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a figure")
    return value


def _int64(text: str) -> int:
    value = int(text)
    if text == "-0":
        raise ValueError("-0 is not a whole number as anything here writes it")
    if abs(value) >= 2**63:
        raise ValueError(f"{text[:20]}... is beyond 64 bits")
    return value


def sha256(data: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()


def canonical_sha256(data: Any) -> str:
    """Digest of a JSON value that does not depend on key order or layout."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode())


@dataclass(frozen=True)
class Agent:
    """Who started a part of a run: a node's only agent, or one of an agent for each GPU."""

    node_rank: int
    local_rank: int | None = None

    @property
    def stem(self) -> str:
        """Name of its files: node0, or node0.task1."""
        return f"node{self.node_rank}" + ("" if self.local_rank is None else f".task{self.local_rank}")

    def __str__(self) -> str:
        return f"node {self.node_rank}" + ("" if self.local_rank is None else f", task {self.local_rank}")


def agents_of(nodes: int, agents_per_node: int) -> tuple[Agent, ...]:
    """All agents of a run, in the order of their ranks."""
    if agents_per_node == 1:
        return tuple(Agent(node_rank) for node_rank in range(nodes))
    return tuple(Agent(node_rank, local) for node_rank in range(nodes) for local in range(agents_per_node))


@dataclass(frozen=True)
class RunDirectory:
    """One run's directory: results/runs/<variant>/<mode>/<nodes>x<gpus>/r<k>."""

    path: Path

    @property
    def run(self) -> Path:
        return self.path / "run.json"

    @property
    def job_script(self) -> Path:
        return self.path / "job.sh"

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def ended(self) -> Path:
        return self.path / "ended.json"

    @property
    def ranks(self) -> Path:
        return self.path / "ranks"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    @property
    def progress(self) -> Path:
        return self.path / "progress.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def log(self) -> Path:
        return self.path / "train.log"

    @property
    def launcher_log(self) -> Path:
        """What srun itself says."""
        return self.nodes / "srun.log"

    def agent_log(self, agent: Agent, agents: int) -> Path:
        """Where the output of an agent's part goes while it runs. Of several, train.log is put together at the end."""
        return self.log if agents == 1 else self.nodes / f"{agent.stem}.log"

    def failed_ranks(self, node_rank: int) -> Path:
        """How ranks failed that a node's torchrun started; the agent puts it into its end record and takes it away."""
        return self.nodes / f"failed{node_rank}.json"

    def torchrun_logs(self, node_rank: int) -> Path:
        """What a node's torchrun would leave in the temporary directory; the agent takes it away."""
        return self.nodes / f"torchrun{node_rank}"

    def agent_end(self, agent: Agent) -> Path:
        return self.nodes / f"{agent.stem}.json"
