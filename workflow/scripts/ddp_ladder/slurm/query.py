"""Queries to Slurm: asked once, or by a job about itself again and again while the controller does not answer.

Every query has a time limit: a command that hangs is ended, and the error names it and the limit. squeue, sbatch and
the others take defaults of their options from the environment (SQUEUE_STATES, SBATCH_TIMELIMIT, SLURM_TIME_FORMAT), and
a shell inside a job has variables that describe that job: queries get neither, and a start that submits jobs removes
them from its own environment, because sbatch passes it on.
"""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddp_ladder.common.formats import count, signal_of
from ddp_ladder.common.messages import Problem, UserError, notify, printable
from ddp_ladder.settings.terms import is_mig

T = TypeVar("T")

ANSWER_WITHIN_S = 60.0
SHORTEST_ANSWER_S = 2.0  # also if no time is left: a healthy controller takes less
PATIENCE_S = 300.0  # a restart of the controller may take this long
AGAIN_S = 2.0
GIVEN_UP_EVERY_S = 1.0
NO_COMMAND = os.strerror(errno.ENOENT)
WAS_ENDED, NO_ANSWER, NOT_READ = "was ended by", "no answer within", "printed what cannot be read"
LONGEST_QUOTE = 100
MARK = "ddp-ladder"  # begins each of squeue's own lines: a site's wrapper may print others

# Slurm's messages while its controller is busy, down or changing over. They are no refusal: it may have obeyed.
_UNDECIDED = re.compile(
    r"Socket timed out|Unable to contact slurm controller|Zero Bytes were transmitted|Message (send|receive) failure"
    r"|Communication (connection|shutdown) failure|standby mode|[Tt]emporarily|try again|Rate limit exceeded"
    f"|{NO_ANSWER}|{WAS_ENDED}|{NOT_READ}"
)


class SlurmError(Exception):
    """A command of Slurm failed; the text is its message."""

    @property
    def is_undecided(self) -> bool:
        """True if it failed without a refusal: it can be tried again, and may have been obeyed."""
        return undecided(str(self))


def undecided(errors: str) -> bool:
    """Return True if these are messages of a command that failed without a refusal."""
    return _UNDECIDED.search(errors) is not None


def unreadable(command: str, printed: str) -> SlurmError:
    """Return the error of a command that ended well without an answer in its output."""
    first = next((line.strip() for line in printed.splitlines() if line.strip()), "")
    return SlurmError(f"{command} {NOT_READ}: {first[:LONGEST_QUOTE]!r}")


def run_command(
    argv: Sequence[str],
    within_s: float | None = None,
    script: str = "",
    with_errors: bool = False,
    given_up: Callable[[], bool] = lambda: False,
) -> str:
    """Return the output of a command, which reads ``script``. Raises SlurmError with its own message.

    within_s: None for ANSWER_WITHIN_S. with_errors: return its standard error too. given_up: asked while it runs; if it
    is True, the command is ended as if its time were up.
    """
    within_s = ANSWER_WITHIN_S if within_s is None else within_s
    started_s, env, pipe = time.monotonic(), question_environment(os.environ), subprocess.PIPE
    try:
        process = subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror}") from error
    with process:
        to_write: str | None = script
        while True:
            try:
                output, errors = process.communicate(to_write, min(GIVEN_UP_EVERY_S, within_s))
                break
            except subprocess.TimeoutExpired:
                to_write = None  # it is being written
                waited_s = time.monotonic() - started_s
                if waited_s >= within_s or given_up():
                    process.kill()
                    raise SlurmError(f"{' '.join(argv)}: {NO_ANSWER} {min(waited_s, within_s):.3g} s") from None
    if process.returncode < 0:
        raise SlurmError(f"{argv[0]} {WAS_ENDED} {signal_of(process.returncode)}")
    if process.returncode:
        raise SlurmError(printable(errors or output).strip() or f"{argv[0]} ended with {process.returncode}")
    return printable(output + errors if with_errors else output)


def answer(job_id: str, ask: Callable[[float], T], until_s: float = math.inf) -> T:
    """Return Slurm's answer on the calling job. Raises UserError if Slurm does not know it, or does not answer.

    ask: the query, a function of its time limit in seconds.
    until_s: on the monotonic clock, when the caller's time to wait is up.
    """
    patience_s = max(0.0, min(PATIENCE_S, until_s - time.monotonic()))
    deadline_s = time.monotonic() + patience_s
    is_announced = False
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return ask(min(ANSWER_WITHIN_S, max(SHORTEST_ANSWER_S, left_s)))
        except SlurmError as error:
            message = str(error)
        if unknown(message) or NO_COMMAND in message or time.monotonic() >= deadline_s:
            raise UserError(no_job(job_id, message))
        if not is_announced:
            notify(f"Slurm does not answer ({message}); asking again for {patience_s:.0f} s")
            is_announced = True
        time.sleep(min(AGAIN_S, max(0.0, deadline_s - time.monotonic())))


