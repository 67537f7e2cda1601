"""A preflight that failed: what it means for the gate of its scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.climb.to_do import runs_to_do
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.gates.gate import gate_file_problem, judge, write_verdict
from ddp_ladder.gates.verdict import closed_box
from ddp_ladder.plan.plan import Plan
from ddp_ladder.preflight.result import PREFLIGHT_FAILED
from ddp_ladder.records.assemble import not_run
from ddp_ladder.records.record import write_record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.settings.keys import GateThresholds, Preflight
from ddp_ladder.settings.terms import Scale
from make_preflight import write_preflight
from make_runs import add_ddp_times, reassemble, write_ladder

WRONG = [{"bytes": 4096, "time_s": 1e-3, "wrong": ["int64, round 1: 1 of 512"]}]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A finished ladder whose 1x2 was measured without a preflight."""
    plan = write_ladder(tmp_path)
    jobs = tuple(replace(job, preflight=Preflight(enabled=True)) for job in plan.jobs)
    return replace(plan, jobs=jobs)


def fail_preflight(results: Path, plan: Plan) -> Path:
    return write_preflight(results, plan.job(Scale(1, 2)), rank1={"sizes": WRONG})


def leave_out(results: Path, plan: Plan) -> None:
    for spec in plan.job(Scale(1, 2)).runs:
        directory = RunDirectory(results / "runs" / spec.name)
        directory.run.unlink()
        write_record(directory.record, not_run(spec, f"{PREFLIGHT_FAILED}: it says why", "do it"))


def test_runs_that_were_left_out_close_the_gate_with_the_preflights_finding(tmp_path: Path, plan: Plan) -> None:
    fail_preflight(tmp_path, plan)
    leave_out(tmp_path, plan)
    verdict = judge(plan, "stage2", tmp_path)
    assert not verdict.is_open
    assert verdict.reason is not None
    assert (verdict.reason.check, verdict.reason.where) == (PREFLIGHT_FAILED, "default/weak/1x2")
    assert "an all-reduce of 4096 bytes returned wrong values on rank 1" in verdict.reason.measured
    assert "network.env in cluster.yaml" in (verdict.next or "")
    assert "| wanted    the exact sum, in every element " in closed_box(verdict)
    assert list(runs_to_do(plan, RunRecords(tmp_path))) == ["1x2"]  # the next start makes them


def test_without_the_preflights_file_the_records_say_why(tmp_path: Path, plan: Plan) -> None:
    fail_preflight(tmp_path, plan).unlink()
    leave_out(tmp_path, plan)
    verdict = judge(plan, "stage2", tmp_path)
    assert not verdict.is_open
    assert f"{PREFLIGHT_FAILED}: it says why" in (verdict.why or "")


@pytest.mark.parametrize("later", ["none", "failed"])
def test_runs_that_were_made_are_judged_by_their_records(tmp_path: Path, plan: Plan, later: str) -> None:
    """Results from before there was a preflight, and a preflight that failed after the runs."""
    before = judge(plan, "stage2", tmp_path)
    if later == "failed":
        fail_preflight(tmp_path, plan)
    assert judge(plan, "stage2", tmp_path) == before
    assert before.is_open
    assert not runs_to_do(plan, RunRecords(tmp_path))


def test_a_closed_gate_shows_what_the_preflight_measured_of_the_network(tmp_path: Path, plan: Plan) -> None:
    """A preflight that is repeated alone, as the box advises, does not contradict the gate file."""
    plan = replace(plan, gates={**plan.gates, "stage2": GateThresholds(min_efficiency=0.95)})
    for scale, exposed_s in (Scale(1, 1), 0.0), (Scale(1, 2), 0.006):
        for spec in plan.job(scale).runs:
            directory = RunDirectory(tmp_path / "runs" / spec.name)
            for rank in range(spec.world_size):
                add_ddp_times(directory, rank, 0.06, exposed_s)
            reassemble(directory)
    without = judge(plan, "stage2", tmp_path)
    assert without.reason is not None
    assert "preflight" not in without.reason.evidence[0]

    sizes = [{"bytes": n, "time_s": 1e-4 + n * 1e-8, "wrong": []} for n in (4096, 2**20, 2**22)]
    write_preflight(tmp_path, plan.job(Scale(1, 2)), rank0={"sizes": sizes}, rank1={"sizes": sizes})
    verdict = judge(plan, "stage2", tmp_path)
    assert verdict.reason is not None
    assert verdict.reason.evidence[0].endswith(
        "; by the preflight's figures, 0.605 MB in 1 all-reduce take 6.15 ms, of which 0.100 ms is latency"
    )
    assert "| evidence  DDP's exchange of gradients takes" in closed_box(verdict)
    gates = tmp_path / "gates"
    write_verdict(verdict, gates)
    assert gate_file_problem(without, gates) is None
    assert gate_file_problem(judge(plan, "stage2", tmp_path), gates) is None
