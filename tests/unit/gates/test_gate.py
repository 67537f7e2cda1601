from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import run_scale
from ddp_ladder.assembly.assemble import not_run
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.ladder import runs_to_do
from ddp_ladder.common.files import RunDirectory, read_json, sha256, write_json
from ddp_ladder.common.messages import numbered
from ddp_ladder.gates.gate import Place, Verdict, closed_box, closed_variants, judge, write_verdict
from ddp_ladder.plan.plan import Plan
from ddp_ladder.preflight.result import PREFLIGHT_FAILED
from ddp_ladder.records.record import Failure, write_record
from ddp_ladder.report.view import read_results
from ddp_ladder.settings.keys import GateThresholds
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.jobs import JobEnd, write_job_end
from gate import main
from make_preflight import write_preflight
from make_records import make_gate, make_judged, make_plan_of, make_spec, make_specs
from make_runs import (
    edit,
    edit_batches,
    edit_part,
    read_steps,
    reassemble,
    write_ladder,
    write_run,
    write_steps,
)

RUN = "default/weak/1x2/r2"
BASELINE = "default/weak/1x1/r1"


@dataclass(frozen=True)
class Ladder:
    """A climbed ladder under a temporary directory."""

    results: Path
    plan: Plan

    def run(self, name: str = RUN) -> RunDirectory:
        return RunDirectory(self.results / "runs" / name)

    @property
    def gates(self) -> Path:
        return self.results / "gates"

    def judge(self, stage: str) -> Verdict:
        return judge(self.plan, stage, self.results)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    results = tmp_path_factory.mktemp("pristine")
    return Ladder(results, write_ladder(results))


@pytest.fixture
def ladder(pristine: Ladder, tmp_path: Path) -> Ladder:
    """A copy of the good ladder to spoil."""
    results = tmp_path / "results"
    shutil.copytree(pristine.results, results)
    return Ladder(results, pristine.plan)


def assert_closed(ladder: Ladder, *runs: str, stage: str = "stage2") -> Verdict:
    """The gate closes, because of exactly these runs, and says so in the place of an evidence file."""
    write_json(ladder.gates / f"{stage}.json", {"verdict": "open"})
    verdict = ladder.judge(stage)
    path = write_verdict(verdict, ladder.gates)
    assert not verdict.is_open
    assert {f.place for f in verdict.judged if Place.of(f).repeat and not f.ok} == set(runs)
    assert [file.name for file in ladder.gates.iterdir()] == [f"{stage}.closed.json"]
    gate = read_json(path)
    assert gate["verdict"] == "closed"
    assert gate["why"].startswith(runs[0])
    assert len(gate["why"]) < 1000
    assert gate["wanted"]
    assert gate["next"]
    return verdict


@pytest.mark.parametrize("stage", ["stage1", "stage2", "stage3"])
def test_a_good_ladder_opens(ladder: Ladder, stage: str) -> None:
    write_json(ladder.gates / f"{stage}.closed.json", {"verdict": "closed"})
    gate = read_json(write_verdict(ladder.judge(stage), ladder.gates))
    assert [file.name for file in ladder.gates.iterdir()] == [f"{stage}.json"]
    assert (gate["verdict"], gate["why"], gate["variants"]) == ("open", None, {"default": "open"})


def test_the_evidence_holds_the_numbers_and_the_records(ladder: Ladder) -> None:
    gate = read_json(write_verdict(ladder.judge("stage2"), ladder.gates))
    base, point = gate["points"]
    assert base["figures"]["samples_per_s"]["value"] == pytest.approx(1024, rel=0.01)
    assert point["figures"]["samples_per_s"]["value"] == pytest.approx(1843, rel=0.01)
    efficiency = point["figures"]["efficiency"]
    assert efficiency["value"] == pytest.approx(0.9, rel=0.01)
    assert efficiency["low"] <= efficiency["value"] <= efficiency["high"]
    sanity, *_, efficiency = gate["judged"]
    assert (sanity["kind"], efficiency["kind"]) == ("sanity", "efficiency")
    assert sanity["measured"].endswith(" checks passed")
    assert efficiency["measured"].startswith("efficiency 89.9 % (95 % interval ")
    assert efficiency["wanted"] == "at least 80.0 % (stages.stage2.gate.min_efficiency)"
    records = [ladder.run(f"default/weak/{k}").record for k in ("1x1/r1", "1x1/r2", "1x2/r1", "1x2/r2")]
    digests = {str(file.relative_to(ladder.results)): sha256(file.read_bytes()) for file in records}
    assert gate["records"] == digests


