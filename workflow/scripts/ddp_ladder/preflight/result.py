"""The result of a preflight: results/preflight/<scale>.json, with its figures and findings.

The scale's job writes it once; gates, report and the live view read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.files import read_json
from ddp_ladder.common.formats import DASH, duration, significant
from ddp_ladder.common.messages import Finding
from ddp_ladder.common.model import Count, Duration, Model, Name, Positive, Several, Version1
from ddp_ladder.records.raw_models import Job

SCHEMA_VERSION = 1
PREFLIGHT_FAILED = "the preflight failed"
Bandwidth = Annotated[float, Field(ge=0, description="GB/s (1e9 bytes), as nccl-tests defines it.")]


Kind = Literal["node", "link", "network", "software", "settings"]


class PreflightFinding(Finding):
    """Something that a preflight has found; its place is all its nodes in Slurm's short form, or empty."""

    kind: Kind | None = Field(
        default=None,
        description="What is at fault: these nodes themselves; the link between these two; the network between groups "
        "of nodes; the training's software; a setting. Null: it is not known.",
    )

    @property
    def is_hardware(self) -> bool:
        """Return True if other nodes in the place of these help."""
        return self.kind in ("node", "link") and self.place != ""


def error(measured: str, wanted: str, next_step: str, place: str = "", kind: Kind | None = None) -> PreflightFinding:
    """Return a finding that keeps the scale's runs from starting."""
    return PreflightFinding(severity="error", place=place, measured=measured, wanted=wanted, next=next_step, kind=kind)


def warning(measured: str, wanted: str, next_step: str, place: str = "", kind: Kind | None = None) -> PreflightFinding:
    """Return a finding that does not."""
    return error(measured, wanted, next_step, place, kind).replace(severity="warning")


class NodeRow(Model):
    """One node of a preflight."""

    node: Name
    gpus: str | None = Field(description="Number and names of the GPUs of its ranks; null without CUDA.")
    interface: str | None
    address: str | None
    cpus: Count | None = Field(description="CPUs that its job step may use.")


class SizeRow(Model):
    """All-reduces of one size over all ranks; the time is that of the slowest rank."""

    bytes: Positive
    time_s: Duration
    busbw_gb_per_s: Bandwidth


class PairRow(Model):
    """All-reduces over two nodes, neighbours but for checks, at the same time as other pairs; null: no time left."""

    nodes: Annotated[tuple[Name, Name], Field(strict=False)]
    bytes: Positive
    time_s: Duration | None
    busbw_gb_per_s: Bandwidth | None
    alone_busbw_gb_per_s: Bandwidth | None = Field(
        default=None, description="Of the slowest pairs, which were measured again while all others waited."
    )
    is_check: bool = Field(default=False, description="Of a node of a slow pair and a far one that is in none.")

    @property
    def is_tested(self) -> bool:
        return self.busbw_gb_per_s is not None


class PreflightResult(Model):
    """The preflight of one scale."""

    schema_version: Version1
    status: Literal["ok", "warned", "failed"] = Field(description="failed: no run of the scale was started.")
    scale: Name
    job: Job
    started_at_s: float
    took_s: Duration
    launcher: Name
    backend: Name
    transport: Several[str] = Field(description="What NCCL used, by its log: NET/IB, P2P/CUMEM, ...; empty with Gloo.")
    nodes: Several[NodeRow]
    sizes: Several[SizeRow]
    pairs: Several[PairRow]
    alpha_s: Duration | None = Field(description="An all-reduce of n bytes takes alpha_s + beta_s_per_byte * n.")
    beta_s_per_byte: Annotated[float, Field(ge=0)] | None
    findings: Several[PreflightFinding]
    matrix_tflop_per_s: Mapping[str, float] = Field(
        default={}, description="A rank's rate at products of large matrices, by precision: median over ranks."
    )

    @property
    def failure(self) -> PreflightFinding | None:
        """Return the first finding that keeps the runs from starting."""
        return next((finding for finding in self.findings if finding.severity == "error"), None)

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
        result = PreflightResult.from_json(data)
    except ValueError as error:
        raise ValueError(f"{path}: not a preflight of version {SCHEMA_VERSION}: {error}") from None
    if result.scale != path.stem:
        raise ValueError(f"{path} is of {result.scale}: it was copied here")
    return result


def result_of(results: Path, scale: object) -> PreflightResult | None:
    """Return the result of a scale's preflight; None if there is none. Raises OSError or ValueError naming the file."""
    file = result_file(results, scale)
    return read_result(file) if file.exists() or file.is_symlink() else None


def by_scale(results: Path, scales: Iterable[str]) -> tuple[dict[str, PreflightResult], tuple[str, ...]]:
    """Return the results of these scales, and a warning for each that cannot be read."""
    known, warnings = {}, []
    for scale in scales:
        try:
            if result := result_of(results, scale):
                known[scale] = result
        except (OSError, ValueError) as error:
            again = f"delete it; `snakemake preflight --config preflight_scale={scale}` writes it again"
            warnings.append(f"{result_file(results, scale)}: the preflight is left out: {error}. Next: {again}")
    return known, tuple(warnings)


# Texts


def outcome(result: PreflightResult) -> str:
    """Return ``preflight passed in 9 s: at most 21.3 GB/s bus bandwidth, NET/IB, 4 of 4 pairs of ...``."""
    words = {"ok": "passed", "warned": "passed with warnings", "failed": "FAILED"}[result.status]
    figures = ", ".join(_figures(result))
    return f"preflight {words} in {duration(result.took_s)}" + (f": {figures}" if figures else "")


def _figures(result: PreflightResult) -> Iterator[str]:
    if result.busbw_gb_per_s is not None:
        yield f"at most {bandwidth(result)} bus bandwidth"
    if result.alpha_s is not None:
        yield f"latency {latency(result)}"
    if result.transport:
        yield ", ".join(result.transport)
    if result.pairs:
        yield f"{pairs_tested(result)} pairs of neighbouring nodes tested"


def bandwidth(result: PreflightResult) -> str:
    """Return the best bus bandwidth; a dash if none was measured."""
    return DASH if result.busbw_gb_per_s is None else f"{significant(result.busbw_gb_per_s)} GB/s"


def latency(result: PreflightResult) -> str:
    """Return the latency of an all-reduce; a dash if none was measured."""
    return DASH if result.alpha_s is None else f"{significant(result.alpha_s * 1e6)} us"


def pairs_tested(result: PreflightResult) -> str:
    """Return ``64 of 64``; a dash if no pairs of nodes were to be tested. Each node has one with the next."""
    number = sum(pair.is_tested and not pair.is_check for pair in result.pairs)
    return f"{number} of {len(result.nodes)}" if result.pairs else DASH


def finding_line(finding: Finding) -> str:
    """Return a finding as one line."""
    return f"{finding.severity.upper()} {finding.in_words}; wanted {finding.wanted}; next: {finding.next}"
