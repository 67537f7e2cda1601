"""Tokens, the hours of the centre, energy and carbon: against sums from the raw files, and in every text."""

from __future__ import annotations

import csv
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from ddp_ladder.analysis.decisions import Work, with_cost
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.ledger.jobs import totals
from ddp_ladder.plan.plan import Plan, Units
from ddp_ladder.records.raw_models import Flops, Tokens, Witnessed
from ddp_ladder.report.document import as_markdown, in_words
from ddp_ladder.report.hours import EUROHPC, SWISS_AI, milestone_table, milestones
from ddp_ladder.report.page import recommendations, write_report
from ddp_ladder.report.proposal import proposal
from ddp_ladder.report.terminal import summary_text
from ddp_ladder.report.view import LadderResults, ReportView, read_results
from make_jobs import make_row
from make_records import make_record, make_specs, repeated
from make_results import make_results
from make_runs import edit, edit_rank, reassemble, write_ladder

TODAY = date(2026, 11, 28)
TOKENS = 512  # of a sample, as the instrument saw them
NORMALISED = Units.from_json({"hours": {"name": "normalised GPU h", "per_gpu_hour": 2}})
NODE_HOURS = Units.from_json({"hours": {"name": "node h", "per_node_hour": 1.5}})


def climb(results: Path, units: Units, seen: Mapping[str, int | None] | None = None) -> Plan:
    """Write a ladder whose loaders gave input_ids of TOKENS, or of this length at a scale."""
    plan = replace(write_ladder(results, wobble=0.001), units=units)
    for spec in plan.runs:
        directory = RunDirectory(results / "runs" / spec.name)
        tokens = (seen or {}).get(str(spec.scale), TOKENS)
        for rank in range(spec.world_size):
            edit(directory.ranks / f"rank{rank}.json", lambda end, t=tokens: end["loader"].update(tokens_per_sample=t))
        reassemble(directory)
    return plan


def rate_from_raw_files(run: Path, warmup: int = 10) -> float:
    """Return samples/s of the slowest rank's step in each step, by nothing of ours: the median over the steps."""
    samples, slowest_s = [0.0] * 60, [0.0] * 60
    for file in sorted((run / "ranks").glob("rank*.steps")):
        content = file.read_bytes()
        matrix = struct.unpack(f"<{len(content) // 8}d", content)
        for k in range(60):  # the matrix holds columns: step, samples, padding, step time, ...
            samples[k] += matrix[60 + k]
            slowest_s[k] = max(slowest_s[k], matrix[180 + k])
    return median(n / s for n, s in zip(samples[warmup:], slowest_s[warmup:], strict=True))


@pytest.mark.parametrize(("units", "per_gpu", "per_node"), [(NORMALISED, 2, 0), (NODE_HOURS, 0, 1.5)])
def test_tokens_and_hours_of_raw_files(tmp_path: Path, units: Units, per_gpu: float, per_node: float) -> None:
    found = read_results(tmp_path, climb(tmp_path, units))
    assert found.work.tokens_per_sample == TOKENS
    write_report(replace(found, work=replace(found.work, tokens=3e9)), TODAY)
    with (tmp_path / "report" / "scaling.csv").open() as file:
        rows = {(int(row["nodes"]), int(row["gpus_per_node"])): row for row in csv.DictReader(file)}
    for (nodes, gpus_per_node), row in rows.items():
        runs = sorted((tmp_path / "runs/default/weak" / f"{nodes}x{gpus_per_node}").glob("r*"))
        tokens_per_s = median(rate_from_raw_files(run) for run in runs) * TOKENS
        assert float(row["tokens_per_s"]) == pytest.approx(tokens_per_s, rel=2e-3)
        assert float(row["tokens_per_s_per_gpu"]) == pytest.approx(tokens_per_s / nodes / gpus_per_node, rel=2e-3)
        hours = 3e9 / tokens_per_s / 3600
        price = nodes * (gpus_per_node * per_gpu + per_node)
        assert float(row["centre_hours_to_solution"]) == pytest.approx(hours * price, rel=2e-3)
        of_a_million = 1e6 * TOKENS / tokens_per_s / 3600 * price
        assert float(row["centre_hours_per_million_samples"]) == pytest.approx(of_a_million, rel=2e-3)


def test_lengths_that_differ_are_no_tokens_and_no_efficiency(tmp_path: Path) -> None:
    found = read_results(tmp_path, climb(tmp_path, Units(), {"1x2": 1024, "2x1": None}))
    points = {str(point.scale): point for point in found.points}
    assert [points[scale].tokens_per_sample for scale in ("1x1", "1x2", "2x1")] == [512, 1024, None]
    assert points["1x2"].differing == ("tokens_per_sample",)
    assert points["2x1"]["tokens_per_s"] is None
    assert found.work.tokens_per_sample is None
    assert "set workload.tokens_per_sample" in replace(found.work, tokens=3e9).missing


