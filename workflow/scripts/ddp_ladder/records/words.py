"""The words of all speakers of a run: its ranks, agents, torchrun, srun and Slurm. Each log is read up to a bound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.common.messages import printable

PART_BYTES = 256 * 1024  # of a log: this much of its head and of its tail is read, and less of many logs
LEAST_PART_BYTES = 32 * 1024
ALL_PARTS_BYTES = 4 * 1024 * 1024
LONGEST_LINE = 300  # characters of a line that is shown
TRACEBACK = "Traceback (most recent call last)"

# The prefix that torch puts before each line of an uncaught exception in a process group.
_OF_RANK = re.compile(r"\[rank([0-9]+)\]: ?")
# The start of torchrun's own report of a rank that ended.
_OF_TORCHRUN = re.compile(r"[WE][0-9]{4} [0-9:.]+ .*torch/distributed/elastic/")
_OF_SLURM = re.compile(r"slurm(?:stepd|d)\b")
_NODE = re.compile(
    r"(?:^slurm(?:step)?d-|^srun: error: (?=\S+: tasks? )|[Nn]ode failure on | ON (?=\S+ CANCELLED ))([\w.-]+)"
)


@dataclass(frozen=True)
class Words:
    """The lines of one speaker (rank, agent, torchrun, srun, slurm), in their order; its rank and node if known.

    node: the host name of the node. at_s: unix time of the speaker's end, if it is known.
    """

    speaker: str
    rank: int | None
    node: str | None
    lines: tuple[str, ...]
    at_s: float | None = None

    @property
    def place(self) -> str:
        """Return who spoke: ``rank 1 (node7)``, ``agent (node7)``, ``srun``."""
        who = self.speaker if self.rank is None else f"rank {self.rank}"
        return f"{who} ({self.node})" if self.node else who


def read_lines(log: Path, logs: int = 1) -> tuple[str, ...]:
    """Return the lines of a log, of a large one those of its head and tail; empty if there is no log.

    logs: how many are read of the run.
    """
    part = min(PART_BYTES, max(LEAST_PART_BYTES, ALL_PARTS_BYTES // logs))
    try:
        with log.open("rb") as file:
            data = file.read(part)
            size = log.stat().st_size
            if size > part:
                file.seek(max(part, size - part))
                rest = file.read(part)
                data += rest if size <= 2 * part else b"\n" + rest
    except OSError:
        return ()
    text = printable(re.sub(rb"[\r\n]+", b"\n", data).decode("utf-8", "replace"))
    return tuple(text.split("\n"))


def lines_of_agent(lines: Sequence[str], agent: str) -> Sequence[str]:
    """Return the lines of the only agent of a run, whose log srun's own messages were put before."""
    header = f"==== {agent} ===="
    return lines[lines.index(header) + 1 :] if lines[:1] == ("==== srun ====",) and header in lines else lines


def of_agent(lines: Iterable[str], rank: int | None, node: str | None, at_s: float | None = None) -> Iterator[Words]:
    """Yield the words in the log of an agent: those of each rank that torch marked, of torchrun, and the rest.

    rank: the only one of the agent, which then speaks in the lines that are not marked; None if it has several.
    """
    of_ranks: dict[int, list[str]] = {}
    rest: list[str] = []
    of_torchrun: list[str] = []
    unmarked = rest
    for line in lines:
        if marked := _OF_RANK.match(line):
            of_ranks.setdefault(int(marked[1]), []).append(line[marked.end() :])
            continue
        if _OF_TORCHRUN.match(line):
            unmarked = of_torchrun  # its own traceback follows
        unmarked.append(line)
    for number, said in of_ranks.items():
        yield Words("rank", number, node, tuple(said), at_s)
    yield Words("agent" if rank is None else "rank", rank, node, tuple(rest), at_s)
    if of_torchrun:
        yield Words("torchrun", None, node, tuple(of_torchrun), at_s)


def of_srun(lines: Iterable[str]) -> Iterator[Words]:
    """Yield the words in the output of srun: its own and those of Slurm's daemons, of each node that they name."""
    said: dict[tuple[str, str | None], list[str]] = {}
    for line in lines:
        if line.strip():
            node = _NODE.search(line)
            speaker = "slurm" if _OF_SLURM.match(line) else "srun"
            said.setdefault((speaker, node[1] if node else None), []).append(line)
    for (speaker, host), own in said.items():
        yield Words(speaker, None, host, tuple(own))


def cut(line: str) -> str:
    """Return a line for a message: without blanks at its ends, and cut if it is long."""
    line = line.strip()
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