def test_a_check_that_could_not_be_made_is_not_called_passed(ladder: Ladder) -> None:
    directory = ladder.run()
    for rank in (0, 1):
        _in_rank(rank, first_samples=[])(directory)
    checks = reassemble(directory).checks
    assert [check.kind for check in checks if check.severity == "unknown"] == ["disjoint data"]
    sanity = next(found for found in ladder.judge("stage2").judged if found.place == RUN)
    assert sanity.measured == f"{len(checks) - 1} checks passed, not checkable: disjoint data"


# ---- Spoilt runs; what ranks, nodes and jobs may leave is in tests/unit/diagnosis/test_spoilt_runs.py. ----

Mutation = Callable[[RunDirectory], Any]


def _in_rank(rank: int, **values: Any) -> Mutation:
    return lambda run: edit(run.ranks / f"rank{rank}.json", lambda end: end.update(values))


def _faster_step(run: RunDirectory) -> None:
    rows = read_steps(run, 0)
    rows[30][3] = "0.001000000"
    write_steps(run, 0, rows)


FAILED: dict[str, Mutation] = {
    "checksum differs": lambda run: edit_part(run, 1, "parameters", checksum="sha256:b"),
    "exit code of a rank": _in_rank(1, exit_code=3),
    "exception on a rank": _in_rank(1, exit_code=1, ended_by="exception", exception="ValueError: no"),
    "time limit": lambda run: edit(run.ended, lambda end: end.update(outcome="time limit")),
    "fewer steps than wanted": lambda run: [write_steps(run, k, read_steps(run, k)[:39]) for k in (0, 1)],
}
"""What a failed run may leave, before the job has assembled the record."""

MUTATIONS: dict[str, Mutation] = {
    "exit code of a rank": FAILED["exit code of a rank"],
    "rank 0 missing": lambda run: (run.ranks / "rank0.json").unlink(),
    "removed": lambda run: run.record.unlink(),
    "not JSON": lambda run: run.record.write_text("status: ok\n"),
    "schema_version 1": lambda run: edit(run.record, lambda data: data.update(schema_version=1)),
    "record of another repeat": lambda run: shutil.copy(run.path.parent / "r1/record.json", run.record),
    "run.json removed": lambda run: run.run.unlink(),
    "faster step": _faster_step,
}
"""Damage after the job has assembled the record."""


ENDS_WELL = "a training that ends by itself, with exit code 0 on every rank and node"


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_spoilt_run_closes_the_gate(ladder: Ladder, name: str) -> None:
    MUTATIONS[name](ladder.run())
    assert_closed(ladder, RUN)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("checksum differs", "equal parameters: 1 distinct on 2 ranks"),
        ("exit code of a rank", ENDS_WELL),
        ("time limit", ENDS_WELL),
        (
            "fewer steps than wanted",
            "at least 40 on every rank (measure.warmup_steps + measure.min_steps), equally many",
        ),
    ],
)
def test_what_was_wanted_is_what_the_run_did_not_hold_to(ladder: Ladder, name: str, wanted: str) -> None:
    FAILED[name](ladder.run())
    reassemble(ladder.run())
    assert assert_closed(ladder, RUN).reason.wanted == wanted


