"""The result of a preflight: results/preflight/<scale>.json, with its figures and findings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.files import read_json
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.records.raw_models import Count, Duration, Job, Name, Positive

SCHEMA_VERSION = 1
Bandwidth = Annotated[float, Field(ge=0, description="GB/s (1e9 bytes), as nccl-tests defines it.")]


class NodeRow(Model):
    """One node of a preflight."""

    node: Name
    gpus: Several[str] = Field(description="Names of the GPUs of its ranks; empty without CUDA.")
    interface: str | None
    address: str | None
    mtu: int | None
    cpus: Count | None = Field(description="CPUs that its job step may use.")


class SizeRow(Model):
    """All-reduces of one size over all ranks; the time is that of the slowest rank."""

    bytes: Positive
    iterations: Positive
    time_s: Duration
    algbw_gb_per_s: Bandwidth
    busbw_gb_per_s: Bandwidth


class PairRow(Model):
    """All-reduces over two nodes."""

    nodes: Annotated[tuple[Name, Name], Field(strict=False)]
    bytes: Positive
    time_s: Duration
    busbw_gb_per_s: Bandwidth


class PartRow(Model):
    """A launch on a part of the nodes, after one on all of them had failed. ok: its ranks came to their end."""

    nodes: Several[Name]
    ok: bool


class PreflightResult(Model):
    """The preflight of one scale. Written by assemble_preflight, read by gates and report."""

    schema_version: Version1
    status: Literal["ok", "warned", "failed"] = Field(description="failed: no run of the scale was started.")
    scale: Name
    job: Job
    started_at_s: float
    took_s: Duration
    launcher: Name
    backend: Name
    transport_wanted: Name
    transport: Several[str] = Field(description="What NCCL used, by its log: NET/IB, P2P/CUMEM, ...; empty with Gloo.")
    versions: Mapping[str, str | None] = Field(description="torch, cuda and nccl of rank 0.")
    nodes: Several[NodeRow]
    sizes: Several[SizeRow]
    pairs: Several[PairRow]
    parts: Several[PartRow] = ()
    alpha_s: Duration | None = Field(description="An all-reduce of n bytes takes alpha_s + beta_s_per_byte * n.")
    beta_s_per_byte: Annotated[float, Field(ge=0)] | None
    findings: Several[PreflightFinding]

    @property
    def failure(self) -> PreflightFinding | None:
        """Return the first finding that keeps the runs from starting."""
        return next((one for one in self.findings if one.level == "fail"), None)

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Return the highest bus bandwidth of all sizes."""
        return max((row.busbw_gb_per_s for row in self.sizes), default=None)


def result_file(results: Path, scale: object) -> Path:
    """Return the path of the result of a scale's preflight."""
    return results / "preflight" / f"{scale}.json"


def read_result(path: Path) -> PreflightResult:
    """Read a result. Raises OSError or ValueError naming the file."""
    data = read_json(path)
    try:
        return PreflightResult.from_json(data)
    except ValueError as error:
        raise ValueError(f"{path}: not a preflight of version {SCHEMA_VERSION}: {error}") from None
