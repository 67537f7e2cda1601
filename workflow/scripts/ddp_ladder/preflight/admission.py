"""Whether Slurm would take the jobs of a plan, in Slurm's own words: ``sbatch --test-only``, which submits nothing.

The test asks with exactly the options of the later submission, so it honours the site's submit plugin, accounts, QOS
and limits. It says nothing of a time limit beyond the partition's: that is compared with MaxTime.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import count, in_short
from ddp_ladder.common.messages import Problem, UserError, did_you_mean
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.settings.keys import Node, Settings
from ddp_ladder.settings.terms import PRODUCTION, REHEARSAL, runtime_key
from ddp_ladder.slurm.query import (
    Partition,
    Shape,
    SlurmError,
    read_nodes,
    records,
    run_command,
    sbatch_options,
    seconds,
    shapes_of,
    unreadable,
)

MOST_NAMES = 12  # of a list in a message
_START = re.compile(r"to start at (\S+)")
_PREFIX = re.compile(r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?")
NO_SUCH_NODES = "Requested node configuration is not available"
YOURS = "sacctmgr show associations user=$USER format=account,partition,qos"
CHOOSE_NODES = ("constraint", "nodelist", "exclude", "reservation")  # among those of a partition
NOT_BEGUN = "Invalid time specified"  # of a reservation that begins later

# Slurm's words on a refusal, and the keys that they are on: of `slurm`, or of `node`, or of the job's stage.
KEYS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("account", ("slurm.account", "slurm.partition")),
    ("partition", ("slurm.partition",)),
    ("qos", ("slurm.qos",)),
    ("reservation", ("slurm.reservation",)),
    ("feature", ("slurm.constraint",)),
    ("node name", ("slurm.nodelist", "slurm.exclude")),
    ("number of nodes", ("slurm.nodelist",)),
    ("node configuration", ("scales", "node.gres", "node.cpus", "node.memory_mb", "slurm.partition")),
    ("trackable resource|gres", ("node.gres",)),
    ("memory", ("node.memory_mb",)),
    ("cpu count|too many cpus|task count", ("node.cpus",)),
    ("time", ("runtime",)),
    ("option|licen[cs]e", ("slurm.extra",)),
)


Partitions = Mapping[str, Mapping[str, str]]  # of `scontrol show partition`, by name
NodeEntries = Sequence[Mapping[str, str]]  # of `scontrol show node`


@dataclass(frozen=True)
class Admission:
    """What Slurm says to the jobs."""

    refused: tuple[Problem, ...]  # it takes them not, or would never start them
    waits: tuple[Problem, ...]  # it starts them only after a change
    starts: Mapping[str, str]  # by scale that it takes, when it expects to start it: ``2026-11-20T23:40:00`` or empty

    @property
    def starts_in_words(self) -> str:
        """``1x1 at 2026-11-20 23:40:00, 2x4 at 2026-11-21 03:10:00``."""
        return ", ".join(f"{scale} at {start.replace('T', ' ')}" for scale, start in self.starts.items() if start)


def read_partitions() -> Partitions:
    """Ask this machine's Slurm for its partitions. Raises UserError if it does not answer."""
    question = ["scontrol", "--oneliner", "--all", "show", "partition"]
    try:
        printed = run_command(question)
        if partitions := {row["PartitionName"]: row for row in records(printed, "PartitionName")}:
            return partitions
        raise unreadable("scontrol", printed)
    except SlurmError as error:
        what, found_text = "the controller does not answer, so nothing can be submitted", str(error).splitlines()
        advice = "try `sinfo` on this machine: it has to work here; on most sites, that is a login node"
        raise UserError(Problem("Slurm", what, "".join(found_text[-1:]), next=advice)) from error


def check_jobs(jobs: Sequence[ScaleJob], settings: Settings, partitions: Partitions) -> Admission:
    """Ask Slurm whether it would take these jobs; without an answer they are submitted all the same."""
    refused: dict[tuple[tuple[str, ...], str], list[ScaleJob]] = {}
    problems = list[Problem]()
    starts = {}
    of_stages = {job.stage: list(_of_partition(job, settings, partitions)) for job in jobs}  # a stage's have one limit
    for job in jobs:
        try:
            start = _asked(job)
        except SlurmError as error:
            if error.is_undecided:
                what = f"Slurm does not say whether it takes the job of {job.scale}"
                advice = "nothing: it is submitted without this check"
                problems.append(_Waiting("sbatch --test-only", what, str(error), next=advice))
                continue
            words = _in_short(str(error))
            refused.setdefault((_keys(words, job, settings), words), []).append(job)
        else:
            if not of_stages[job.stage]:
                starts[str(job.scale)] = start
    lacking = [job for (_, words), these in refused.items() if NO_SUCH_NODES in words for job in these]
    explained = _of_nodes(lacking, settings, partitions) if lacking else {}
    problems += dict.fromkeys(explained.values())
    for (keys, words), these in refused.items():
        if rest := [job for job in these if str(job.scale) not in explained]:
            problems.append(_problem(keys, words, rest, settings, partitions))
    problems += itertools.chain(*of_stages.values())
    return Admission(
        refused=tuple(problem for problem in problems if not isinstance(problem, _Waiting)),
        waits=tuple(problem for problem in problems if isinstance(problem, _Waiting)),
        starts=starts,
    )


