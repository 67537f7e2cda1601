"""Queries to Slurm, what jobs ask it for, and what an allocation is.

Every query has a time limit: a command that hangs is ended, and the error names it and the limit. squeue, sbatch and
the others take defaults of their options from the environment (SQUEUE_STATES, SBATCH_TIMELIMIT, SLURM_TIME_FORMAT), and
a shell inside a job has variables that describe that job: queries get neither, and a start that submits jobs removes
them from its own environment, because sbatch passes it on. The only place that builds options of sbatch and srun: for
the executor, for ``sbatch --test-only``, for job.sh and for climb.sh.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ddp_ladder.common.files import profile
from ddp_ladder.common.formats import count, signal_of
from ddp_ladder.common.messages import Problem, UserError, notify, printable
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.settings.terms import Scale, is_mig

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


STARTING_MIN = 5  # of a whole climb in one job: Snakemake's own start, gates and report

# All other SLURM_* and SRUN_* set defaults of srun. They come from the allocation (SLURM_NTASKS, SLURM_MEM_PER_NODE,
# SLURM_GPU_BIND, ...) and would add to or contradict the command line. The job step gets its own from Slurm.
KEPT = frozenset(
    (
        # The Slurm to use, and the job; the unit of --cpus-per-task: a core or a hardware thread.
        "SLURM_CONF SLURM_CONF_SERVER SLURM_JWT SLURM_JOB_ID SLURM_HINT SLURM_THREADS_PER_CORE "
        # srun ignores these; the training may read them.
        "SLURM_CLUSTER_NAME SLURM_JOB_ACCOUNT SLURM_JOB_PARTITION SLURM_JOB_QOS SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST"
    ).split()
)

# A job may have some of these from its site, or from the shell that submits it. In job.sh they would hide GPUs from
# tasks, each of which has to see all of its node, or contradict the counts of its srun.
OF_GPUS = "SLURM_GPU_BIND SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_BIND SLURM_TRES_PER_TASK".split()


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for srun."""
    defaults = ("SLURM_", "SRUN_")
    return {key: value for key, value in environment.items() if key in KEPT or not key.startswith(defaults)}


def sbatch_options(job: ScaleJob, own: Mapping[str, str], tasks_per_node: int = 1) -> list[str]:
    """Return the options of sbatch for a scale's job: its ``own`` (name, directory, log), resources, the key `slurm`.

    Each is one word, not quoted.
    """
    named: Mapping[str, object] = {
        **own,
        "nodes": job.scale.nodes,
        "ntasks-per-node": tasks_per_node,
        "gres": job.gres,
        "cpus-per-task": job.cpus_per_task(tasks_per_node),
        "mem": None if job.memory_mb is None else f"{job.memory_mb}M",
        "time": job.runtime_min,
        **{name: value for name, value in job.slurm if name not in ("extra", "replace_bad_node")},
    }
    options = [f"--{name}={value}" for name, value in named.items() if value is not None]
    return [*options, *job.slurm.extra, "--no-requeue"]  # a second start would run beside what the first one left


def widest(jobs: Sequence[ScaleJob]) -> ScaleJob:
    """Return a job that has room for each of these, and time for all, one after the other."""
    most = max(jobs, key=lambda job: job.scale.gpus_per_node)
    return replace(
        most,
        scale=Scale(max(job.scale.nodes for job in jobs), most.scale.gpus_per_node),
        slurm=max(jobs, key=lambda job: job.scale.world_size).slurm,
        runtime_min=STARTING_MIN + sum(job.runtime_min for job in jobs),
    )


def salloc_for(job: ScaleJob) -> str:
    """Return an salloc command that asks for what a job would ask for."""
    return shlex.join(["salloc", *(option for option in sbatch_options(job, {}) if option != "--no-requeue")])


def srun_options(nodes: int, tasks_per_node: int, cpus_per_task: int) -> list[str]:
    """Return the options of every srun that starts ranks.

    Counts in full: srun has no --cpus-per-task from sbatch since Slurm 22.05.
    """
    return [
        f"--nodes={nodes}",
        f"--ntasks={nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--cpus-per-task={cpus_per_task}",
        # Rank k of a node is the node's k-th task, on the k-th share of its cores. By default tasks alternate between
        # sockets.
        "--distribution=block:block",
        "--kill-on-bad-exit=1",  # without the process that failed the others would wait
        "--mpi=none",  # torch brings its own communication
    ]


