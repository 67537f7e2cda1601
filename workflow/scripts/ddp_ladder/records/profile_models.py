"""Models of a profile: what torch.profiler saw in the steps after the measured ones. Times in seconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ddp_ladder.common.model import Model, Several
from ddp_ladder.plan.raw_file import RawFile

Seconds = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class ProfileParts(Model):
    """Parts of all profiled steps, which add up to them. On a CPU, operators are the kernels."""

    kernels_s: Seconds
    communication_s: Seconds = Field(description="Without what kernels (on a CPU: operators and copies) hide.")
    copies_s: Seconds = Field(description="On a GPU, only what neither kernels nor communication hide.")
    gaps_s: Seconds = Field(description="Nothing of these runs, and the host is in an operator or a CUDA call.")
    python_s: Seconds = Field(description="Nothing of these runs, and the host is in neither.")


class LongOperation(Model):
    """Kernels or operators of one name. time_s: of all calls; of an operator without those inside it."""

    name: Name
    calls: int = Field(ge=1)
    time_s: Seconds
    communication: bool = False


class TraceFile(Model):
    """The trace, compressed, in the Chrome format that Perfetto opens; in ranks/."""

    file: Name
    bytes: int = Field(ge=1)


class ProfileTable(Model):
    """What the profiled steps of a rank spent their time on."""

    on_cuda: bool
    steps_s: Several[Seconds] = Field(min_length=1)
    parts_s: ProfileParts
    communication_total_s: Seconds = Field(description="With what is hidden.")
    longest: Several[LongOperation]
    trace: TraceFile


class ProfileFile(RawFile):
    """ranks/rank<k>.profile.json, written by the instrument after the rank's end record."""

    rank: int = Field(ge=0)
    problem: str | None = Field(description="Why there is no table.")
    took_s: Seconds = Field(description="What the run took longer: the profiled steps, and writing their trace.")
    table: ProfileTable | None


class RankProfile(Model):
    """The profile of one rank."""

    rank: int = Field(ge=0)
    slowest: bool = Field(description="Its own work in the measured steps, without its wait for gradients, is longest.")
    table: ProfileTable


class Profile(Model):
    """The profiles of rank 0 and of the slowest rank, which may be the same."""

    ranks: Several[RankProfile]
    problem: str | None = Field(description="Why not both are there.")
