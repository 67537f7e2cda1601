"""Files: atomic writes, JSON, digests, file systems, and the directories of the checkout and of the results."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO, TypeVar

import psutil
from ddp_ladder_instrument.files import opened as opened
from ddp_ladder_instrument.files import read_bytes as read_bytes

from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.common.model import Model

M = TypeVar("M", bound=Model)
T = TypeVar("T")

_ROOM = 1_000_000  # bytes: a few runs' files
FULL = {
    errno.ENOSPC: "free some space or inodes there: df -h {there}; df -i {there}",
    errno.EDQUOT: "your quota there is used up: delete files or ask your site for more (quota -s, lfs quota {there})",
    errno.EROFS: "{there} is mounted read-only here: ask your site, or name another directory in `results`",
    errno.EACCES: "you may not write there: see ls -ld {there}, have the permissions corrected",
    errno.EPERM: "you may not write there: see ls -ld {there}, have the permissions corrected",
}


class NotWritten(OSError):
    """One of our files could not be written; ``filename`` is its path, ``strerror`` the reason."""

    lost = "nothing that was measured: finished runs are kept"

    @property
    def problem(self) -> Problem:
        directory = nearest(Path(self.filename).parent)
        advice = FULL.get(self.errno or 0, "look at the file system: df -h {there}")
        if not os.statvfs(directory).f_blocks:  # such as /proc
            advice = "{there} keeps no files: name another directory in `results`"
        advice = advice.format(there=quote(str(directory)))
        next_step = f"{advice}; then start snakemake again: it repeats what is missing"
        return Problem(str(self.filename), f"it cannot be written: {self.strerror}", lost=self.lost, next=next_step)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the block, which writes ``path``, into NotWritten with that path."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        raise NotWritten(error.errno, error.strerror or str(error), str(path)) from None


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents. Raises NotWritten."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def nearest(path: Path) -> Path:
    """Return the path, or its nearest parent, that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def shown_path(path: Path) -> str:
    """Return the path for a message: relative if it is below the working directory."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def check_room(directory: Path) -> None:
    """Raise NotWritten if a file of 1 MB cannot be written in the directory, or in its nearest existing parent."""
    with writing(directory), tempfile.TemporaryFile(dir=nearest(directory.absolute())) as file:
        file.write(bytes(_ROOM))
        file.flush()
        os.fsync(file.fileno())  # some file systems report a full disk only here


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write ``content`` so that a reader sees the old file or the new one, never a part.

    mode: permissions before the umask. Creates missing parent directories.
    Raises NotWritten, and leaves no temporary file, when the disk is full.
    """
    with written_atomically(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_atomically(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file as write_atomically does, for content that is written in pieces."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.umask(mask := os.umask(0))
            os.chmod(name, mode & ~mask)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):  # the first error is raised, not one of the clean-up
                os.unlink(name)
            raise


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as indented JSON, atomically. NaN and infinity are refused (ValueError)."""
    write_atomically(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises OSError, or ValueError naming the file when it is not JSON (NaN and infinity are not).

    Strings are made printable, because some quote the output of a script, a library or a node.
    """
    return parsed_json(read_bytes(path), path)


def parsed_json(content: bytes, path: Path) -> Any:
    """Return what read_json does of a file whose content was read. Raises ValueError."""
    try:
        data = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return _printable(data) if content.translate(None, _PLAIN) else data


def read_as(model: type[M], path: Path) -> M:
    """Return what a JSON file holds. Raises OSError, or ValueError naming what is wrong."""
    return model.from_json(read_json(path))


def readable(model: type[M], path: Path) -> M | None:
    """Return what a JSON file holds; None without one that can be read."""
    try:
        return read_as(model, path)
    except (OSError, ValueError):
        return None


class ChangedFiles:
    """Files that are read again only if they have changed. ``problems`` says why a file that exists cannot be read."""

    def __init__(self) -> None:
        self.problems: dict[Path, str] = {}
        self._read: dict[Path, tuple[tuple[int, int, int], Any]] = {}  # inode, size, time of change in ns; the content

    def read(self, path: Path, parse: Callable[[Path], T]) -> T | None:
        """Return what ``parse`` makes of the file, None if there is none.

        Of a file that cannot be parsed, what was read before still counts: some are not replaced atomically.
        """
        known: tuple[tuple[int, int, int], T] | None = self._read.get(path)
        self.problems.pop(path, None)
        try:
            with opened(path) as file:  # opening makes a network file system look for a new version
                now = os.fstat(file.fileno())
            version = (now.st_ino, now.st_size, now.st_mtime_ns)
            if known is None or known[0] != version:
                known = self._read[path] = (version, parse(path))
        except FileNotFoundError:
            self._read.pop(path, None)
            return None
        except (OSError, ValueError, UserError) as error:
            text = " ".join(str(error).split())
            self.problems[path] = text if str(path) in text else f"{path}: {text}"
        return None if known is None else known[1]


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a figure")


def _printable(data: Any) -> Any:
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, list):
        return [_printable(item) for item in data]
    return {printable(key): _printable(value) for key, value in data.items()} if isinstance(data, dict) else data


