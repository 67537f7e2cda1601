"""The bad nodes of a job, their list, and the jobs that leave them out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder.climb import snakemake as executor
from ddp_ladder.climb.production import leaves_out_bad_node
from ddp_ladder.common.files import write_json
from ddp_ladder.common.findings import Finding
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.result import (
    add_bad_node,
    bad_nodes,
    bad_nodes_file,
    error,
    found_bad,
    read_result,
    warning,
    without_bad_nodes,
)
from ddp_ladder.production.chain import Link
from ddp_ladder.run.progress import Console
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.slurm.jobs import JobEnd
from ddp_ladder.slurm.query import sbatch_options
from make_preflight import JOB, write_preflight
from make_records import make_plan_of, make_spec

NODES = "node[1-2]"
BAD = error("it left no answer", "an answer", "look at it", "node2", "node")
TWO = BAD.replace(place="node[2,7]")


def job_with(scale: str = "2x1", **slurm: Any) -> ScaleJob:
    return replace(make_plan_of([make_spec(scale)]).jobs[0], slurm=Slurm(**slurm))


def preflight(results: Path, *findings: Finding, scale: str = "2x1") -> None:
    path = write_preflight(results, job_with(scale))
    write_json(path, read_result(path).replace(findings=findings, status="failed").model_dump())


@pytest.mark.parametrize(
    ("findings", "job", "job_id", "node"),
    [
        ([BAD, warning("slow", "fast", "", "node1"), BAD.replace(measured="also")], job_with(), JOB.id, "node2"),
        ([BAD, BAD.replace(place="node1")], job_with(), JOB.id, None),  # all nodes
        ([BAD.replace(place="")], job_with(), JOB.id, None),
        ([], job_with(), JOB.id, None),
        ([BAD], job_with(), "18", None),  # the file is an earlier job's
        ([BAD], job_with(nodelist=NODES), JOB.id, None),
        ([TWO], job_with("8x1"), JOB.id, "node[2,7]"),
        ([TWO, BAD.replace(place="node7", kind="link")], job_with("8x1"), JOB.id, "node[2,7]"),
        ([TWO, BAD.replace(place="node3")], job_with("8x1"), JOB.id, None),  # more than a quarter
        ([TWO, BAD.replace(kind="software")], job_with("8x1"), JOB.id, None),
        ([TWO, BAD.replace(kind="cause unknown")], job_with("8x1"), JOB.id, None),
    ],
)
def test_few_nodes_whose_hardware_alone_is_at_fault_are_left_out(
    tmp_path: Path, findings: list[Finding], job: ScaleJob, job_id: str, node: str | None
) -> None:
    preflight(tmp_path, *findings, scale=str(job.scale))
    bad = found_bad(tmp_path, job, job_id, f"node[1-{job.scale.nodes}]")
    assert (bad and bad.node) == node
    if node == "node2":
        assert bad
        assert bad.in_words == "node2 failed the preflight of job 17: it left no answer; also"


def test_listed_nodes_are_left_out_if_that_is_wanted(tmp_path: Path) -> None:
    def excluded(**slurm: Any) -> list[str]:
        options = sbatch_options(without_bad_nodes(job_with(**slurm), tmp_path), {})
        assert not any("replace" in option for option in options)
        return [option for option in options if option.startswith("--exclude")]

    assert excluded(replace_bad_node=True, exclude="node9") == ["--exclude=node9"]
    preflight(tmp_path, BAD)
    bad = found_bad(tmp_path, job_with(), JOB.id, NODES)
    assert bad
    add_bad_node(tmp_path, bad)
    add_bad_node(tmp_path, bad.replace(node="node[3,5]"))
    assert [each.node for each in bad_nodes(tmp_path)] == ["node2", "node[3,5]"]
    assert excluded(replace_bad_node=True, exclude="node9") == ["--exclude=node9,node2,node[3,5]"]
    assert excluded(replace_bad_node=True, nodelist=NODES) == []
    assert excluded(exclude="node9") == ["--exclude=node9"]
    bad_nodes_file(tmp_path).write_text("{")
    assert excluded(replace_bad_node=True) == []


@pytest.mark.parametrize(
    ("rule", "wanted", "replaced"),
    [
        ("measure_stage3", True, [True, False]),
        ("measure_stage3", None, [False] * 2),
        ("preflight_scale", True, [False] * 2),
    ],
)
def test_a_scale_is_submitted_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, wanted: bool | None, replaced: list[bool]
) -> None:
    monkeypatch.setattr(executor, "Console", lambda: Console(open("/dev/null", "w")))  # noqa: SIM115
    preflight(tmp_path, BAD)
    planned = job_with(replace_bad_node=wanted)
    ladder: Any = SimpleNamespace(results=str(tmp_path), plan_to_write=[], job=lambda _scale: planned)
    plugin = type("Plugin", (), {"__init__": lambda *_: None})
    nothing_needed = SimpleNamespace(dag=SimpleNamespace(needrun_jobs=tuple))
    jobs = executor.ladder_executor(plugin, ladder, {rule: rule})(nothing_needed, None)
    info = SimpleNamespace(job=SimpleNamespace(rule=SimpleNamespace(name=rule)))
    end = JobEnd(JOB.id, "stage3", "2x1", "COMPLETED", "log", ok=True, nodes=NODES)
    assert [jobs._replaces_node(info, end) for _ in range(2)] == replaced
    assert len(bad_nodes(tmp_path)) == replaced.count(True)


def test_a_chain_leaves_out_a_bad_node_and_not_twice_in_a_row(tmp_path: Path) -> None:
    def link(number: int, job_id: str) -> Link:
        return Link(number=number, job_id=job_id, begun_at_s=1.0, ended_at_s=2.0, hours=0.1, end="failed")

    preflight(tmp_path, BAD)
    wanted, links = job_with(replace_bad_node=True), [link(1, "16"), link(2, JOB.id)]
    assert not leaves_out_bad_node(tmp_path, wanted, [], NODES)
    assert not leaves_out_bad_node(tmp_path, job_with(), links, NODES)
    assert not leaves_out_bad_node(tmp_path, wanted, links, "")  # on this machine
    assert leaves_out_bad_node(tmp_path, wanted, links, NODES)
    bad_nodes_file(tmp_path).write_text(bad_nodes_file(tmp_path).read_text().replace(f'"{JOB.id}"', '"16"'))
    assert not leaves_out_bad_node(tmp_path, wanted, links, NODES)
    assert len(bad_nodes(tmp_path)) == 1
