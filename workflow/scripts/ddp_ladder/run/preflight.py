"""The preflight in a scale's job: the nodes and their network first, then the collectives under the run's launcher.

Each part is one job step on the scale's nodes, with a time limit.
"""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from uuid import uuid4

from ddp_ladder.common.files import make_directory, read_json, write_atomically, write_json, writing
from ddp_ladder.common.paths import SCRIPTS
from ddp_ladder.node.launch import Places
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.preflight.assemble import assemble_preflight
from ddp_ladder.preflight.bisection import LEAST_NODES, parts
from ddp_ladder.preflight.directory import (
    PreflightDirectory,
    keyed,
    port_is_taken,
    read_facts,
    read_part,
    read_preflight,
)
from ddp_ladder.preflight.examine import examine
from ddp_ladder.preflight.mesh import Meeting
from ddp_ladder.preflight.node_facts import Marker
from ddp_ladder.preflight.node_findings import findings
from ddp_ladder.preflight.raw_models import PartEnd, PreflightEnd, PreflightSettings
from ddp_ladder.preflight.result import PreflightResult, result_file
from ddp_ladder.preflight.unfinished import unfinished
from ddp_ladder.records.raw_models import Endpoint, Job, RunFile, read_run_file
from ddp_ladder.run.interruption import end_agents, uninterrupted
from ddp_ladder.run.logs import join_logs
from ddp_ladder.run.monitoring import describe_node, speaks_for_node
from ddp_ladder.run.nodes import AGENT, Nodes, NoRendezvous
from ddp_ladder.settings.terms import REFERENCE_VARIANT

NODE = SCRIPTS / "preflight_node.py"
START_S = 30.0  # for a job step and the start of a Python on a busy file system, beside the time limit
SHORTEST_S = 5.0  # time limit of a part in a job whose time is nearly up
LARGEST_BYTES = 256 * 1024**2
SEARCH_PARTS = 5  # time limits of a part that the search for a node may take
MEMORY_SHARE = 8  # the largest all-reduce takes at most this part of a rank's memory

Starters = Sequence[Callable[[], subprocess.Popen[bytes]]]