def job_field(job_id: str, field: str, until_s: float = math.inf) -> str:
    """Return one field of squeue on the calling job; empty for a job that has ended. Raises as answer does."""
    rows = answer(job_id, lambda within_s: squeue(field, f"--jobs={job_id}", within_s=within_s), until_s)
    return rows[0][0].strip() if rows else ""


def unknown(errors: str) -> bool:
    """Return True if a command failed because the controller knows no such job."""
    return "Invalid job id" in errors


def squeue(
    fields: str, *options: str, within_s: float | None = None, given_up: Callable[[], bool] = lambda: False
) -> list[list[str]]:
    """Return squeue's rows, one per job or job step.

    fields: letters of its --format, such as ``iT``; the last one may hold a ``|``. Raises SlurmError, also if
    one of its lines is torn. The header proves an answer, also an empty one.
    """
    form = "|".join((MARK, *(f"%{letter}" for letter in fields)))
    printed = run_command(["squeue", *options, f"--format={form}"], within_s, given_up=given_up)
    rows = [line.split("|", len(fields))[1:] for line in printed.splitlines() if line.startswith(f"{MARK}|")]
    if not rows or any(len(row) != len(fields) for row in rows):
        raise unreadable("squeue", printed)
    return rows[1:]


def sacct(fields: str, *options: str, within_s: float | None = None) -> list[dict[str, str]]:
    """Return sacct's rows, one per job or job step, by the names of ``fields``; the last one may hold a ``|``.

    Raises SlurmError, also without the header, which proves an answer. Other lines are messages of the site.
    """
    names = fields.split(",")
    printed = run_command(["sacct", "--parsable2", *options, f"--format={fields}"], within_s)
    header, lines = "|".join(names), printed.splitlines()
    if header not in lines:
        raise unreadable("sacct", printed)
    rows = [line.split("|", len(names) - 1) for line in lines[lines.index(header) + 1 :] if line[:1].isdecimal()]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def no_job(job_id: str, why: str) -> Problem:
    """Return the problem of an allocation that Slurm does not know."""
    advice = "look at it with `squeue --me`; if it has ended, ask for a new one with salloc or sbatch"
    return Problem(f"Slurm job {job_id}", "Slurm does not show the nodes of this allocation", why, next=advice)


# The environment of a query

# The Slurm to use, and the permission to use it.
CONNECTION = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
_COMMANDS = ("SACCT", "SACCTMGR", "SALLOC", "SBATCH", "SCANCEL", "SCONTROL", "SINFO", "SQUEUE", "SRUN")
_OF_ONE_COMMAND = tuple(f"{command}_" for command in _COMMANDS)
_OF_ALL = "SLURM_"  # for all commands, or describing a job


def question_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a command of Slurm that starts nothing."""
    return {key: value for key, value in environment.items() if not _is_set_aside(key)}


def set_aside(environment: MutableMapping[str, str]) -> str:
    """Clear the environment of a process that submits jobs; return a line that names what was removed, or ""."""
    job = environment.get("SLURM_JOB_ID")
    keys = sorted(key for key in environment if _is_set_aside(key))
    for key in keys:
        del environment[key]
    # A job sets dozens of SLURM_*, which are not the user's: one entry names them all.
    named = [key for key in keys if job is None or not key.startswith(_OF_ALL)]
    if job is not None:
        named.append(f"SLURM_* of job {job}, in whose shell this was started")
    return f"set aside: {', '.join(named)} (jobs ask for what cluster.yaml says, under slurm and node)" if named else ""


def _is_set_aside(key: str) -> bool:
    return key.startswith(_OF_ONE_COMMAND) or (key.startswith(_OF_ALL) and key not in CONNECTION)


# Parsers of records, amounts and lists of names


def records(text: str, first: str) -> Iterator[dict[str, str]]:
    """Yield records, ``Key=value Key=value ...`` a line; values may hold spaces (OS, Reason).

    Lines that begin with another key than ``first`` are messages of the site.
    """
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            _, *parts = re.split(r"(?:^|\s)(\w[\w:/]*)=", line)
            yield dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))


def tres(text: str) -> dict[str, int]:
    """Parse ``cpu=8,mem=64G,gres/gpu:a100=4`` to counts, without memory and other amounts with a unit."""
    pairs = re.findall(r"(?:^|,)([^,=]+)=([0-9]{1,18})(?=[.,]|$)", text)
    return {name: int(value) for name, value in pairs if name != "mem"}


def seconds(text: str) -> float | None:
    """Return a time, ``[[days-]hours:]minutes:seconds``, in seconds; None for no limit (UNLIMITED, NOT_SET)."""
    form = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if form is None:
        return None
    days, hours, minutes, secs = (float(part or 0) for part in form.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs


def unix_time(text: str) -> float | None:
    """Return ``2026-11-22T14:11:49``, local time, as unix time; None for Unknown, None and the like."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def host_names(text: str) -> Iterator[str]:
    """Yield the names in Slurm's short form: ``node[01-03,7],login``."""
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text):
        if part != "(null)":
            yield from _expanded(part)