@pytest.mark.parametrize("change", [{"loader": None}, {"source": "guessed"}])
def test_tokens_are_known_only_if_every_rank_counted_samples_of_one_length(tmp_path: Path, change: Any) -> None:
    plan = climb(tmp_path, Units())
    directory = RunDirectory(tmp_path / "runs" / plan.runs[2].name)
    assert reassemble(directory).fingerprint.tokens_per_sample == TOKENS
    edit_rank(directory, 1, **change)
    assert reassemble(directory).fingerprint.tokens_per_sample is None


RATES = {"1x1": 1000.0, "1x4": 3800.0, "2x4": 7000.0}


def results_of(units: Units, **work: Any) -> LadderResults:
    specs = make_specs(list(RATES), device="cuda")
    records = [make_record(spec, repeated(RATES[str(spec.scale)], spec)) for spec in specs]
    flops = Flops(forward=20e9, backward=40e9, precisions={"bf16": 1.0}, steps=3)
    records = [record.replace(flops=flops) if record.spec.gpus == 1 else record for record in records]
    found = make_results(records, work=Work(**work), jobs=(make_row(nodes=2, gpus=8, scale="2x4"),))
    return replace(found, plan=replace(found.plan, units=units))


def application(results: LadderResults) -> str:
    return as_markdown(proposal(ReportView(results, TODAY))).replace("\u00a0", " ")


def test_every_text_says_the_hours_of_the_centre() -> None:
    results = results_of(NORMALISED, samples=126e6, runs=2)
    text, view = application(results), ReportView(results, TODAY)
    hours = 126e6 / 7000 / 3600  # 5.00 at 2x4
    assert f"{8 * hours:.1f} GPU hours, or {2 * hours:.1f} node hours ({16 * hours:.1f} normalised GPU h)." in text
    assert "| normalised GPU h of one training |" in text  # the table of scales
    assert "| node hours | normalised GPU h |" in text  # the milestones
    held = totals(results.jobs, results.plan.hour_unit)
    assert held in text
    assert f"({2 * results.jobs[0].gpu_hours_held:.3f} normalised GPU h), of which" in held
    assert any(f"({16 * hours:.1f} normalised GPU h)" in words for _, words in recommendations(view))
    assert held in summary_text(results).replace("\n" + 9 * " ", " ")


def test_tokens_are_a_length_and_checked_by_the_usual_rule() -> None:
    text = application(results_of(Units(tokens_per_sample=100), tokens=126e8, tokens_per_sample=100, runs=1))
    assert "7,000 samples/s, 700,000 tokens/s (87,500 per GPU), 7.00x" in text
    assert "| tokens/s (per GPU) |" in text
    assert "One training of 12,600,000,000 tokens takes 5 h 00 min at 2x4" in text
    flop_per_s = 60e9 * 7000
    by_rule_h = 6 * 1_199_882 * 126e8 / flop_per_s / 3600
    assert (
        f"6 x 1,199,882 parameters x 12,600,000,000 tokens / 420 TFLOP/s = {by_rule_h:.4f} h; measured 5.00 h" in text
    )
    assert f", {5 / by_rule_h:.1f} times that. The rule leaves attention out" in text
    assert "Check at" not in application(results_of(Units(), samples=126e6))


def test_what_a_witness_saw_of_padding_stands_beside_tokens() -> None:
    found = results_of(Units(tokens_per_sample=100), samples=126e6)
    seen = Witnessed(status="witnessed", tokens=Tokens(all=800, attended=600, labelled=None))
    records = {path: record.replace(witness=seen) for path, record in found.records.items()}
    text = application(replace(make_results([*records.values()], work=found.work), plan=found.plan))
    assert "700,000 tokens/s (87,500 per GPU; 75 % of them no padding (attention\\_mask)), 7.00x" in text


def test_carbon_is_of_the_sampled_energy_and_named_with_its_source() -> None:
    carbon = Units.from_json({"carbon": {"grams_co2_per_kwh": 250, "source": "grid, 2025"}})
    (point,) = (point for point in results_of(carbon).points if str(point.scale) == "2x4")
    for joules, kg in ((0.72, 1e6 * 0.72 / 3.6e6 * 0.25), (None, None)):
        (priced,) = with_cost([point.having({"energy_j_per_sample": joules})], Work(samples=1e6), carbon)
        assert priced["carbon_kg_to_solution"] == pytest.approx(kg)
        (unsaid,) = with_cost([point.having({"energy_j_per_sample": joules})], Work(samples=1e6), Units())
        assert unsaid["carbon_kg_to_solution"] is None