@dataclass(frozen=True)
class PreflightOf:
    """The preflight of a job, or a launch on a part of its nodes.

    end_s: time for its processes to end after SIGTERM. left_s: of the job's time. of_part: its number and nodes.
    say: shows a line of progress.
    """

    job: ScaleJob
    results: Path
    nodes: Nodes
    end_s: float
    left_s: float = math.inf
    of_part: tuple[int, int] | None = None
    say: Callable[[str], None] = print

    @property
    def spec(self) -> RunSpec:
        """The run whose launcher, backend, interface and software are tested: the first one of the default variant."""
        runs = self.job.runs
        first = next((run for run in runs if run.variant == REFERENCE_VARIANT), runs[0])
        return first if self.of_part is None else first.replace(nodes=self.of_part[1])

    @property
    def timeout_s(self) -> float:
        """The time limit of each part."""
        return min(self.job.preflight.timeout_s, max(SHORTEST_S, self.left_s))

    @property
    def directory(self) -> PreflightDirectory:
        whole = PreflightDirectory(result_file(self.results, self.job.scale).with_suffix(""))
        return whole if self.of_part is None else whole.part(self.of_part[0])

    def run(self) -> PreflightResult:
        """Test the nodes, then the collectives unless a node failed; write and return the result.

        Raises Interrupted, with every process ended.
        """
        identity = Job(id=self.nodes.job_id, attempt=1, run_id=uuid4().hex)
        started_at_s, problem, next_step = time.time(), None, ""
        nodes: PartEnd = "not started"
        collectives: PartEnd = "not started"
        self._prepare(identity)
        try:
            self._write_run_file(identity, "nodes")
            starters = self.nodes.starters(self.directory, self.spec, NODE, 1)
            nodes = _to_their_end(starters, self.timeout_s + START_S, self.end_s)
            if not self._node_fails():
                collectives = self._collectives(identity, "collectives")
                if port_is_taken(self.directory):  # another process was faster
                    _remove_second_part(self.directory)
                    collectives = self._collectives(identity, "collectives again")
        except NoRendezvous as error:
            problem, next_step = str(error), error.next_step
            if not self.directory.run.exists():
                self._write_run_file(identity, None)
        end = PreflightEnd(
            schema_version=1,
            spec_hash=self.spec.hash,
            job=identity,
            host=socket.gethostname(),
            started_at_s=started_at_s,
            ended_at_s=time.time(),
            nodes=nodes,
            collectives=collectives,
            problem=problem,
            next=next_step,
        )
        join_logs(self.directory, read_run_file(self.directory))
        write_json(self.directory.ended, end.model_dump())
        if _names_no_node(self.directory):
            spent_s = time.time() - started_at_s
            _search_node(replace(self, left_s=self.left_s - spent_s), identity)
            write_json(self.directory.ended, end.replace(ended_at_s=time.time()).model_dump())
        return write_result(self.results, self.job.scale)

    def _collectives(self, identity: Job, key: str) -> PartEnd:
        self._write_run_file(identity, key)  # another port: the first part has just used its own
        starters = self.nodes.starters(self.directory, self.spec, AGENT)
        return _to_their_end(starters, self.timeout_s + START_S, self.end_s)

    def _prepare(self, identity: Job) -> None:
        """Remove an earlier preflight of this scale, and write what the nodes read."""
        result, directory = result_file(self.results, self.job.scale), self.directory
        with writing(result):
            result.unlink(missing_ok=True)
            shutil.rmtree(directory.path, ignore_errors=True)
        for path in (directory.facts, directory.ranks, directory.nodes, directory.nccl):
            make_directory(path)
        marker = marker_of(directory, identity)
        write_atomically(marker.path, marker.token)
        self._write_settings(identity)

    def _write_settings(self, identity: Job) -> None:
        memory_mb = self.job.memory_mb
        per_rank = math.inf if memory_mb is None else memory_mb * 1_000_000 / self.spec.gpus_per_node / MEMORY_SHARE
        settings = PreflightSettings(
            schema_version=1,
            spec_hash=self.spec.hash,
            job=identity,
            scale_job={**self.job.to_json(), "runs": []},
            timeout_s=self.timeout_s,
            largest_bytes=int(min(LARGEST_BYTES, per_rank)),
        )
        write_json(self.directory.settings, settings.model_dump())

    def _write_run_file(self, identity: Job, part: str | None) -> None:
        """Write run.json with a rendezvous endpoint of this part; part None: without one."""
        spec, places = self.spec, Places.here(self.directory.path)
        key = f"{identity.id}.{identity.run_id}.preflight.{part}"
        host, port = ("", 0) if part is None else self.nodes.endpoint(spec, key)
        run = RunFile(
            schema_version=1,
            spec=spec,
            spec_hash=spec.hash,
            job=identity,
            rendezvous=Endpoint(id=key, host=host, port=port),
            start_directory=str(places.start),
            run_directory=str(places.run),
            nodes=tuple(f"node {k}" for k in range(spec.nodes)) if part is None else tuple(self.nodes.names(spec)),
            agents_per_node=self.nodes.agents_per_node(spec),
            repository=None,
            hang=None,  # each of its parts has a bound
            monitor=None,
            asked=None,
            goes_on=False,
            is_preflight=True,
            max_log_mb_per_node=self.job.max_log_mb_per_node,
        )
        write_json(self.directory.run, run.model_dump())

    def _node_fails(self) -> bool:
        """Return True if the first part found what keeps the runs from starting."""
        run = read_run_file(self.directory)
        facts, mesh = read_facts(self.directory, run)
        found = findings(self.spec, self.job, *keyed(run, facts, mesh))
        return any(finding.level == "fail" for finding in found)


