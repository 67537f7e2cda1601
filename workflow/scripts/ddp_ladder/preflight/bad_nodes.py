"""Nodes that failed a preflight and that further jobs leave out (slurm.replace_bad_node): results/bad_nodes.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from ddp_ladder.common.files import read_json, write_json
from ddp_ladder.common.formats import hostlist, in_short
from ddp_ladder.common.model import Model, Name, Several, Version1
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.location import most_at_once
from ddp_ladder.preflight.result import PreflightFinding, result_of
from ddp_ladder.slurm.query import host_names

SUPPORT = "tell the site's support; once it is repaired, delete it from {file}"


class BadNode(Model):
    """The nodes of a job that are broken, and what its preflight found on them."""

    node: Name = Field(description="One, or several in Slurm's short form.")
    scale: Name
    job: Name
    at: Name = Field(description="UTC.")
    findings: Several[PreflightFinding]

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
    try:
        return BadNodes.from_json(read_json(bad_nodes_file(results))).nodes
    except (OSError, ValueError):
        return ()


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
    if not errors or not all(finding.is_hardware for finding in errors) or job.slurm.nodelist:
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