@pytest.mark.parametrize("run", [BASELINE, RUN])
def test_a_run_spoilt_after_its_gate_opened_closes_the_gates_above(ladder: Ladder, run: str) -> None:
    MUTATIONS["faster step"](ladder.run(run))
    verdict = assert_closed(ladder, run, stage="stage3")
    assert len([f for f in verdict.judged if f.place == run]) == 1


def test_records_from_before_a_change_of_the_configuration(ladder: Ladder) -> None:
    plan = make_plan_of(make_specs(("1x1", "1x2"), repeats=2, env={"NCCL_ALGO": "Ring"}))
    verdict = assert_closed(replace(ladder, plan=plan), *(run.name for run in plan.runs))
    assert "the configuration has changed" in verdict.reason.measured


SPOILT_SINCE: dict[str, Mutation] = {
    "a run that failed": lambda run: [FAILED["exit code of a rank"](run), reassemble(run)],
    "a run that was deleted": lambda run: shutil.rmtree(run.path),
}


@pytest.mark.parametrize("spoil", SPOILT_SINCE)
def test_a_gate_that_is_not_true_now_starts_no_stage(
    ladder: Ladder, spoil: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does the report take it for what it says."""
    for stage in ladder.plan.stages:
        write_verdict(ladder.judge(stage), ladder.gates)
    SPOILT_SINCE[spoil](ladder.run())
    run, plan = ladder.run("default/weak/2x1/r1").run, ladder.results / "plan.json"
    before = run.stat()
    assert run_scale.main(["--plan", str(plan), "--scale", "2x1"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{ladder.gates}/stage2.json: the gate of stage2 is closed")
    assert "  next " in told
    assert run.stat() == before
    assert not read_results(ladder.results, ladder.plan).gates["stage2"].is_open


def test_a_missing_gate_starts_no_stage(ladder: Ladder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_scale.main(["--plan", str(ladder.results / "plan.json"), "--scale", "2x1"]) == 1
    assert "there is no evidence of an open gate" in capsys.readouterr().err


# ---- Thresholds. ----


def test_what_is_not_comparable_has_no_efficiency_to_pass(ladder: Ladder) -> None:
    words = "batch_per_gpu: 64 at 1x1, 128 at 1x2"
    for spec in ladder.plan.stage_jobs("stage2")[0].runs:
        run = write_run(ladder.results, spec, 1843.2)
        for rank in range(spec.world_size):
            edit_batches(run, rank, 128)
        reassemble(run)
    verdict = ladder.judge("stage2")
    assert (verdict.reason.kind, verdict.reason.place) == ("efficiency", "default/weak/1x2")
    assert "not comparable" in verdict.reason.measured
    assert words in verdict.reason.measured
    assert words in verdict.why
    assert "comparable" in verdict.reason.next
    gates = {**ladder.plan.gates, "stage2": GateThresholds(min_samples_per_s=1000.0)}
    assert replace(ladder, plan=replace(ladder.plan, gates=gates)).judge("stage2").is_open


def test_a_difference_that_the_user_allows_opens_the_gate_and_is_in_the_evidence(ladder: Ladder) -> None:
    for spec in ladder.plan.stage_jobs("stage2")[0].runs:
        write_run(ladder.results, spec, 1843.2, fingerprint={"num_workers": 1})
    closed = ladder.judge("stage2").reason
    assert "the same num_workers" in closed.next
    assert "`fingerprint: {may_differ: [num_workers]}` in config.yaml" in closed.next
    verdict = replace(ladder, plan=replace(ladder.plan, may_differ=("num_workers",))).judge("stage2")
    assert verdict.is_open
    assert verdict.points[-1].allowed == "num_workers: 0 at 1x1, 1 at 1x2"


# ---- Variants. ----


@pytest.fixture
def two_variants(tmp_path: Path) -> Ladder:
    return Ladder(tmp_path, write_ladder(tmp_path, scales=("1x1", "1x2"), repeats=1, variants=("default", "ring")))


def test_a_variant_that_fails_is_closed_and_the_gate_is_not(two_variants: Ladder) -> None:
    FAILED["exit code of a rank"](two_variants.run("ring/weak/1x2/r1"))
    reassemble(two_variants.run("ring/weak/1x2/r1"))
    verdict = two_variants.judge("stage2")
    assert verdict.is_open
    assert verdict.variants == {"default": "open", "ring": "closed"}
    gate = Verdict.from_json(read_json(write_verdict(verdict, two_variants.gates)))
    assert closed_variants(gate) == {"ring": "variant ring did not pass the gate of stage2"}


def test_a_variant_left_out_after_an_earlier_gate_stays_closed(two_variants: Ladder) -> None:
    FAILED["time limit"](two_variants.run("ring/weak/1x1/r1"))
    reassemble(two_variants.run("ring/weak/1x1/r1"))
    left_out = next(run for run in two_variants.plan.runs if run.name == "ring/weak/1x2/r1")
    directory = two_variants.run(left_out.name)
    shutil.rmtree(directory.path)
    write_record(directory.record, not_run(left_out, "variant stopped", "ring did not pass", "see its records"))
    verdict = two_variants.judge("stage2")
    assert verdict.is_open
    assert verdict.variants == {"default": "open", "ring": "closed"}
    left = next(f for f in verdict.judged if f.place == left_out.name)
    assert (left.kind, left.measured, left.next) == ("run", "not run: ring did not pass", "see its records")


def test_a_run_without_a_step_whose_script_made_steps_before_has_resumed(ladder: Ladder) -> None:
    for rank in (0, 1):
        write_steps(ladder.run(), rank, [])
        _in_rank(rank, parameters=None, source="none")(ladder.run())
    reassemble(ladder.run())
    verdict = ladder.judge("stage2")
    assert str(verdict.why).endswith("; default/weak/1x1/r1 made 60 steps with the same script")
    assert str(verdict.next).startswith("if the script resumes from a checkpoint")


# ---- The gate file and the command line. ----


def test_no_evidence_is_left_when_the_closed_gate_cannot_be_written(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_verdict(ladder.judge("stage2"), ladder.gates)
    MUTATIONS["removed"](ladder.run())
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        write_verdict(ladder.judge("stage2"), ladder.gates)
    assert list(ladder.gates.iterdir()) == []


def test_the_command_line_closes_with_a_box(ladder: Ladder, capsys: pytest.CaptureFixture[str]) -> None:
    FAILED["exception on a rank"](ladder.run())
    reassemble(ladder.run())
    assert main(["--plan", str(ladder.results / "plan.json"), "--stage", "stage2"]) == 1
    out, err = capsys.readouterr()
    reason = f"{RUN}: the script raised an exception: rank 1: ValueError: no"
    assert err == f"gate stage2: CLOSED, {reason}\n"
    assert "| verdict   the script raised an exception (rank 1 on node0) at " in out
    assert "Traceback" not in out + err
    assert not (ladder.gates / "stage2.json").exists()


def test_a_job_that_slurm_ended_is_told_where_there_is_no_record(ladder: Ladder) -> None:
    end = JobEnd("7", "stage2", "1x2", "TIMEOUT", "7.log", False, "node1", "TimeLimit", "its time was up", "raise it")
    write_job_end(ladder.results, end)
    assert ladder.judge("stage2").is_open, "a record counts for more than how a job ended"
    ladder.run().record.unlink()
    reason = ladder.judge("stage2").reason
    assert reason.measured == "job 7 ended TIMEOUT on node1: its time was up (TimeLimit); its log: 7.log"
    assert reason.next == "raise it"


def test_the_plain_baseline_is_in_the_evidence_and_not_judged(tmp_path: Path) -> None:
    specs = [*make_specs(["1x1", "1x2"], repeats=2)]
    specs += [make_spec("1x1", repeat=k, variant="plain", launcher="python", backend_wanted="gloo") for k in (1, 2)]
    for spec in specs:
        run = write_run(tmp_path, spec, 1900.0 if spec.world_size == 2 else 1024.0)
        if spec.is_plain:
            edit(run.ranks / "rank0.json", lambda end: end.update(backend=None, ddp=None))
            assert reassemble(run).status == "ok"
    verdict = judge(make_plan_of(specs), "stage2", tmp_path)
    assert verdict.is_open
    assert set(verdict.variants) == {"default"}
    assert not any(finding.place.startswith("plain") for finding in verdict.judged)
    assert {point.variant for point in verdict.points} == {"default", "plain"}
    assert any("plain/weak/1x1/r2" in path for path in verdict.records)
    two = next(point for point in verdict.points if point.world_size == 2)
    assert two["efficiency_plain"] == pytest.approx(1900 / 2048, rel=0.02)


# How it is told


def test_the_box_of_a_failed_run() -> None:
    why = "the GPU has no 2.00 GiB left: the batch is too large for it, or another process uses its memory"
    steps = (
        "lower workload.batch_per_gpu in config.yaml, or the model's size in workload.args",
        "run `nvidia-smi` on node7",
    )
    failure = Failure(verdict="CUDA out of memory", why=why, next=numbered(steps), rank=1, node="node7")
    said = ['rank 1 (node7): File "/home/ada/train.py", line 20, in main']
    failed = {**make_judged("1x2", "run", ok=False, measured=failure.in_words, repeat=1), "evidence": said}
    closed = make_gate("stage2", "closed", why="w", judged=[failed], next_step=failure.next)
    gate = Verdict.from_json(closed).replace(failure=failure)
    rows = [line.strip("| ")[:9].rstrip() for line in closed_box(gate).splitlines()[1:-1]]
    assert [row for row in rows if row.isalpha()] == ["verdict", "run", "why", "evidence", "next"]
    assert "| verdict   CUDA out of memory (rank 1 on node7) " in closed_box(gate)
    assert f"| evidence  {said[0]} " in closed_box(gate)
    first = closed_box(gate.replace(failure=failure.replace(at_s=1_800_000_000.0))).splitlines()[1]
    assert re.search(r"\(rank 1 on node7\) at [0-9]{2}:[0-9]{2}:00 ", first)


# A preflight that failed

WRONG = [{"bytes": 4096, "time_s": 1e-3, "wrong": ["int64, round 1: 1 of 512"]}]


def fail_preflight(ladder: Ladder) -> Path:
    return write_preflight(ladder.results, ladder.plan.job(Scale(1, 2)), rank1={"sizes": WRONG})


def test_runs_that_were_left_out_close_the_gate_with_the_preflights_finding(ladder: Ladder) -> None:
    preflight = fail_preflight(ladder)
    for spec in ladder.plan.job(Scale(1, 2)).runs:
        directory = ladder.run(spec.name)
        directory.run.unlink()
        write_record(directory.record, not_run(spec, "preflight failed", f"{PREFLIGHT_FAILED}: it says why", "do it"))
    verdict = ladder.judge("stage2")
    assert (verdict.reason.kind, verdict.reason.place) == ("preflight", "default/weak/1x2")
    assert verdict.failure.verdict == PREFLIGHT_FAILED
    assert "an all-reduce of 4096 bytes returned wrong values on rank 1" in verdict.reason.measured
    assert "network.env in cluster.yaml" in verdict.next
    assert "| wanted    the exact sum, in every element " in closed_box(verdict)
    assert list(runs_to_do(ladder.plan, RunRecords(ladder.results))) == ["1x2"]  # the next start makes them
    preflight.unlink()  # the records say why, too
    assert f"{PREFLIGHT_FAILED}: it says why" in ladder.judge("stage2").why


def test_runs_that_were_made_before_a_preflight_failed_are_judged_by_their_records(ladder: Ladder) -> None:
    before = ladder.judge("stage2")
    fail_preflight(ladder)
    assert ladder.judge("stage2") == before
    assert before.is_open
    assert not runs_to_do(ladder.plan, RunRecords(ladder.results))