def _to_their_end(starters: Starters, within_s: float, end_s: float) -> PartEnd:
    """Run the processes of a part to their end; end the rest when one fails, or when its time is up."""
    until_s = time.monotonic() + within_s
    exits: SimpleQueue[int] = SimpleQueue()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for start in starters:
            with uninterrupted():
                processes.append(start())
        for process in processes:
            threading.Thread(target=lambda process=process: exits.put(process.wait()), daemon=True).start()
        for _ in processes:
            if exits.get(timeout=max(0.0, until_s - time.monotonic())) != 0:
                break  # the others would wait for it
    except Empty:
        return "time limit"
    finally:
        end_agents(processes, end_s)
    return "finished"


def _remove_second_part(directory: PreflightDirectory) -> None:
    for path in (*directory.ranks.iterdir(), *directory.nodes.iterdir(), *directory.nccl.iterdir(), directory.log):
        with writing(path):
            path.unlink(missing_ok=True)


def _names_no_node(directory: PreflightDirectory) -> bool:
    """Return True if the collectives failed on several nodes, and nothing shows because of which."""
    raw = read_preflight(directory)
    different = len(set(raw.run.nodes)) == len(raw.run.nodes) >= LEAST_NODES
    started = raw.ended.collectives != "not started"
    return different and started and any(finding.node is None for finding in unfinished(raw))


def _search_node(preflight: PreflightOf, identity: Job) -> None:
    """Launch the probe again on parts of the nodes, for at most SEARCH_PARTS time limits."""
    until_s = time.monotonic() + min(SEARCH_PARTS * preflight.timeout_s, preflight.left_s)
    names = read_run_file(preflight.directory).nodes
    search = parts(range(len(names)))
    number, asked = 1, next(search)
    with suppress(StopIteration, NoRendezvous):
        while time.monotonic() < until_s:
            here = [names[rank] for rank in asked]
            label = f"{preflight.job.stage} {preflight.job.scale}"
            preflight.say(f"{label}: preflight: it failed, now on {', '.join(here)} alone")
            left_s = until_s - time.monotonic()
            part = replace(preflight, nodes=preflight.nodes.part(here), of_part=(number, len(here)), left_s=left_s)
            asked, number = search.send(_works(part, identity)), number + 1


def _works(part: PreflightOf, identity: Job) -> bool:
    """Launch the probe on a part of the nodes; return True if its ranks came to their end."""
    directory = part.directory
    for path in (directory.ranks, directory.nodes, directory.nccl):
        make_directory(path)
    part._write_settings(identity)
    part._collectives(identity, f"part {directory.path.name}")
    join_logs(directory, read_run_file(directory))
    return read_part(directory).ok


def marker_of(directory: PreflightDirectory, identity: Job) -> Marker:
    """Return the file by which a node sees that the shared directory is shared."""
    return Marker(directory.facts / f"marker.{identity.run_id}", identity.run_id)


def examine_node(path: Path, node_rank: int) -> None:
    """Collect the facts of this node and of its links, and write them. Raises NotWritten."""
    directory = PreflightDirectory(path.resolve())
    run = read_run_file(directory)
    settings = PreflightSettings.from_json(read_json(directory.settings))
    places = Places(Path(run.start_directory), Path(run.run_directory))
    head = (run.rendezvous.host, run.rendezvous.port)
    meeting = Meeting(run.nodes, node_rank, head, run.job.run_id, run.spec.interface)
    facts, mesh = examine(run.spec, places, meeting, settings.timeout_s, marker_of(directory, run.job))
    write_json(directory.node_facts(node_rank), facts.model_dump())
    if mesh is not None:
        write_json(directory.mesh_facts(node_rank), mesh.model_dump())
    if facts.interface and facts.interface.name and speaks_for_node(run, node_rank):
        has_gpus = run.spec.device == "cuda" and facts.gpus is not None and facts.gpus.error is None
        describe_node(directory.path.parents[1], run, node_rank, facts.interface.name, has_gpus)


def write_result(results: Path, scale: object) -> PreflightResult:
    """Assemble the result from the raw files, and write it. Raises OSError or ValueError if there are none."""
    file = result_file(results, scale)
    result = assemble_preflight(PreflightDirectory(file.with_suffix("")))
    write_json(file, result.model_dump())
    return result