_PLAIN = bytes(byte for byte in b"\t\n" + bytes(range(0x20, 0x7F)) if byte != ord("\\"))
"""The characters of a JSON text without escapes, which holds no control sequences."""


def touched_s(path: Path) -> float:
    """Return when a file was last touched (unix time). Raises OSError."""
    with opened(path) as file:  # opening makes a network file system look for a new version
        return os.fstat(file.fileno()).st_mtime


def scanned(directory: Path, stated: tuple[str, ...]) -> dict[str, os.stat_result | None]:
    """Return the names in a directory, with the state of those files whose names begin or end so. Raises OSError.

    Opening a directory makes NFS look for new names, as opening a file for a new version. But NFS may keep the state of
    a file that is not opened for a minute (actimeo): see touched_s. Lustre's locks keep both new.
    """
    states: dict[str, os.stat_result | None] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # it has just been deleted
                is_stated = entry.name.endswith(stated) or entry.name.startswith(stated)
                states[entry.name] = entry.stat() if is_stated else None
    return states


def file_text(path: Path) -> str | None:
    """Return the content of a small file; None if it cannot be read."""
    try:
        text = read_bytes(path).decode(errors="replace")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except OSError:
        return None


def sha256(data: bytes) -> str:
    """Return the hexadecimal SHA-256 digest."""
    return hashlib.sha256(data).hexdigest()


def canonical_sha256(data: Any) -> str:
    """Return the SHA-256 digest of a JSON value, whatever its key order and layout."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode())


@dataclass(frozen=True)
class Agent:
    """The process that starts ranks on a node: its only agent, or one of several, one per GPU."""

    node_rank: int
    local_rank: int | None = None

    @property
    def stem(self) -> str:
        """Stem of its files' names: node0, or node0.task1."""
        return f"node{self.node_rank}" + ("" if self.local_rank is None else f".task{self.local_rank}")

    @property
    def is_first(self) -> bool:
        """True if it does what is done once on its node."""
        return self.local_rank in (None, 0)

    def __str__(self) -> str:
        return f"node {self.node_rank}" + ("" if self.local_rank is None else f", task {self.local_rank}")


def agents_of(nodes: int, agents_per_node: int) -> tuple[Agent, ...]:
    """Return all agents of a run, in the order of their ranks."""
    if agents_per_node == 1:
        return tuple(Agent(node_rank) for node_rank in range(nodes))
    return tuple(Agent(node_rank, local) for node_rank in range(nodes) for local in range(agents_per_node))


SIGN, HANG = ".alive", "hang-"  # how the name of a node's sign of life ends, and that of a report begins


