"""The record: the versioned JSON of a run. Everything downstream reads records; nothing reads logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field

from ddp_ladder.common.files import read_json, write_atomically
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import count
from ddp_ladder.common.model import Count, Duration, Model, Name, Positive, Several, Version3
from ddp_ladder.nodes.critical_rank import StepParts
from ddp_ladder.nodes.usage import Usage
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.raw_models import (
    Ddp,
    Flops,
    Job,
    Parameters,
    RankFingerprint,
    RankSaves,
    RankSummary,
    Sha256,
    Source,
    Witnessed,
)

Rate = Annotated[float, Field(ge=0)]  # samples per second; 0 if the loop drew no batch (the run has failed)

SCHEMA_VERSION = 3

Statistic = Literal["median of blocks", "samples / time"]
MEDIAN_OF_BLOCKS: Statistic = "median of blocks"
SAMPLES_PER_TIME: Statistic = "samples / time"
"""Statistic of rate and step time: the median over the blocks of a run, or all samples / all time."""

STRONGEST: Source = "counted"
SOURCE_IN_WORDS: Mapping[Source, str] = {
    "counted": "samples counted at the loader, steps timed",
    "samples_per_step": "steps timed, but their samples are what workload.samples_per_step says",
    "metrics": "samples and times are what the program wrote to DDP_LADDER_METRICS",
    "log": "the throughput is what the program printed (workload.throughput_regex)",
    "guessed": "steps timed, but how many samples a batch has is a guess (workload.samples_per_step sets the number)",
}
"""The sources of a throughput, from the strongest to the weakest."""


def weakest(sources: Iterable[str]) -> Source:
    """Return the weakest of the ranks' sources; one that is unknown counts as the strongest."""
    named = set(sources)
    return next((source for source in reversed([*SOURCE_IN_WORDS]) if source in named), STRONGEST)


class Head(Model):
    """The node that the ranks of a run meet at: that of rank 0."""

    node: Name
    address: Name
    interface: Name | None  # None if its agent left no end record, or found none


class World(Model):
    """The process group as the ranks saw it; null if no rank reported it, or they disagree."""

    size: Positive | None
    backend: str | None
    nodes: Several[str]  # node names in the order of their ranks; equal if simulated
    hosts: Several[str]  # host names in the order of the ranks
    head: Head | None = None

    @property
    def simulated(self) -> str | None:
        """Return ``simulated nodes: 2 agents on 1 host``; None if each node is a host of its own."""
        if len(set(self.nodes)) == len(self.nodes):
            return None
        return f"simulated nodes: {len(self.nodes)} agents on {count(len(set(self.nodes)), 'host')}"


class Rank(RankSummary):
    """One process of the group: what it left in its end record, and the sums of its steps."""

    steps: Count
    samples: Count
    padding_samples: Count  # drawn and not counted: the sampler's padding, what collate_fn left out
    step_time_s: Duration | None  # median of the measured steps
    data_wait_fraction: Annotated[float, Field(ge=0)] | None
    parameters: Parameters | None
    ddp: Ddp | None = None  # None if DDP reported no times


class Saves(RankSaves):
    """The saves of the rank that was in them for longest; bytes: of all ranks."""

    rank: Count


class Throughput(Model):
    """Samples per second that all ranks really consumed, with the 95 % interval of the statistic."""

    samples_per_s: Rate
    samples_per_s_low: Rate
    samples_per_s_high: Rate
    samples_per_s_total: Rate  # all measured samples / all measured time
    samples_per_s_end_to_end: Rate | None = None  # from the first step's end to the script's end, with validation
    blocks_samples_per_s: Several[Rate] = Field(min_length=1)
    source: Source
    statistic: Statistic  # of rate and step time; samples / time if slow steps recur that the median would hide


class Timing(Model):
    """Times after the warm-up in seconds; fractions are of the step time."""

    warmup_steps: Count  # first steps that were left out
    warmup_stable: bool | None = None  # step times were steady after it; None if not checked (log)
    measured_steps: Positive
    step_time_s: Duration
    step_time_s_p5: Duration  # 5th percentile of single steps, each on its slowest rank
    step_time_s_p95: Duration
    blocks_step_time_s: Several[Duration] = Field(min_length=1)
    blocks_steps: Several[Positive] = Field(min_length=1)  # number of steps of each block
    drift_fraction: float | None  # median step time of the last third of 3 or more blocks / of the first, minus 1
    data_wait_fraction: Annotated[float, Field(ge=0)] | None = None
    # Of a step, on its critical rank. Of each rank by itself if DDP timed few steps of all together: it may exceed 1.
    exposed_comm_fraction: Annotated[float, Field(ge=0)] | None = None
    startup_s: Duration | None = None  # launcher start to the end of the first step
    wall_s: Duration


class Evidence(Model):
    """A line that a process of the run printed, verbatim; a long one is cut."""

    speaker: Name = Field(description="Rank, agent, torchrun, srun, slurm or NCCL, with its host if it is known.")
    line: str


class Memory(NamedTuple):
    """The memory of one rank."""

    peak_bytes: int
    limit_bytes: int | None  # what it can have; None if it is not known

    @property
    def headroom_fraction(self) -> float | None:
        """Return the part of the limit that was never used; None without a limit."""
        return 1 - self.peak_bytes / self.limit_bytes if self.limit_bytes else None