def step_argv(job: ScaleJob, nodes: Sequence[str], tasks_per_node: int, name: str) -> list[str]:
    """Return srun with its options, for a job step that has exactly the scale's share of each of these nodes.

    Every count is explicit: Snakemake's job step removes Slurm's own from the environment, and in an allocation of
    another shape they would not be the scale's.
    """
    return [
        "srun",
        f"--job-name={name}",
        f"--nodelist={','.join(nodes)}",
        *srun_options(len(nodes), tasks_per_node, job.cpus_per_task(tasks_per_node)),
        # Per node, and without --gpu-bind, so that each task sees all GPUs. With --gpu-bind=none several tasks see no
        # GPU at all in Slurm 22.05.
        *([f"--gres={job.gres}"] if job.gres else []),
        f"--mem={job.memory_mb or 0}",  # 0: all memory of the job
        "--exact",
        *(option for option in job.slurm.extra if option.startswith(("--hint=", "--threads-per-core="))),
        "--export=ALL",
        "--input=none",
    ]


# --- A Slurm allocation: its nodes, its time left, and whether a plan fits into it.


_SHARE_GPUS = re.compile(r"\bgpu(?::[^:,()]+)*:(\d+)")
_SHARE = re.compile(r"Nodes=(?P<nodes>\S+) CPU_IDs=(?P<cpus>\S*) Mem=(?P<memory_mb>\d+) GRES=(?P<gres>\S*)")


@dataclass(frozen=True)
class AllocatedResources:
    """The resources of an allocation. Amounts per node are those of the smallest node."""

    job_id: str
    nodes: int
    gpus: int  # per node
    cpus: int  # per node, as Slurm counts them
    memory_mb: int  # per node

    def __str__(self) -> str:
        return (
            f"job {self.job_id} offers {count(self.nodes, 'node')}, and on each {count(self.gpus, 'GPU')}, "
            f"{count(self.cpus, 'CPU')} and {self.memory_mb} MB"
        )


def own_allocation(environment: Mapping[str, str], salloc: str) -> AllocatedResources:
    """Return the resources of the job that this process belongs to. Raises UserError if there is none.

    salloc: asks for one that has room for all scales.
    """
    if job_id := environment.get("SLURM_JOB_ID"):
        question = ["scontrol", "show", "job", "--details", job_id]
        return parse_allocation(job_id, answer(job_id, lambda within_s: run_command(question, within_s)))
    where, what = f"--profile {profile('allocation')}", "this is not inside a Slurm allocation"
    advice = f"start it inside `{salloc}`, or let the scales queue as jobs: --profile {profile('slurm')}"
    raise UserError(Problem(where, what, "SLURM_JOB_ID is not set", next=advice))


def parse_allocation(job_id: str, shown: str) -> AllocatedResources:
    """Parse the output of ``scontrol show job --details``. Raises UserError if it shows no nodes."""
    nodes = re.search(r"\bNumNodes=(\d+)", shown)
    shares = list(_SHARE.finditer(shown))
    if not nodes or not shares:
        raise UserError(no_job(job_id, "it has no nodes"))
    return AllocatedResources(
        job_id,
        int(nodes[1]),
        gpus=min(sum(map(int, _SHARE_GPUS.findall(share["gres"]))) for share in shares),
        cpus=min(_ids(share["cpus"]) for share in shares),
        memory_mb=min(int(share["memory_mb"]) for share in shares),
    )


def _ids(ranges: str) -> int:
    """Count CPUs: ``0-3,8`` is 5."""
    pairs = (part.partition("-") for part in ranges.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in pairs)


def time_left_s(job_id: str, until_s: float) -> float | None:
    """Return the seconds until Slurm ends the job; None if it has no limit.

    until_s: as in query.answer. Raises UserError if there is no such job, or no answer.
    """
    return seconds(job_field(job_id, "L", until_s))


def check_allocation(jobs: Sequence[ScaleJob], environment: Mapping[str, str], cluster_file: str) -> None:
    """Raise UserError if there is no allocation, or if the scale of one of these jobs does not fit into it.

    cluster_file: the file with the key `node`, for messages.
    """
    salloc = salloc_for(widest(jobs))
    offer = own_allocation(environment, salloc)
    asked = [f"{job.scale} asks for {' and '.join(lacks)}" for job in jobs if (lacks := misfits(job, offer))]
    if asked:
        where, what = f"the allocation of job {offer.job_id}", f"not every scale fits into it: {'; '.join(asked)}"
        advice = f"start inside `{salloc}`, or ask for less: `stages` in the experiment, `node` in {cluster_file}"
        raise UserError(Problem(where, what, str(offer), next=advice))


def misfits(job: ScaleJob, offer: AllocatedResources) -> list[str]:
    """Return what a scale asks for and the allocation does not have: ``["3 nodes", "4 GPUs per node"]``."""
    nodes, gpus, memory_mb = job.scale.nodes, job.scale.gpus_per_node if job.gres else 0, job.memory_mb or 0
    wants = (
        (nodes, offer.nodes, count(nodes, "node")),
        (gpus, offer.gpus, f"{count(gpus, 'GPU')} per node"),
        (job.cpus, offer.cpus, f"{count(job.cpus, 'CPU')} per node"),
        (memory_mb, offer.memory_mb, f"{memory_mb} MB per node"),
    )
    return [words for wanted, offered, words in wants if wanted > offered]