class RunDirectory:
    """One run's directory: results/runs/<variant>/<mode>/<nodes>x<gpus>/r<k>."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / "run.json"
        self.job_script = path / "job.sh"
        self.record = path / "record.json"
        self.assembled = path / "assembled.json"  # the record, until its job writes all records of its scale
        self.checked = path / "checked.json"  # digests of the raw files, as they were last read
        self.ended = path / "ended.json"
        self.progress = path / "progress.json"
        self.log = path / "train.log"
        self.attempts = path / "attempts"
        self.ranks = path / "ranks"
        self.nodes = path / "nodes"
        self.addresses = self.nodes / "addresses.json"  # of all nodes, for agents that report a hang
        self.one_ended = self.nodes / "one_ended"  # is there once a rank has ended its script
        self.warn_now = self.nodes / "warn_now"  # is there once the agents shall send SIGUSR1 to their ranks
        self.slow = path / "slow.json"  # of a link: when it was slower than promised, and why
        self.launcher_log = self.nodes / "srun.log"  # the output of srun itself
        self.nccl_log = self.nodes / "nccl.%h.%p.log"  # of each process: NCCL puts in the host and the process

    def profile(self, rank: int) -> Path:
        """Return the file with what a rank's profiled steps took."""
        return self.ranks / f"rank{rank}.profile.json"

    def trace(self, rank: int) -> Path:
        """Return the trace of a rank's profiled steps, for Perfetto."""
        return self.ranks / f"rank{rank}.trace.json.gz"

    def agent_log(self, agent: Agent, agents: int) -> Path:
        """Return the log of an agent's ranks during the run. With several agents, train.log is merged at the end."""
        return self.log if agents == 1 else self.nodes / f"{agent.stem}.log"

    def nccl_logs(self) -> list[Path]:
        return sorted(self.nodes.glob("nccl.*.log"))

    def failed_ranks(self, node_rank: int) -> Path:
        """Return the file for failures of a node's torchrun ranks; the agent moves it into its end record."""
        return self.nodes / f"failed{node_rank}.json"

    def torchrun_logs(self, node_rank: int) -> Path:
        """Return the directory for torchrun's own logs, in place of the temporary one; the agent deletes it."""
        return self.nodes / f"torchrun{node_rank}"

    def hang(self, agent: Agent) -> Path:
        """Return the report of an agent whose ranks make no step any more."""
        return self.nodes / f"{HANG}{agent.stem}.json"

    def look(self, agent: Agent) -> Path:
        """Return the last look of an agent at silent ranks of which one may go on."""
        return self.nodes / f"look-{agent.stem}.json"

    def totals(self, agent: Agent) -> Path:
        """Return the sums so far of an agent's ranks, which it writes again and again while they run."""
        return self.nodes / f"totals-{agent.stem}.json"

    def monitor(self, node_rank: int) -> Path:
        """Return the file that describes the samples of a node."""
        return self.nodes / f"node{node_rank}.monitor.json"

    def samples(self, node_rank: int) -> Path:
        return self.nodes / f"node{node_rank}.csv"

    def sign(self, node_rank: int) -> Path:
        """Return the file with the address of a node, which the node's first agent touches while it lives."""
        return self.nodes / f"node{node_rank}{SIGN}"

    def packed(self, agent: Agent) -> Path:
        """Return the archive with the raw files of an agent's ranks."""
        return self.nodes / f"{agent.stem}.zip"

    def agent_end(self, agent: Agent) -> Path:
        return self.nodes / f"{agent.stem}.json"


WORKFLOW = Path(__file__).parents[3]
OWN = WORKFLOW.parent  # the checkout, or its copy if Snakemake reads the module from a repository
SCRIPTS = WORKFLOW / "scripts"
SCHEMAS = WORKFLOW / "schemas"
TEMPLATES = WORKFLOW / "templates"  # shell: job.sh and climb.sh, and what sets up a node
REPORT = WORKFLOW / "report"
CENTRES = WORKFLOW / "centres"  # the rules of computing centres for a scaling report


def located(file: str | Path) -> str:
    """Return the path of a file: in the working directory, or in ddp-ladder's own if it exists only there."""
    own = OWN / file
    return str(own) if own.is_file() and not Path(file).exists() else str(file)


def profile(name: str) -> str:
    """Return the directory of a shipped Snakemake profile, for --profile."""
    return str(Path(located(f"profiles/{name}/config.yaml")).parent)


def places() -> str:
    """Return, for messages, the directories that a relative path is searched in."""
    return f"relative to {Path.cwd()}" + ("" if Path.cwd().samefile(OWN) else f" or else to {OWN}")


SHARED = (
    "nfs lustre gpfs beegfs ceph fuse.ceph wekafs panfs pvfs2 orangefs glusterfs fuse.glusterfs smb cifs afs".split()
)
ALONE = "tmpfs ramfs overlay ext2 ext3 ext4 xfs btrfs zfs f2fs apfs hfs".split()


def filesystem(path: Path) -> str:
    """Return the type of the file system that holds a path; empty if the system does not report it."""
    real = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def is_shared(kind: str) -> bool:
    """Return True if several machines share a file system of this type."""
    return any(kind.startswith(name) for name in SHARED)
