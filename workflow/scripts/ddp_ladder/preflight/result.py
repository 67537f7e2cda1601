"""The result of a preflight: results/preflight/<scale>.json, with its figures and findings, and where a fault is.

The scale's job writes it once; gates, report and the live view read it. Nodes that failed one are listed in
results/bad_nodes.json, and further jobs leave them out (slurm.replace_bad_node).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.files import read_json, readable, write_json
from ddp_ladder.common.findings import Finding, PreflightKind, deciding
from ddp_ladder.common.formats import DASH, duration, grouped, hostlist, in_short, significant
from ddp_ladder.common.model import Count, Duration, Model, Name, Positive, Several, Version1
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.records.raw_models import Job
from ddp_ladder.slurm.query import host_names

Link = tuple[int, int]  # the lower node first
MOST_GROUPS = 8  # that a network is cut into; more of them are made by links
MOST_NODES, SHARE = 16, 4  # more nodes than these, or than this part of all, do not break at the same time


@dataclass(frozen=True)
class Location:
    """What is wrong."""

    nodes: tuple[int, ...] = ()  # no link of these works
    links: tuple[Link, ...] = ()  # both of its nodes work
    groups: tuple[tuple[int, ...], ...] = ()  # of nodes between which no link works


def most_at_once(nodes: int) -> int:
    """Return how many of so many nodes may be broken, each by itself; more have a cause in common."""
    return max(1, min(MOST_NODES, nodes // SHARE))


def locate(links: Mapping[Link, bool | None]) -> Location:
    """Return the cause. links: whether each works; None: not tested.

    A node is a cause if none of its links works: each that has a link to a node with another one that works, and of the
    others the one with most links first. Of a single link that does not work, either node may be the cause.
    """
    failed = [link for link, works in links.items() if works is False]
    sound = {node for link, works in links.items() if works is not False for node in link}
    ends: dict[int, set[int]] = {}  # of links that are not explained
    for a, b in failed:
        ends.setdefault(a, set()).add(b)
        ends.setdefault(b, set()).add(a)
    nodes: list[int] = []

    def blame(node: int) -> None:
        nodes.append(node)
        for other in ends.pop(node):
            ends[other].discard(node)
            if other not in sound:
                heapq.heappush(order, (-len(ends[other]), other))

    order: list[tuple[int, int]] = []
    for node in [node for node in ends if node not in sound and ends[node] & sound]:
        blame(node)
    order = [(-len(others), node) for node, others in ends.items() if node not in sound]
    heapq.heapify(order)
    while order:
        number, node = heapq.heappop(order)
        if number < -1 and len(ends.get(node, ())) == -number:
            blame(node)
    left = [(a, b) for a, b in failed if a in ends and b in ends]
    group_of = _groups(links)
    between = [link for link in left if group_of[link[0]] != group_of[link[1]]]
    apart = {group_of[node] for link in between for node in link}
    if len(between) < 2 or len(apart) > MOST_GROUPS:  # a ring that is cut has two, if no node is a cause beside one
        return Location(tuple(sorted(nodes)), tuple(sorted(left)))
    return Location(tuple(sorted(nodes)), tuple(sorted({*left} - {*between})), _apart(group_of, between))


def _apart(group_of: Mapping[int, int], between: Sequence[Link]) -> tuple[tuple[int, ...], ...]:
    """Return the groups between which links do not work, those as one between which none was tested."""
    ends = [(group_of[a], group_of[b]) for a, b in between]
    others = grouped((one, other) for a, b in ends for one, other in ((a, b), (b, a)))
    members = grouped((group, node) for node, group in sorted(group_of.items()) if group in others)
    number: dict[int, int] = {}
    for group in sorted(members, key=lambda each: -len(members[each])):
        taken = {number.get(other) for other in others[group]}
        number[group] = next(k for k in range(len(taken) + 1) if k not in taken)
    united = grouped((number[group], node) for group, several in members.items() for node in several)
    return tuple(tuple(sorted(united[k])) for k in sorted(united))


def _groups(links: Mapping[Link, bool | None]) -> dict[int, int]:
    """Return a node of its group for each: links that work, or were not tested, connect the nodes of a group."""
    first = {node: node for link in links for node in link}

    def of(node: int) -> int:
        while first[node] != node:
            first[node] = node = first[first[node]]
        return node

    for (a, b), works in links.items():
        if works is not False:
            first[of(a)] = of(b)
    return {node: of(node) for node in first}


SCHEMA_VERSION = 1
PREFLIGHT_FAILED = "the preflight failed"
Bandwidth = Annotated[float, Field(ge=0, description="GB/s (1e9 bytes), as nccl-tests defines it.")]


def error(
    measured: str, wanted: str, next_step: str, place: str = "", kind: PreflightKind = "cause unknown"
) -> Finding:
    """Return a finding that keeps the scale's runs from starting. place: its nodes in Slurm's short form, or empty."""
    return Finding(severity="error", place=place, measured=measured, wanted=wanted, next=next_step, kind=kind)


def warning(
    measured: str, wanted: str, next_step: str, place: str = "", kind: PreflightKind = "cause unknown"
) -> Finding:
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
    findings: Several[Finding]
    matrix_tflop_per_s: Mapping[str, float] = Field(
        default={}, description="A rank's rate at products of large matrices, by precision: median over ranks."
    )

    @property
    def failure(self) -> Finding | None:
        """Return the first finding that keeps the runs from starting."""
        return deciding(self.findings)

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


SUPPORT = "tell the site's support; once it is repaired, delete it from {file}"


class BadNode(Model):
    """The nodes of a job that are broken, and what its preflight found on them."""

    node: Name = Field(description="One, or several in Slurm's short form.")
    scale: Name
    job: Name
    at: Name = Field(description="UTC.")
    findings: Several[Finding]

    @property
    def in_words(self) -> str:
        """Return ``node7 failed the preflight of job 12: it left no answer``."""
        what = in_short([finding.measured for finding in self.findings], separator="; ")
        return f"{self.node} failed the preflight of job {self.job}: {what}"


class BadNodes(Model):
    """The file."""

    schema_version: Version1
    nodes: Several[BadNode]


def bad_nodes_file(results: Path) -> Path:
    """Return the path of the list."""
    return results / "bad_nodes.json"


def bad_nodes(results: Path) -> tuple[BadNode, ...]:
    """Return the nodes that failed, in the order of their jobs; none if the list is damaged: they are tested again."""
    file = readable(BadNodes, bad_nodes_file(results))
    return file.nodes if file is not None else ()


def is_of_hardware(finding: Finding) -> bool:
    """Return True if other nodes in the place of these help."""
    return finding.kind in ("node", "link") and finding.place != ""


def found_bad(results: Path, job: ScaleJob, job_id: str, nodes: str) -> BadNode | None:
    """Return the broken nodes that alone keep this job's runs from starting.

    None if anything else does, or if so many at once have another cause. A node that slurm.nodelist asks for cannot be
    left out.

    nodes: of the job, in Slurm's short form. Raises OSError or ValueError naming the preflight's file.
    """
    result = result_of(results, job.scale)
    if result is None or result.job.id != job_id:
        return None
    errors = tuple(finding for finding in result.findings if finding.severity == "error")
    bad = dict.fromkeys(name for finding in errors for name in host_names(finding.place))
    if not errors or not all(is_of_hardware(finding) for finding in errors) or job.slurm.nodelist:
        return None
    if job.scale.nodes < 2 or len(bad) > most_at_once(job.scale.nodes) or not {*bad} <= {*host_names(nodes)}:
        return None
    at = datetime.fromtimestamp(result.started_at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return BadNode(node=hostlist(bad), scale=result.scale, job=job_id, at=at, findings=errors)


def add_bad_node(results: Path, bad: BadNode) -> None:
    """Add a node to the list. Raises NotWritten."""
    listed = BadNodes(schema_version=1, nodes=(*bad_nodes(results), bad))
    write_json(bad_nodes_file(results), listed.model_dump())


def listed_bad_node(
    results: Path, job: ScaleJob, job_id: str, nodes: str, say: Callable[[str], None], then: str
) -> bool:
    """Return True if bad nodes kept this job's runs from starting, and may be replaced; they are listed and named then.

    nodes: as in found_bad. say: prints a line for the user. then: what follows, with {node}.
    """
    if not job.slurm.replace_bad_node:
        return False
    try:
        if (bad := found_bad(results, job, job_id, nodes)) is None:
            return False
        add_bad_node(results, bad)
    except (OSError, ValueError) as error:
        say(f"{job.stage} {job.scale}: no node is replaced: {error}")
        return False
    listed = f"it is listed for the site's support in {bad_nodes_file(results)}"
    say(f"{job.stage} {job.scale}: {bad.in_words}; {listed}; {then.format(node=bad.node)}")
    return True


def left_out(job: ScaleJob, results: Path) -> tuple[BadNode, ...]:
    """Return the listed nodes if the job is submitted without them: if slurm.replace_bad_node is set."""
    return bad_nodes(results) if job.slurm.replace_bad_node and not job.slurm.nodelist else ()


def without_bad_nodes(job: ScaleJob, results: Path) -> ScaleJob:
    """Return the job with the nodes that it leaves out in slurm.exclude."""
    known = [bad.node for bad in left_out(job, results)]
    excluded = ",".join(dict.fromkeys(filter(None, [job.slurm.exclude, *known])))
    return replace(job, slurm=job.slurm.replace(exclude=excluded)) if known else job