# The hours that an application asks for, against sums by hand


LADDER = {"1x1": 1000.0, "1x4": 3800.0, "2x4": 7000.0, "4x4": 9000.0}  # 4x4: 56 %, below every threshold


def view_of(modes: Sequence[str] = ("weak",), **work: Any) -> ReportView:
    specs = make_specs(list(LADDER), modes=list(modes), device="cuda")
    records = [make_record(spec, repeated(LADDER[str(spec.scale)], spec), startup_s=36.0) for spec in specs]
    return ReportView(make_results(records, work=Work(**work)), date(2026, 11, 24))


def test_that_runs_which_were_ended_early_may_lack_validation_is_said() -> None:
    view = view_of(samples=1e6)
    records = {
        name: record.replace(ranks=tuple(rank.replace(ended_by="max_steps") for rank in record.ranks))
        for name, record in view.results.records.items()
    }
    for each, said in ((view, False), (replace(view, results=replace(view.results, records=records)), True)):
        _, notes = milestone_table(each, EUROHPC)
        assert any("ended early" in in_words(item) for item in notes.items) == said


def rows(view: ReportView, headings: Sequence[str]) -> list[dict[str, str]]:
    table, _ = milestone_table(view, headings)
    return [
        dict(zip(headings, (in_words(cell).replace("\u00a0", " ") for cell in row), strict=True)) for row in table.rows
    ]


def test_node_hours_are_runs_times_wall_hours_times_nodes_with_the_reserve() -> None:
    """One run: start-up, and 126 million samples at 0.9 of the steps' 7,000 a second, which these records have."""
    best, cheapest = milestones(view_of(samples=126e6, runs=12, reserve=0.25))
    wall_h = (36 + 126e6 / (0.9 * 7000)) / 3600
    assert (str(best.point.scale), best.training.hours) == ("2x4", pytest.approx(wall_h))
    assert best.training.of_all.nodes == pytest.approx(2 * 12 * wall_h * 1.25)
    rate_low, rate_high = best.point.of("samples_per_s").low, best.point.of("samples_per_s").high
    assert [end / best.of_steps.value for end in best.of_steps.ends] == pytest.approx(
        [7000 / rate_high, 7000 / rate_low]
    )
    assert str(cheapest.point.scale) == "1x4"


@pytest.mark.parametrize(
    ("work", "steps"),
    [
        ({"samples": 512e4}, {"2x4": "10,000", "1x4": "20,000"}),
        ({"steps": 500}, {"2x4": "500", "1x1": "500"}),
        ({"epochs": 2, "dataset_size": 51_200}, {"2x4": "200", "1x4": "400"}),
    ],
)
def test_the_steps_of_a_run_follow_from_the_global_batch_of_its_scale(
    work: dict[str, Any], steps: dict[str, str]
) -> None:
    """Weak scaling with 64 per GPU."""
    table = rows(view_of(**work, runs=3), EUROHPC)
    assert {row["run type"].rpartition(" ")[2]: row["steps per run"] for row in table} == steps
    assert [row["runs"] for row in table] == ["3", "3"]


def test_each_mode_has_its_rows_and_strong_efficiency_is_only_of_strong_scaling() -> None:
    table = rows(view_of(("weak", "strong"), samples=1e6, runs=1), SWISS_AI)
    assert [(row["run type"], row["strong efficiency"]) for row in table] == [
        ("training, weak scaling, recommended 2x4", "weak: 88 %"),
        ("training, weak scaling, cheapest 1x1", "weak: 100 %"),
        ("training, strong scaling, recommended 2x4", "88 %"),
        ("training, strong scaling, cheapest 1x1", "100 %"),
    ]


def test_reserve_restarts_and_waits_are_said_as_measured() -> None:
    view = view_of(samples=1e6, runs=2)
    jobs = tuple(make_row(queue_wait_s=wait_s) for wait_s in (30.0, 600.0, 60.0))
    view = replace(view, results=replace(view.results, jobs=jobs))
    _, notes = milestone_table(view, EUROHPC)
    said = " ".join(map(in_words, notes.items)).replace("\u00a0", " ")
    assert "a reserve of 10 % for failed jobs" in said
    assert "contain one start-up, and validation and checkpoints in the proportion of the measured runs" in said
    assert "36 s at 2x4, 0.0200 node hours" in said
    assert "3 jobs of these measurements waited 1 min 00 s in the queue (median; the longest 10 min 00 s)" in said
