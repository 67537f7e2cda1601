"""Failure signatures: what a line of a failed run means, and who printed it.

The data is signatures.toml, with its explanation. The speakers of a run are its ranks, agents, torchrun, srun and
Slurm; each log is read up to a bound.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from ddp_ladder_instrument.redaction import redacted

from ddp_ladder.common.files import opened
from ddp_ladder.common.messages import printable
from ddp_ladder.records.raw_models import OWN_LINE
from ddp_ladder.records.record import FailureKind

Role = Literal["root", "sched", "symptom", "victim"]
ROLES: tuple[Role, ...] = get_args(Role)
"""In the order in which they claim a line: one that names a cause is not taken for a consequence."""
MOST_STEPS = 3  # in a remedy
FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Signature:
    """One kind of failure; signatures.toml explains the fields."""

    id: str
    role: Role
    regex: re.Pattern[str]
    verdict: str
    why: str
    next: tuple[str, ...]
    samples: tuple[str, ...]
    several_nodes: bool = False
    of_its_own: bool = False
    of_all: bool = False
    fatal: bool = False
    only_with: str = ""
    kind: FailureKind | None = None

    @property
    def names_rank(self) -> bool:
        """True if the rank that printed the line is the cause; it may be one that waited for the cause."""
        return self.of_its_own or (self.role == "root" and not self.of_all)


@dataclass(frozen=True)
class Match:
    """A line that a signature claims."""

    signature: Signature
    words: Words
    index: int  # of the line in words
    values: Mapping[str, str] = field(default_factory=dict)  # the groups of the regex by name

    @property
    def line(self) -> str:
        return self.words.lines[self.index]

    @property
    def rank(self) -> int | None:
        """The rank that is the cause; None if the speaker need not be it, or is not known."""
        return self.words.rank if self.signature.names_rank else None

    @property
    def node(self) -> str | None:
        """The node that the line names, else its speaker's; None if that need not be the cause, or is not known."""
        is_speakers = self.signature.names_rank or (self.words.rank is None and not self.signature.of_all)
        return self.values.get("node") or (self.words.node if is_speakers else None)

    def why(self, **values: object) -> str:
        """Return the cause in a sentence. values: what is known of the run; see signatures.toml."""
        return self._filled(self.signature.why, values)

    def next(self, **values: object) -> tuple[str, ...]:
        return tuple(self._filled(step, values) for step in self.signature.next)

    def _filled(self, template: str, values: Mapping[str, object]) -> str:
        rank = self.words.rank
        own = {"node": self.words.node, "rank": rank, "speaker": None if rank is None else f"rank {rank}"}
        given = {name: value for name, value in {**own, **values}.items() if value is not None}
        return template.format_map(defaultdict(lambda: "?", {**UNKNOWN, **given, **self.values}))


UNKNOWN: Mapping[str, object] = {
    "node": "the node",
    "nodes": "squeue knows them",
    "rank": "?",
    "speaker": "a rank",
    "python": "the training's Python",
    "log": "the log",
    "runtime": "stages.<stage>.runtime",
    "again": "start snakemake again: only what is missing is repeated",
}
"""The names that every template may use, with their values where the run does not tell."""


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all signatures in the order in which they claim a line: by role, then as in the file."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["signature"]
    return tuple(sorted(map(_signature, entries), key=lambda signature: ROLES.index(signature.role)))


def _signature(entry: dict[str, Any]) -> Signature:
    regex = re.compile(entry["regex"], re.MULTILINE)
    return Signature(**{**entry, "regex": regex, "next": tuple(entry["next"]), "samples": tuple(entry["samples"])})


@lru_cache(maxsize=8192)  # the ranks of a run often end alike
def classify(line: str, several_nodes: bool = True) -> Signature | None:
    """Return the signature that claims a line; None for a line that no signature knows."""
    usable = (signature for signature in signatures() if several_nodes or not signature.several_nodes)
    return next((signature for signature in usable if signature.regex.search(line)), None)


