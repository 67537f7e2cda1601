"""The record: the versioned JSON of a run. Everything downstream reads records; nothing reads logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddp_ladder.common.files import read_json, write_json
from ddp_ladder.common.formats import count
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.schemas import first_error

SCHEMA_VERSION = 1

Source = Literal["counted", "samples_per_step", "metrics", "log"]
"""Source of the throughput: samples counted at the loader; steps timed, with their samples set in the configuration;
steps and samples reported by the program itself; read from its log."""

Statistic = Literal["median of blocks", "samples / time"]
MEDIAN_OF_BLOCKS: Statistic = "median of blocks"
SAMPLES_PER_TIME: Statistic = "samples / time"
"""Statistic of rate and step time: the median over the blocks of a run, or all samples / all time."""


@dataclass(frozen=True)
class Job:
    """The job of a run, the number of the attempt (from 1), and the id of this attempt."""

    id: str
    attempt: int
    run_id: str  # random: every process of the attempt writes it into its file


@dataclass(frozen=True)
class World:
    """The process group as the ranks saw it; None if no rank reported it, or they disagree."""

    size: int | None
    backend: str | None
    nodes: tuple[str, ...]  # by node rank; equal names: simulated on one machine
    hosts: tuple[str, ...]  # in the order of the ranks

    @property
    def simulated(self) -> str | None:
        """Return ``simulated nodes: 2 agents on 1 host``; None if each node is a host of its own."""
        if len(set(self.nodes)) == len(self.nodes):
            return None
        return f"simulated nodes: {len(self.nodes)} agents on {count(len(set(self.nodes)), 'host')}"


@dataclass(frozen=True)
class Rank:
    """One process of the group. Times in seconds, memory in bytes."""

    rank: int
    local_rank: int
    node_rank: int | None  # None: started without a launcher
    host: str
    pid: int
    device: Mapping[str, Any]  # kind, index, name, id
    exit_code: int
    ended_by: str
    steps: int
    samples: int
    padding_samples: int
    step_time_s: float | None  # median of the measured steps
    data_wait_fraction: float | None
    startup_s: Mapping[str, float | None]
    peak_memory_bytes: Mapping[str, int | None]
    parameters: Mapping[str, Any] | None  # count, bytes, checksum
    csv_sha256: str


@dataclass(frozen=True)
class Throughput:
    """Samples per second that all ranks really consumed, with the 95 % interval of the statistic."""

    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    samples_per_s_total: float  # all measured samples / all measured time
    samples_per_s_end_to_end: float | None  # after the first step, with validation, checkpoints and clean-up
    blocks_samples_per_s: tuple[float, ...]
    source: Source = "counted"
    statistic: Statistic = MEDIAN_OF_BLOCKS  # of the rate and of the step time


@dataclass(frozen=True)
class Timing:
    """Times of a run in seconds; fractions are of the step time."""

    warmup_steps: int
    warmup_stable: bool | None  # step times were steady after it; None: not checked
    measured_steps: int
    step_time_s: float
    step_time_s_low: float
    step_time_s_high: float
    step_time_s_p5: float  # of single steps, each on its slowest rank
    step_time_s_p95: float
    blocks_step_time_s: tuple[float, ...]
    blocks_steps: tuple[int, ...]
    block_variation: float  # standard deviation / mean of the blocks' step times
    drift_fraction: float | None  # last third of the blocks against the first; above 0: it got slower
    rank_step_time_s_min: float
    rank_step_time_s_max: float
    straggler_fraction: float | None  # None: not measured
    data_wait_fraction: float | None
    exposed_comm_fraction: float | None
    startup_s: float | None
    wall_s: float


@dataclass(frozen=True)
class Check:
    """One sanity check of one run."""

    name: str
    ok: bool
    measured: str
    wanted: str


@dataclass(frozen=True)
class Remark:
    """A fact that a reader of the figures should know, and that does not close a gate."""

    name: str
    what: str
    next: str


@dataclass(frozen=True)
class Failure:
    """A failure: what went wrong, why, and what to do next."""

    verdict: str
    why: str
    next: str


@dataclass(frozen=True)
class Record:
    """One run: variant x mode x scale x repeat."""

    status: Literal["ok", "failed"]
    spec: RunSpec
    spec_hash: str
    job: Job | None  # None: the run was not started
    world: World
    ranks: tuple[Rank, ...]
    throughput: Throughput | None
    timing: Timing | None
    fingerprint: Mapping[str, Any]
    checks: tuple[Check, ...]
    failure: Failure | None
    remarks: tuple[Remark, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Build from JSON. Raises ValueError, naming the place, if it does not fit the schema."""
        wrong = first_error("record", data)
        if wrong:
            raise ValueError(f"not a record of version {SCHEMA_VERSION}: {wrong}")
        try:
            spec = RunSpec.from_json(data["spec"])
        except TypeError as problem:
            raise ValueError(f"not a record of version {SCHEMA_VERSION}: spec: {problem}") from None
        throughput, timing, job = data["throughput"], data["timing"], data["job"]
        return cls(
            status=data["status"],
            spec=spec,
            spec_hash=data["spec_hash"],
            job=Job(**job) if job else None,
            world=World(**{**data["world"], **{key: tuple(data["world"][key]) for key in ("nodes", "hosts")}}),
            ranks=tuple(Rank(**rank) for rank in data["ranks"]),
            throughput=_with_tuples(Throughput, throughput, "blocks_samples_per_s"),
            timing=_with_tuples(Timing, timing, "blocks_step_time_s", "blocks_steps"),
            fingerprint=data["fingerprint"],
            checks=tuple(Check(**check) for check in data["checks"]),
            failure=Failure(**data["failure"]) if data["failure"] else None,
            remarks=tuple(Remark(**remark) for remark in data["remarks"]),
            schema_version=data["schema_version"],
        )


def _with_tuples(kind: type, data: Mapping[str, Any] | None, *keys: str) -> Any:
    return kind(**{**data, **{key: tuple(data[key]) for key in keys}}) if data else None


def read_record(path: Path) -> Record:
    """Read record.json. Raises OSError or ValueError naming the file."""
    try:
        return Record.from_json(read_json(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_record(path: Path, record: Record) -> None:
    """Write record.json, atomically."""
    write_json(path, record.to_json())
