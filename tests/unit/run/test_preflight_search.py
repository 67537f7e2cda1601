"""Collectives that fail without a cause: the preflight launches on parts of the nodes until it knows the node."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.plan.plan import PreflightWanted, RunSpec
from ddp_ladder.preflight.assemble import believed
from ddp_ladder.preflight.directory import PreflightDirectory
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.run.preflight import NODE, PreflightOf
from make_preflight import mesh_facts, node_facts, probe_rank
from make_records import make_plan_of, make_specs

Starters = list[Callable[[], subprocess.Popen[bytes]]]
NAMES = ("node1", "node2", "node3", "node4")
LATE = {"doing": "all-reducing", "step": 5, "error": "not over after 60 s"}


@dataclass(frozen=True)
class FakeNodes:
    """Nodes whose processes write what real ones would; launches with ``broken`` hang."""

    broken: str
    here: tuple[str, ...] = NAMES
    job_id: str = "17"

    def names(self, spec: RunSpec) -> list[str]:
        return list(self.here)

    def agents_per_node(self, spec: RunSpec) -> int:
        return 1

    def part(self, nodes: Sequence[str]) -> FakeNodes:
        return replace(self, here=tuple(nodes))

    def endpoint(self, spec: RunSpec, key: str) -> tuple[str, int]:
        return "10.0.0.1", 23456

    def starters(self, directory: RunDirectory, spec: RunSpec, program: Path, per_node: int = 0) -> Starters:
        def start() -> subprocess.Popen[bytes]:
            facts, run = PreflightDirectory(directory.path), read_run_file(directory)
            for k in range(spec.nodes):
                if program == NODE:
                    write_json(facts.node_facts(k), node_facts(k).model_dump())
                    write_json(facts.mesh_facts(k), mesh_facts(k, spec.nodes).model_dump())
                else:
                    changes = LATE if self.broken in self.here else {}
                    rank = probe_rank(spec, k, run.job.model_dump(), **changes)
                    write_json(directory.ranks / f"rank{k}.json", rank)
            return subprocess.Popen(["true"])

        return [start]


def test_the_broken_node_is_named_by_launches_on_parts_of_the_nodes(tmp_path: Path) -> None:
    job = replace(
        make_plan_of(make_specs(["4x1"], repeats=1, cpus_per_node=4, threads_per_rank=4)).jobs[0],
        cpus=4,
        preflight=PreflightWanted(enabled=True),
    )
    said: list[str] = []
    found = PreflightOf(job, tmp_path, FakeNodes("node3"), end_s=5.0, say=said.append).run()
    assert [(row.nodes, row.ok) for row in found.parts] == [
        (("node1", "node2"), True),
        (("node3", "node4"), False),
        (("node3", "node2"), False),
    ]
    assert found.failure is not None
    assert found.failure.node == "node3"
    assert "slurm.exclude" in found.failure.next
    assert said[-1].endswith("now on node3, node2 alone")
    assert believed(tmp_path, "4x1") == found