def _expanded(part: str) -> Iterator[str]:
    form = re.search(r"\[([^\]]*)\]", part)
    if form is None:
        yield part
        return
    head, tail = part[: form.start()], part[form.end() :]
    for item in form[1].split(","):
        low, _, high = item.partition("-")
        for number in range(int(low), int(high or low) + 1):
            yield from (f"{head}{number:0{len(low)}d}{rest}" for rest in _expanded(tail))


# --- What the nodes of a partition offer a job: GPUs, CPUs and memory, as Slurm counts them.


_GPUS = re.compile(r"\bgpu(?::([^:,()]+))?:([0-9]{1,9})(?![0-9])")
_STARTS_NOTHING = re.compile(r"\b(DOWN|DRAIN|FAIL|MAINT|NOT_RESPONDING)|\*")  # not POWERED_DOWN: a job wakes it


@dataclass(frozen=True)
class Shape:
    """What one node offers."""

    gpus: int
    gres: str  # name of its GPUs in Slurm, of the most common type; empty without GPUs
    cpus: int
    memory_mb: int

    @property
    def of_one_slice(self) -> Shape:
        """The shape itself; of MIG slices, of which a process sees one, a slice with its share of the node."""
        if not is_mig(self.gres):
            return self
        return Shape(1, self.gres, max(1, self.cpus // self.gpus), self.memory_mb // self.gpus)

    def __str__(self) -> str:
        gpus = f"{count(self.gpus, 'GPU')} ({self.gres})" if self.gpus else "no GPU"
        return f"{gpus}, {count(self.cpus, 'CPU')} and {self.memory_mb} MB"


@dataclass(frozen=True)
class Partition:
    """A partition."""

    name: str
    shapes: Mapping[Shape, int]  # how many of its nodes have which shape, the most common one first
    down: Mapping[str, Shape]  # of these the nodes that start no job now: ``node2 (IDLE+DRAIN)``

    @property
    def usual(self) -> Shape:
        """The shape that most of its nodes have; of those with GPUs, if any has one."""
        return max(self.shapes, key=lambda shape: (shape.gpus > 0, self.shapes[shape]))

    @property
    def in_words(self) -> str:
        """``gpu: 6 nodes with 4 GPUs (gpu:a100), 8 CPUs and 16000 MB``."""
        nodes = ", ".join(f"{count(number, 'node')} with {shape}" for shape, number in self.shapes.items())
        return f"{self.name}: {nodes or 'no nodes'}"

    @property
    def is_down(self) -> bool:
        """True if none of its nodes starts a job now."""
        return len(self.down) == sum(self.shapes.values())


def read_nodes() -> list[dict[str, str]]:
    """Ask Slurm for its nodes. Raises SlurmError."""
    return list(records(run_command(["scontrol", "--oneliner", "--all", "show", "node"]), "NodeName"))


def shapes_of(partition: Mapping[str, str], nodes: Iterable[Mapping[str, str]]) -> Partition:
    """Return a partition's shapes, from its record and those of all nodes."""
    name = partition["PartitionName"]
    own = [node for node in nodes if name in node.get("Partitions", "").split(",")]
    shapes = [(node, _shape(node, partition)) for node in own]
    down = {
        f"{node['NodeName']} ({node['State']})": shape
        for node, shape in shapes
        if _STARTS_NOTHING.search(node.get("State", ""))
    }
    return Partition(name, dict(Counter(shape for _, shape in shapes).most_common()), down)


def _shape(node: Mapping[str, str], partition: Mapping[str, str]) -> Shape:
    gpus = Counter[str]()
    for kind, number in _GPUS.findall(node.get("Gres", "")):
        gpus[f"gpu:{kind}" if kind else "gpu"] += int(number)
    ((gres, most),) = gpus.most_common(1) or [("", 0)]
    return Shape(
        most,
        gres,
        _least(node.get("CPUEfctv") or node.get("CPUTot"), partition.get("MaxCPUsPerNode")),
        _least(node.get("RealMemory"), partition.get("MaxMemPerNode"), reserved=node.get("MemSpecLimit")),
    )


def _least(amount: str | None, limit: str | None, reserved: str | None = None) -> int:
    """Return an amount without what is reserved for the system, and within a limit such as UNLIMITED or 6."""
    left = _number(amount) - _number(reserved)
    return min(left, _number(limit) or left)


def _number(text: str | None) -> int:
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) else 0