class _Waiting(Problem):
    """A job that Slurm takes, and starts only after a change."""


def _asked(job: ScaleJob) -> str:
    """Return when Slurm expects the job to start. Raises SlurmError with the words of its refusal."""
    said = run_command(["sbatch", "--test-only", *sbatch_options(job, {})], script="#!/bin/sh\n", with_errors=True)
    start = _START.search(said)
    return start[1] if start else ""


def _in_short(words: str) -> str:
    """Return Slurm's words without what is the same in each of them, each line once."""
    lines = [_PREFIX.sub("", line) for line in words.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(line for line in lines if not line.startswith("Try ")))


def _keys(words: str, job: ScaleJob, settings: Settings) -> tuple[str, ...]:
    """Return the keys that Slurm's words are on, with their files."""
    named = next((keys for pattern, keys in KEYS if re.search(pattern, words, re.IGNORECASE)), ("slurm", "node"))
    return tuple(place_of(key, job, settings) for key in named)


def _problem(
    keys: Sequence[str], words: str, jobs: Sequence[ScaleJob], settings: Settings, partitions: Partitions
) -> Problem:
    """Return the problem of jobs that Slurm refused in the same words, which are on the same keys."""
    job, scales = jobs[0], in_short([str(job.scale) for job in jobs], MOST_NAMES)
    request = " ".join(sbatch_options(jobs[-1], {}))
    if words == NOT_BEGUN and job.slurm.reservation:
        what = f"the reservation has not begun; the jobs of {scales} wait for it"
        return _Waiting(place_of("slurm.reservation", job, settings), what, request, next="nothing, if meant")
    allowed, guess = None, None
    if keys[0].endswith("slurm.partition"):
        allowed, guess = ", ".join(sorted(partitions)), did_you_mean(job.slurm.partition or "", partitions)
    if keys[0].endswith("slurm.qos"):
        choices = [name for partition in _of_job(job, partitions).values() for name in allowed_qos(partition)]
        allowed, guess = ", ".join(choices) or None, did_you_mean(job.slurm.qos or "", choices)
    advice = guess or f"change {'one of ' if len(keys) > 1 else ''}{', '.join(keys)}"
    look = YOURS if keys[0].endswith(("slurm.account", "slurm.qos")) else "sinfo --summarize"
    what = f"Slurm refuses the job{'s' if len(jobs) > 1 else ''} of {scales}: {words}"
    return Problem(keys[0], what, request, allowed, f"{advice} (see `{look}`)")


def allowed_qos(partition: Mapping[str, str]) -> tuple[str, ...]:
    """Return the QoS that a partition takes jobs of; empty if it takes those of all."""
    names = partition.get("AllowQos", "ALL")
    return () if names in ("ALL", "(null)", "N/A") else tuple(names.split(","))


def offered(jobs: Sequence[ScaleJob], partitions: Partitions, nodes: NodeEntries) -> list[Partition]:
    """Return what the nodes of these jobs' partitions offer, or those of the default one."""
    own = {name: partition for job in jobs for name, partition in _of_job(job, partitions).items()}
    return [shapes_of(partition, nodes) for partition in own.values()]


def _of_job(job: ScaleJob, partitions: Partitions) -> Partitions:
    """Return the job's partitions, as far as there are any; the default one if it names none."""
    default = ",".join(name for name, partition in partitions.items() if partition.get("Default") == "YES")
    names = (job.slurm.partition or default).split(",")
    return {name: partitions[name] for name in names if name in partitions}


def _of_nodes(jobs: Sequence[ScaleJob], settings: Settings, partitions: Partitions) -> dict[str, Problem]:
    """Return, by scale, why jobs find no nodes, as far as Slurm's list of nodes shows it."""
    try:
        nodes = read_nodes()
    except SlurmError:
        return {}
    offer, problems = offered(jobs, partitions, nodes), dict[str, Problem]()
    all_smaller = _smaller_nodes(jobs, settings, offer)
    for job in jobs:
        if problem := all_smaller or _too_few(job, settings, offered([job], partitions, nodes)):
            problems[str(job.scale)] = problem
    return problems