LeftOut = Literal["preflight failed", "variant stopped", "no time", "no nodes", "no batch"]
CutShort = Literal["time limit", "saved state", "interrupted", "job killed"]
FailureKind = Literal[
    LeftOut,
    CutShort,
    "out of memory",
    "probably out of memory",
    "killed",
    "too few steps",
    "rendezvous port taken",
    "files deleted",
]
LEFT_OUT: tuple[LeftOut, ...] = get_args(LeftOut)
"""Why a run was not started."""
CUT_SHORT: tuple[CutShort, ...] = get_args(CutShort)
"""Ends that do not show whether the script can run."""


class Failure(Model):
    """A failure: what went wrong, why, and what to do next."""

    kind: FailureKind | None = Field(
        default=None, description="What code may depend on, beside the texts; null if nothing does, or if unknown."
    )
    verdict: Name
    why: str
    next: str = Field(description="What to do; several steps are lines.")
    rank: Count | None = Field(default=None, description="The rank that failed; null if it is none, or unknown.")
    node: Name | None = Field(default=None, description="Host name of the node that failed.")
    at_s: float | None = Field(default=None, description="Unix time of the failure, by the clock of the node.")
    evidence: Several[Evidence] = Field(default=(), description="The lines that show the cause.")

    @property
    def place(self) -> str:
        """Return ``rank 1 on node7``; empty if neither is known."""
        rank = None if self.rank is None else f"rank {self.rank}"
        return " on ".join(part for part in (rank, self.node) if part)

    @property
    def placed(self) -> str:
        """Return ``CUDA out of memory (rank 1 on node7)``."""
        return f"{self.verdict} ({self.place})" if self.place else self.verdict

    @property
    def in_words(self) -> str:
        """Return ``CUDA out of memory (rank 1 on node7): tried to allocate 2 GiB``: the verdict is not told twice."""
        if self.why.startswith(self.verdict):
            return self.why
        return f"{self.verdict if self.why.startswith('rank ') else self.placed}: {self.why}"

    @property
    def quoted(self) -> tuple[str, ...]:
        """Return the lines that show the cause, each with its speaker, without those that ``why`` has already."""
        return tuple(f"{line.speaker}: {line.line}" for line in self.evidence if line.line not in self.why)


class Fingerprint(RankFingerprint):
    """Rank 0's, with what all ranks, the nodes and the job know. unread: on any rank."""

    batch_varies: Several[Count] | None = None  # smallest and largest batch of a step, if most differ from the usual
    git_commit: str | None = None  # of the repository that tracks the script
    git_dirty: bool | None = None  # tracked files differed from it
    passes: Positive | None = None  # over the training data
    dataset_size: Count | None = None  # samples of the whole training data
    tokens_per_sample: Positive | None = None  # the same in all batches of all ranks, padding included
    goes_on: bool = False  # an earlier attempt did a part of the training
    global_batch: Count | None = None  # samples of a step of all ranks; None: unknown on one of them
    gradient_bytes: Count | None = None  # of a rank, that DistributedDataParallel reduces in a step
    bucket_bytes: Several[Count] | None = None  # the same, of each bucket
    comm_hook: str | None = None  # of DistributedDataParallel
    exchanges: Count | None = None  # of the gradients in a step
    cpu_sets: Several[str] = ()  # distinct ones of the ranks
    driver: str | None = None  # of the GPUs that were used
    power_limit_w: Several[float] | None = None  # distinct ones of these GPUs


class Record(Model):
    """One run (variant x mode x scale x repeat). Written by assemble, read by gates and report."""

    status: Literal["ok", "failed"]  # ok: it ran to its end and every check held; failed: see failure
    spec: RunSpec
    spec_hash: Sha256  # SHA-256 of the spec in canonical JSON, as passed to the job
    job: Job | None  # the job that made the run; None if it was not started
    world: World
    ranks: Several[Rank]  # one entry per process that left an end record
    throughput: Throughput | None  # None if no step was measured
    timing: Timing | None  # None if no step was measured
    fingerprint: Fingerprint
    checks: Several[Finding]  # sanity checks of this run
    failure: Failure | None  # None for a good run
    remarks: Several[Finding]  # what a reader of the figures should know, although it may be intended
    step: StepParts | None = None  # None if the ranks did not time the same steps
    files: Mapping[str, Sha256 | Literal[""]] = {}  # of the raw files, by path below the run; empty: unreadable
    flops: Flops | None = None  # at the first scale; None if they were not to be counted
    usage: Usage | None = None  # None if the nodes were not sampled
    rules: Count = 0  # version of the rules that judged the ranks' logs; 0: a rank kept no log
    saves: Saves | None = None  # None if they are not known of every rank
    witness: Witnessed | None = None  # None: it can have none, or an earlier version made the run
    owners_s: Mapping[str, Duration] = {}  # of the slowest rank's seconds; empty if the ends of steps are not known
    schema_version: Version3

    @property
    def memory(self) -> Memory | None:
        """Return the memory of the rank that used the most; None if none is known."""
        return max((Memory(*known) for rank in self.ranks if (known := rank.memory_bytes)), default=None)


def read_record(path: Path) -> Record:
    """Read record.json. Raises OSError or ValueError naming the file."""
    data = read_json(path)
    try:
        return Record.from_json(data)
    except ValueError as error:
        raise ValueError(f"{path}: not a record of version {SCHEMA_VERSION}: {error}") from None


def write_record(path: Path, record: Record) -> None:
    """Write record.json, atomically."""
    write_atomically(path, record.model_dump_json(indent=2) + "\n")