def is_consequence(exception: str, several_nodes: bool = False) -> bool:
    """Return True if a rank's exception may only report the loss of another rank."""
    kind = classify(exception, several_nodes)
    return kind is not None and (kind.role == "victim" or (kind.role == "symptom" and not kind.of_its_own))


def matches(words: Sequence[Words], *roles: Role, several_nodes: bool | None = None) -> Iterator[Match]:
    """Yield the lines that signatures of these roles claim, in the order of ``words`` and their lines.

    several_nodes: of the run; None: if the words are of several.
    """
    if several_nodes is None:
        several_nodes = len({said.node for said in words if said.node and said.speaker not in ("srun", "slurm")}) > 1
    usable = [kind for kind in signatures() if several_nodes or not kind.several_nodes]
    # Each signature on a whole text is much faster than on each line, and the nodes print much alike.
    every = "\n".join(dict.fromkeys(line for said in words for line in said.lines))
    usable = [kind for kind in usable if kind.regex.search(every)]
    texts = ["\n".join(said.lines) for said in words]
    present = {text: [kind for kind in usable if kind.regex.search(text)] for text in dict.fromkeys(texts)}
    ids = {kind.id for kinds in present.values() for kind in kinds}
    for said, text in zip(words, texts, strict=True):
        claiming = [kind for kind in present[text] if not kind.only_with or kind.only_with in ids]
        if any(kind.role in roles for kind in claiming):
            yield from _claimed(said, claiming, roles)


def _claimed(words: Words, claiming: Sequence[Signature], roles: Sequence[Role]) -> Iterator[Match]:
    for index, line in enumerate(words.lines):
        kind, match = next(((kind, match) for kind in claiming if (match := kind.regex.search(line))), (None, None))
        if kind and match and kind.role in roles:
            yield Match(kind, words, index, {name: value for name, value in match.groupdict().items() if value})


def root_cause(words: Sequence[Words]) -> Match | None:
    """Return the first line that names a cause, else one of the scheduler, else one that is ambiguous; else None.

    words: those whose speaker ended first come first.
    """
    candidates = matches(words, "root", "sched", "symptom")
    return min(candidates, key=lambda match: ROLES.index(match.signature.role), default=None)


PART_BYTES = 256 * 1024  # of a log: this much of its head and of its tail is read, and less of many logs
LEAST_PART_BYTES = 32 * 1024
LEAST_OF_NCCL_BYTES = 4 * 1024  # each rank has such a log; at its end is why NCCL failed
ALL_PARTS_BYTES = 4 * 1024 * 1024
LONGEST_LINE = 300  # characters of a line that is shown
LONGEST_OF_SEVERAL = 200  # the same, of several in one message
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
    """The lines of one speaker, in their order."""

    speaker: str  # rank, agent, torchrun, srun, slurm
    rank: int | None  # None if it is not known, as the others
    node: str | None  # its host name
    lines: tuple[str, ...]
    at_s: float | None = None  # unix time of the speaker's end

    @property
    def place(self) -> str:
        """Return who spoke: ``rank 1 (node7)``, ``agent (node7)``, ``srun``."""
        who = self.speaker if self.rank is None else f"rank {self.rank}"
        return f"{who} ({self.node})" if self.node else who


def read_lines(log: Path, logs: int = 1, least_bytes: int = LEAST_PART_BYTES) -> tuple[str, ...]:
    """Return the lines of a log, of a large one those of its head and tail; empty if there is no log.

    logs: how many are read of the run. least_bytes: of head and tail, also of many logs.
    """
    part = min(PART_BYTES, max(least_bytes, ALL_PARTS_BYTES // logs))
    try:
        with opened(log) as file:
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


def last_lines(log: Path, most: int) -> list[str]:
    """Return the last lines of a log that are not blank, without secrets."""
    return [cut(line) for line in read_lines(log) if line.strip()][-most:]


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
        if line.startswith(OWN_LINE):
            continue
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


def cut(line: str, most: int = LONGEST_LINE) -> str:
    """Return a line for a message: without secrets and without blanks at its ends, and cut if it is long."""
    line = redacted(line).strip()
    return line if len(line) <= most else f"{line[:most]}..."
