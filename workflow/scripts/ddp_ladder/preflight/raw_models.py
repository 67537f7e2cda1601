"""Models of the preflight's raw files: its settings, its end, and the file of each rank of the probe.

They are in results/preflight/<scale>/, with run.json and the agents' end records, which are those of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ddp_ladder.common.model import Model, Several
from ddp_ladder.records.raw_models import Count, Duration, Name, Positive, RawFile

PartEnd = Literal["finished", "time limit", "not started"]


class PreflightSettings(RawFile):
    """What the job asked of its preflight (settings.json)."""

    scale_job: Mapping[str, Any] = Field(description="The scale's job as in plan.json, without its runs.")
    timeout_s: float = Field(gt=0, description="Of each part.")
    largest_bytes: Positive = Field(description="Largest all-reduce.")


class PreflightEnd(RawFile):
    """End of a preflight (ended.json), written by its job."""

    host: Name
    started_at_s: float
    ended_at_s: float
    nodes: PartEnd = Field(description="End of the first part: the nodes and their network.")
    collectives: PartEnd = Field(description="End of the second part.")
    problem: Name | None = Field(None, description="Why a part could not be started.")
    next: str = ""


class ProbeDevice(Model):
    """The device of a rank. count: devices that it sees."""

    kind: Name
    index: Count | None
    name: str | None
    id: Name
    count: Count


class ProbeSeen(Model):
    """The ranks that one rank met: how many, a digest of their identities, and those of another job."""

    count: Positive
    digest: Name
    foreign: Several[str]
    misplaced: Several[str]


class ProbeSize(Model):
    """All-reduces of one size as one rank timed them: seconds of one, and results that were wrong, in words."""

    bytes: Positive
    iterations: Positive
    time_s: Duration
    wrong: Several[str]


class ProbePair(Model):
    """All-reduces over two nodes, by node rank, as one of their ranks timed them."""

    nodes: Annotated[tuple[Count, Count], Field(strict=False)]
    bytes: Positive
    iterations: Positive
    time_s: Duration


class ProbeRank(RawFile):
    """The file of one rank of the probe (ranks/rank<k>.json). step: how far it came; doing: what it does there."""

    rank: Count
    local_rank: Count
    node_rank: Count
    world_size: Positive
    node: Name
    host: Name
    pid: Positive
    cpus: Positive
    step: Positive
    doing: Name
    at_s: float
    error: str | None
    device: ProbeDevice | None = None
    versions: Mapping[str, str | None] | None = None
    multiplies: bool | None = Field(None, description="A matrix product on the device was right.")
    seen: ProbeSeen | None = None
    sizes: Several[ProbeSize] = ()
    pairs: Several[ProbePair] = ()
