"""The raw files of an agent's ranks in one archive (nodes/node<k>.zip), so that a job of many nodes reads few files.

An agent packs the files when its ranks have ended, and deletes them. Without the archive, as after an agent that was
killed, the files are where the ranks wrote them, and are read there.
"""

from __future__ import annotations

import errno
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from ddp_ladder_instrument.contract import FIRST_STATE
from ddp_ladder_instrument.files import MOST_BYTES

from ddp_ladder.common.files import Agent, RunDirectory, read_bytes, sha256, written_atomically

DAMAGE = (BadZipFile, RuntimeError, EOFError, zlib.error)  # what reading a damaged archive raises
FILES = ("rank{}.json", "rank{}.steps", "rank{}.log", "rank{}.unwritten", FIRST_STATE, "metrics{}.jsonl")  # of a rank


def pack(directory: RunDirectory, agent: Agent, ranks: Iterable[int]) -> str | None:
    """Pack the files of an agent's ranks, and the samples of its node if it made them, and delete them.

    Return the archive's digest. On a full disk the files stay where they are, and None is returned.
    """
    files = [directory.ranks / name.format(rank) for rank in ranks for name in FILES]
    if agent.is_first:
        files += [directory.monitor(agent.node_rank), directory.samples(agent.node_rank)]
    with suppress(OSError):  # what is left where it is, is read there
        written = [file for file in files if file.is_file()]
        with written_atomically(directory.packed(agent)) as content, ZipFile(content, "w") as archive:
            for file in written:
                archive.write(file, file.relative_to(directory.path))
        digest = sha256(read_bytes(directory.packed(agent)))
        for file in written:
            file.unlink()
        return digest
    return None


class RawContent:
    """The content of a run's raw files, packed or not. It holds one archive open: read an agent's files together."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._held: tuple[Agent, ZipFile | None] | None = None
        self.digests: dict[str, str] = {}  # of the files that were read whole, by path below the run

    def read(self, path: Path, agent: Agent | None = None) -> bytes:
        """Return the content of a file. agent: whose archive may hold it. Raises OSError or ValueError."""
        archive = self._archive(agent) if agent is not None else None
        name = path.relative_to(self.directory.path).as_posix()
        if archive is not None and name in archive.NameToInfo:
            try:
                if archive.NameToInfo[name].file_size > MOST_BYTES:
                    raise BadZipFile(f"its {name} has more than {MOST_BYTES:,} bytes")
                return archive.read(name)
            except DAMAGE as error:
                raise ValueError(f"{Path(archive.filename or '').name}: {error}") from None
        content = read_bytes(path)
        self.digests[name] = sha256(content)
        return content

    def has(self, path: Path, agent: Agent) -> bool:
        """Return True if there is such a file, packed or not. agent: whose archive may hold it."""
        with suppress(OSError, ValueError):
            archive = self._archive(agent)
            if archive is not None and path.relative_to(self.directory.path).as_posix() in archive.NameToInfo:
                return True
        return path.exists()

    def _archive(self, agent: Agent) -> ZipFile | None:
        """Return an agent's archive; None without one. Raises OSError, or ValueError if it is damaged."""
        if self._held is None or self._held[0] != agent:
            path, self._held = self.directory.packed(agent), None
            archive = None
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(path.stat().st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file", str(path))
                try:
                    archive = ZipFile(path)
                except BadZipFile as error:
                    raise ValueError(f"{path.name}: {error}") from None
            self._held = agent, archive
        return self._held[1]