def _too_few(job: ScaleJob, settings: Settings, offer: Sequence[Partition]) -> Problem | None:
    """Return the problem of a job that wants more nodes than its partition has, or has now; None if neither is so."""
    if not offer:
        return None
    share = settings.site.node.replace(gpus=job.scale.gpus_per_node, cpus=job.cpus, memory_mb=job.memory_mb)
    suitable = [sum(n for shape, n in partition.shapes.items() if fits(share, shape)) for partition in offer]
    absent = [[name for name, shape in partition.down.items() if fits(share, shape)] for partition in offer]
    most, wanted, down = max(suitable), job.scale.nodes, list(dict.fromkeys(itertools.chain(*absent)))
    found = f"{NO_SUCH_NODES}; not up: {in_short(down, MOST_NAMES)}"
    if wanted > most:
        return Problem(
            place_of("scales", job, settings),
            f"Slurm refuses the job of {job.scale}: it wants {count(wanted, 'node')}",
            found=NO_SUCH_NODES,
            allowed=f"up to {count(most, 'such node')} ({'; '.join(partition.in_words for partition in offer)})",
            next=f"leave out {job.scale}, or change {place_of('slurm.partition', job, settings)}",
        )
    if all(n - len(names) < wanted for n, names in zip(suitable, absent, strict=True)):
        what = f"Slurm cannot start {job.scale} now; the job waits for nodes to come back"
        advice = "nothing, if they come back soon (`sinfo --list-reasons`); else a smaller scale"
        return _Waiting(place_of("scales", job, settings), what, found, next=advice)
    chosen = [f"slurm.{name}" for name in CHOOSE_NODES if getattr(job.slurm, name)]
    if chosen and down:
        what = f"Slurm cannot start {job.scale} now; whether nodes that are down would suffice is not known here"
        advice = f"compare {' and '.join(chosen)} with `sinfo --Node --long`; without enough such nodes it never starts"
        return _Waiting(place_of(chosen[0], job, settings), what, found, next=advice)
    return None


def _smaller_nodes(jobs: Sequence[ScaleJob], settings: Settings, offer: Sequence[Partition]) -> Problem | None:
    """Return one problem for all jobs if no node of their partitions is as large as `node` says, and its three keys."""
    node = settings.site.node
    usual = next((partition.usual for partition in offer if partition.shapes), None)
    if usual is None or any(fits(node, shape) for partition in offer for shape in partition.shapes):
        return None
    gpus = f"node.gpus: {usual.gpus}, node.gres: {usual.gres}" if usual.gpus else "node.device: cpu, node.gres: null"
    scales = in_short([str(job.scale) for job in jobs], MOST_NAMES)
    return Problem(
        f"{settings.site.file}: node",
        f"no node is as large as described here; Slurm refuses the jobs of {scales}: {NO_SUCH_NODES}",
        found=node_in_words(node),
        allowed="; ".join(partition.in_words for partition in offer),
        next=f"set {gpus}, node.cpus: {usual.cpus} or less, node.memory_mb: {usual.memory_mb} or less, or change "
        "slurm.partition; `snakemake new_site` drafts the file from what Slurm says",
    )


def node_in_words(node: Node) -> str:
    """Return the keys of a node that Slurm compares with what it has."""
    return ", ".join(f"node.{key}: {getattr(node, key) or 'null'}" for key in ("gpus", "gres", "cpus", "memory_mb"))


def fits(node: Node, shape: Shape) -> bool:
    """Return True if a node of this shape has what `node` describes."""
    gpus = node.gres is None or (node.gpus <= shape.gpus and node.gres in ("gpu", shape.gres))
    return gpus and node.cpus <= shape.cpus and (node.memory_mb or 0) <= shape.memory_mb


def place_of(key: str, job: ScaleJob, settings: Settings) -> str:
    """Return the file and key that set a value of this job: a stage's own `slurm` goes before the site's."""
    experiment, name = settings.experiment, key.removeprefix("slurm.")
    if job.stage in (PRODUCTION, REHEARSAL):
        if key in ("scales", "runtime"):
            return f"{experiment.file}: {f'{PRODUCTION}.scale' if key == 'scales' else runtime_key(job.stage)}"
        if getattr(experiment.production.slurm, name, None):
            return f"{experiment.file}: {PRODUCTION}.{key}"
    if key in ("scales", "runtime"):
        return f"{experiment.file}: stages.{job.stage}.{key}"
    for stage in experiment.ladder:
        if stage.name == job.stage and key.startswith("slurm.") and getattr(stage.slurm, name):
            return f"{experiment.file}: stages.{stage.name}.{key}"
    return f"{settings.site.file}: {key}"


def _of_partition(job: ScaleJob, settings: Settings, partitions: Partitions) -> Iterator[Problem]:
    """Yield what --test-only does not tell of a job's partition: its time limit, and that it is closed."""
    those = _of_job(job, partitions)
    limits_s, names = [seconds(partition.get("MaxTime", "")) for partition in those.values()], ", ".join(those)
    most = None if None in limits_s or not limits_s else int(max(filter(None, limits_s)) / 60)
    if most is not None and job.runtime_min > most:
        yield Problem(
            place_of("runtime", job, settings),
            f"longer than the partition {names} allows",
            f"{job.runtime_min} min",
            f"up to {most} min",
            f"set runtime: {most} or less, or change {place_of('slurm.partition', job, settings)}",
        )
    if those and all(partition.get("State") == "DOWN" for partition in those.values()):
        what = f"the partition {names} starts no jobs now"
        advice = "choose another partition, or wait until the site has opened it"
        yield _Waiting(place_of("slurm.partition", job, settings), what, "state DOWN", next=advice)
