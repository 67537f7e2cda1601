"""Assemble the result of a preflight from its raw files. Pure: the same files always give the same result.

A gate assembles it again and compares; an edited result is therefore noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ddp_ladder.plan.file import job_from_json
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.preflight import bandwidth, collective_findings
from ddp_ladder.preflight.directory import PreflightDirectory, RawPreflight, keyed, read_preflight
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.node_findings import findings as node_findings
from ddp_ladder.preflight.result import SCHEMA_VERSION, NodeRow, PreflightResult, read_result, result_file
from ddp_ladder.preflight.transport import transports
from ddp_ladder.preflight.unfinished import unfinished


def assemble_preflight(directory: PreflightDirectory) -> PreflightResult:
    """Read the directory of a preflight and build its result. Raises OSError or ValueError if its job's files miss."""
    raw = read_preflight(directory)
    spec, job = raw.run.spec, job_from_json({**raw.settings.scale_job, "runs": []})
    ranks = [raw.ranks[k] for k in sorted(raw.ranks)]
    complete = len(ranks) == spec.world_size
    sizes = bandwidth.size_rows(ranks) if complete and spec.world_size > 1 else ()
    pairs = bandwidth.pair_rows(ranks, raw.nodes)
    fitted = bandwidth.fit(sizes)
    used = transports(raw.nccl_logs)
    found = tuple(_findings(raw, spec, job, sizes, pairs, used))
    levels = {finding.level for finding in found}
    return PreflightResult(
        schema_version=SCHEMA_VERSION,
        status="failed" if "fail" in levels else "warned" if levels else "ok",
        scale=str(spec.scale),
        job=raw.run.job,
        started_at_s=raw.ended.started_at_s,
        took_s=max(0.0, raw.ended.ended_at_s - raw.ended.started_at_s),
        launcher=spec.launcher,
        backend=spec.backend,
        transport_wanted=job.preflight.transport,
        transport=used,
        versions=(ranks[0].versions if ranks else None) or {},
        nodes=tuple(_node(raw, k) for k in range(spec.nodes)),
        sizes=sizes,
        pairs=pairs,
        parts=raw.parts,
        alpha_s=fitted[0] if fitted else None,
        beta_s_per_byte=fitted[1] if fitted else None,
        findings=found,
    )


def _findings(
    raw: RawPreflight, spec: RunSpec, job: ScaleJob, sizes: Any, pairs: Any, used: tuple[str, ...]
) -> Iterator[PreflightFinding]:
    if raw.ended.problem:
        wanted = "a job step on every node, and an address where the ranks meet"
        yield PreflightFinding(level="fail", node=None, what=raw.ended.problem, wanted=wanted, next=raw.ended.next)
        return
    yield from node_findings(spec, job, *keyed(raw.run, raw.facts, raw.mesh))
    if raw.ended.collectives == "not started":
        return
    yield from collective_findings.identity(spec, raw.ranks, raw.nodes)
    yield from collective_findings.values(spec, raw.ranks, raw.nodes)
    yield from unfinished(raw)
    yield from collective_findings.transport(spec, job.preflight, used)
    yield from collective_findings.bandwidth(spec, job.preflight, sizes, pairs)


def _node(raw: RawPreflight, node_rank: int) -> NodeRow:
    facts, per_node = raw.facts.get(node_rank), raw.run.spec.gpus_per_node
    devices = [raw.ranks[k].device for k in range(node_rank * per_node, (node_rank + 1) * per_node) if k in raw.ranks]
    return NodeRow(
        node=raw.nodes[node_rank],
        gpus=tuple(device.name for device in devices if device and device.name),
        interface=facts.interface.name if facts and facts.interface else None,
        address=facts.interface.address if facts and facts.interface else None,
        mtu=facts.interface.mtu if facts and facts.interface else None,
        cpus=len(facts.cpus) if facts and facts.cpus is not None else None,
    )


def believed(results: Path, scale: object) -> PreflightResult | None:
    """Return the result of a scale's preflight if its raw files give the same; None if there is none.

    Raises OSError, or ValueError with the reason, for one that cannot be believed.
    """
    file = result_file(results, scale)
    if not file.exists() and not file.is_symlink():
        return None
    found = read_result(file)
    if found.scale != str(scale):
        raise ValueError(f"{file} is of {found.scale}: it was copied here")
    if found != assemble_preflight(PreflightDirectory(file.with_suffix(""))):
        raise ValueError(f"{file} does not match its raw files")
    return found


def by_scale(results: Path, scales: Iterable[str]) -> tuple[dict[str, PreflightResult], tuple[str, ...]]:
    """Return the believed results of these scales, and a warning for each that cannot be believed."""
    found, warnings = {}, []
    for scale in scales:
        try:
            result = believed(results, scale)
        except (OSError, ValueError) as error:
            again = f"snakemake preflight --config preflight_scale={scale}"
            where = f"{result_file(results, scale)}: the preflight cannot be believed, it is left out"
            warnings.append(f"{where}: {error}. Next: delete it; `{again}` writes it again")
            continue
        if result is not None:
            found[scale] = result
    return found, tuple(warnings)
