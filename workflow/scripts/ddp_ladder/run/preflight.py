"""The preflight in a scale's job: the nodes and their network first, then the collectives under the run's launcher.

Each part is one job step on the scale's nodes, with a time limit.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from uuid import uuid4

from ddp_ladder.common.files import SCRIPTS, make_directory, write_atomically, write_json, writing
from ddp_ladder.common.process import start_allowance_s
from ddp_ladder.nodes.sampler import describe, machine_directory
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.preflight.directory import PreflightDirectory, assemble_preflight, facts_by_node
from ddp_ladder.preflight.nodes import collect, node_findings
from ddp_ladder.preflight.result import PreflightResult, error, result_file
from ddp_ladder.records.raw_models import Job, PreflightLimits, read_run_file
from ddp_ladder.run.interruption import Starter, running
from ddp_ladder.run.logs import join_logs
from ddp_ladder.run.nodes import AGENT, Nodes, NoRendezvous, write_run_file
from ddp_ladder.settings.terms import REFERENCE_VARIANT

NODE = SCRIPTS / "preflight_node.py"
START_S = 30.0  # for a job step and the start of a Python, beside the time limit; on many nodes more
SHORTEST_S = 5.0  # time limit of a part in a job whose time is nearly up
LARGEST_BYTES = 256 * 1024**2
MEMORY_SHARE = 8  # the largest all-reduce takes at most this part of a rank's memory


def part_s(nodes: int, timeout_s: float) -> float:
    """Return how long a part is awaited: its processes have their time limit once they have started."""
    return START_S + start_allowance_s(nodes) + timeout_s


@dataclass(frozen=True)
class PreflightOf:
    """The preflight of a job."""

    job: ScaleJob
    results: Path
    nodes: Nodes
    end_s: float  # for its processes to end after SIGTERM
    left_s: float = math.inf  # of the job's time

    @property
    def spec(self) -> RunSpec:
        """The run whose launcher, backend, interface and software are tested: the first one of the default variant."""
        runs = self.job.runs
        return next((run for run in runs if run.variant == REFERENCE_VARIANT), runs[0])

    @property
    def directory(self) -> PreflightDirectory:
        return PreflightDirectory(result_file(self.results, self.job.scale).with_suffix(""))

    def run(self) -> PreflightResult:
        """Test nodes, and collectives unless a node failed; write and return the result. Raises Interrupted."""
        identity = Job(id=self.nodes.job_id, attempt=1, run_id=uuid4().hex)
        started_at_s, has_collectives, problem = time.time(), False, None
        self.prepare(identity)
        try:
            self.write_run_file(identity, "nodes")
            self._run_part(self.nodes.starters(self.directory, self.spec, NODE, 1))
            facts = facts_by_node(self.directory, read_run_file(self.directory))
            if not any(finding.severity == "error" for finding in node_findings(self.spec, self.job, facts)):
                self.write_run_file(identity, "collectives")  # another port: the first part has just used its own
                has_collectives = True
                self._run_part(self.nodes.starters(self.directory, self.spec, AGENT))
        except NoRendezvous as reason:
            wanted = "a job step on every node, and an address where the ranks meet"
            problem = error(str(reason), wanted, reason.next_step)
            if not self.directory.run.exists():
                self.write_run_file(identity, None)
        join_logs(self.directory, read_run_file(self.directory))
        times_s = started_at_s, time.time()
        result = assemble_preflight(self.directory, self.job, times_s, has_collectives, problem)
        write_json(result_file(self.results, self.job.scale), result.model_dump())
        return result

    @property
    def _timeout_s(self) -> float:
        """The time limit of each part."""
        return min(self.job.preflight.limit_s(self.spec.nodes), max(SHORTEST_S, self.left_s))

    @property
    def _part_s(self) -> float:
        return part_s(self.spec.nodes, self._timeout_s)

    @property
    def longest_s(self) -> float:
        """How long both parts may take."""
        return 2 * self._part_s

    def prepare(self, identity: Job) -> None:
        """Remove an earlier preflight of this scale, and make the directories of this one."""
        result, directory = result_file(self.results, self.job.scale), self.directory
        with writing(result):
            result.unlink(missing_ok=True)
            shutil.rmtree(directory.path, ignore_errors=True)
            shutil.rmtree(machine_directory(self.results, self.job.scale), ignore_errors=True)
        for path in (directory.facts, directory.ranks, directory.nodes, directory.nccl):
            make_directory(path)
        write_atomically(_marker(directory, identity), "")

    def write_run_file(self, identity: Job, part: str | None) -> None:
        """Write run.json with a rendezvous endpoint of this part; part None: without one."""
        key = None if part is None else f"{identity.id}.{identity.run_id}.preflight.{part}"
        memory_mb = self.job.memory_mb
        per_rank = math.inf if memory_mb is None else memory_mb * 1_000_000 / self.spec.gpus_per_node / MEMORY_SHARE
        limits = PreflightLimits(
            timeout_s=self._timeout_s,
            largest_bytes=int(min(LARGEST_BYTES, per_rank)),
        )
        write_run_file(self.nodes, self.job, self.spec, self.directory, identity, key, preflight=limits)

    def _run_part(self, starters: Sequence[Starter]) -> None:
        """Run the processes of a part to their end; end the rest when one fails, or when its time is up."""
        until_s = time.monotonic() + self._part_s
        # Of what is missing, the result says so.
        with running(starters, self.end_s) as exits, suppress(Empty):
            for _ in starters:
                if exits.get(timeout=max(0.0, until_s - time.monotonic())) != 0:
                    break  # the others would wait for it


def _marker(directory: PreflightDirectory, identity: Job) -> Path:
    """Return the file by which a node sees that the shared directory is shared."""
    # Its name is new in each job: a node may remember that an earlier look found nothing.
    return directory.facts / f"marker.{identity.run_id}"


def examine_node(path: Path, node_rank: int) -> None:
    """Collect the facts of this node and write them. Raises NotWritten."""
    directory = PreflightDirectory(path.resolve())
    run = read_run_file(directory)
    facts = collect(run, node_rank, _marker(directory, run.job))
    write_json(directory.node_facts(node_rank), facts.model_dump())
    node = run.nodes[node_rank]
    if facts.interface.name and run.nodes.index(node) == node_rank:  # the first of those simulated on one machine
        gpus = facts.gpus.gpus if facts.gpus else ()
        describe(directory.path.parents[1], str(run.spec.scale), node, facts.interface.name, gpus)
