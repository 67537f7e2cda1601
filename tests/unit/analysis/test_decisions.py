"""What is decided from the points, and that all who word it name the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from ddp_ladder.analysis.cost import Work
from ddp_ladder.analysis.decisions import Decision, decide
from ddp_ladder.common.formats import NARROW_SPACE
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import Verdict
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, Record
from ddp_ladder.report.document import in_words
from ddp_ladder.report.hours import EUROHPC, SWISS_AI, milestone_table, request
from ddp_ladder.report.page import recommendations
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.view import ReportView, judged_earlier
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_records import make_failed_record, make_plan_of, make_record, make_specs, records_by_name, repeated

RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}
GATES: Mapping[str, float | None] = {"stage1": None, "stage2": None, "stage3": None}
WORK = Work(samples=90e6, runs=3)


def points_of(rates: dict[str, float], other: str = "", between: float = 0.004) -> list[ScalePoint]:
    """The points of a ladder with these samples/s; one of them of another precision."""
    specs = make_specs(list(rates))
    records = [
        make_record(
            spec,
            repeated(rates[str(spec.scale)], spec, between),
            fingerprint={"autocast_dtype": "float16"} if str(spec.scale) == other else None,
        )
        for spec in specs
    ]
    return [*scale_points(specs, records_by_name(records))]


def decided(rates: dict[str, float], gates: Mapping[str, float | None] = GATES, **kind: Any) -> Decision:
    (found,) = decide(points_of(rates, **kind), gates)
    return found


def chosen(rates: dict[str, float], gates: Mapping[str, float | None] = GATES, other: str = "") -> str:
    found = decided(rates, gates, other=other).recommended
    assert found
    return str(found.scale)


def test_the_recommended_scale() -> None:
    rates = {**RATES, "4x4": 9000.0}
    assert chosen(rates) == "2x4"
    assert chosen(rates, {**GATES, "stage3": 0.9}) == "1x4"
    assert chosen(rates, {**GATES, "stage3": 0.5}) == "4x4"
    assert chosen(rates, other="2x4") == "1x4"  # does not compare; 4x4 has less than 75 %
    assert chosen({"1x1": 1000.0, "1x2": 900.0}) == "1x1"
    low = {**GATES, "stage2": 0.3, "stage3": 0.2}
    assert chosen({"1x1": 1000.0, "1x2": 1100.0, "2x2": 900.0}, low) == "1x2"  # slower than a smaller one
    assert chosen({"1x1": 1000.0, "1x2": 2500.0}) == "1x1"  # more than the ideal
    assert decide([], GATES) == ()


@pytest.mark.parametrize(
    ("gates", "rule"),
    [(GATES, "75 %, as most centres ask for"), ({"stage3": 0.7}, "70 %, as the gate of stage3 asks for")],
)
def test_a_recommendation_says_its_rule(gates: dict[str, float | None], rule: str) -> None:
    said = decided(RATES, gates).rule.replace(NARROW_SPACE, " ")
    assert said == f"the largest scale whose efficiency against 1x1 is at least {rule}"


def test_a_larger_scale_that_is_as_efficient_as_asked_for_and_slower_is_explained() -> None:
    found = decided({"1x1": 1000.0, "2x1": 1100.0, "4x1": 1050.0}, {"stage3": 0.02})
    assert str(found.recommended and found.recommended.scale) == "2x1"
    assert found.rule.endswith("as the gate of stage3 asks for, and that is faster than all smaller ones")


def test_a_scale_is_uncertain_if_less_than_is_asked_for_may_be_true() -> None:
    assert decided(RATES).doubt == ""
    wide = decided({"1x1": 1000.0, "2x1": 1600.0}, between=0.05)
    assert re.fullmatch(r"the 95.% interval of the efficiency, \[\d\d.\d\d.%\], contains less", wide.doubt)
    specs = make_specs(["1x1", "2x1"], repeats=1)
    (one,) = decide(scale_points(specs, records_by_name([make_record(spec, 1000.0 * spec.gpus) for spec in specs])), {})
    assert one.doubt == "this is an estimate from one repeat"


def test_all_of_a_run_takes_no_less_than_its_steps() -> None:
    """The median of blocks may be slower than the mean of all steps."""
    specs = make_specs(["1x1"])
    slower = [make_record(spec, 1000.0) for spec in specs]
    slower = [
        record.replace(
            throughput=record.throughput
            and record.throughput.replace(samples_per_s_total=1100.0, samples_per_s_end_to_end=1090.0)
        )
        for record in slower
    ]
    (point,) = view_of(slower).points
    assert point.hours_to_solution == pytest.approx(25)
    assert point.wall_hours_to_solution == pytest.approx(25 * 1100 / 1090 + 4.2 / 3600)


# --- All who word it


def view_of(records: Sequence[Record], specs: Sequence[Any] = ()) -> ReportView:
    plan = make_plan_of(specs or [record.spec for record in records])
    return ReportView(LadderResults(plan, records_by_name(records), {}, (), work=WORK), date(2026, 11, 24))


def named(view: ReportView) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The recommended scale of each mode: of the page, of the proposal's words, and of its table of milestones."""
    modes = [decision.mode for decision in view.decisions]
    of_page = {}
    for lead, text in recommendations(view):
        if lead == "Recommended":
            found = re.match(r"(\S+)(?: (\w+) \w+)? \(", text)
            assert found
            of_page[found[2] or modes[0]] = found[1]
    words = "\n".join(block.text for block in request(view))
    of_request = {
        mode.lower(): scale for mode, scale in re.findall(r"(\w+) scaling: jobs of (\S+) are requested", words)
    }
    table = next((block for block in milestone_table(view, EUROHPC) if block.headings), None)
    kinds = [in_words(row[0]).split(" ") for row in table.rows] if table else []
    of_table = {mode: scale for _, mode, _, kind, scale in kinds if kind == "recommended"}
    assert ("uncertain" in words) == any(decision.doubt for decision in view.decisions)
    return of_page, of_request, of_table


def test_a_missing_repeat_at_the_largest_good_scale_changes_no_reader() -> None:
    specs = make_specs(list(RATES))
    records = [make_record(spec, repeated(RATES[str(spec.scale)], spec)) for spec in specs][:-1]
    assert named(view_of(records, specs)) == ({"weak": "2x4"},) * 3


SCALES = ("1x1", "1x2", "1x4", "2x4", "4x4")


@st.composite
def ladders(draw: st.DrawFn) -> ReportView:
    """A ladder of modes, variants and repeats, of which some runs failed or are missing."""
    modes = draw(st.sampled_from([["weak"], ["strong"], ["weak", "strong"]]))
    variants = draw(st.sampled_from([["default"], ["default", "gloo"], ["gloo", "zero1"]]))
    specs = make_specs(
        SCALES[: draw(st.integers(1, 5))], repeats=draw(st.integers(1, 3)), modes=modes, variants=variants
    )
    between, records = draw(st.sampled_from([0.0, 0.004, 0.05])), []
    efficiency = {scale: draw(st.sampled_from([1.2, 1.0, 0.9, 0.76, 0.5, 0.2])) for scale in SCALES}
    whole = draw(st.booleans())
    for spec in specs:
        record = make_record(spec, repeated(1000.0 * spec.gpus * efficiency[str(spec.scale)], spec, between))
        fate = draw(st.sampled_from(["ok", "ok", "ok", "ok", "missing", "failed", "slow start"]))
        if fate == "failed":
            record = make_failed_record(spec)
        if fate == "slow start" and record.timing:
            record = record.replace(timing=record.timing.replace(startup_s=4000.0 if whole else None))
        if fate != "missing":
            records.append(record)
    return view_of(records, specs)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(ladders())
def test_all_readers_name_the_same_scale_and_the_cheapest_is_the_cheapest_that_is_shown(view: ReportView) -> None:
    truth = {each.mode: str(each.recommended.scale) for each in view.decisions if each.recommended}
    assert named(view) == (truth, truth, truth)
    for headings, unit in ((EUROHPC, "node hours"), (SWISS_AI, "GPU hours")):
        for decision in view.decisions:
            cost = {
                point.scale: hours * (point.nodes if unit == "node hours" else point.world_size)
                for point in decision.points
                if point.status in ("ok", "incomplete") and (hours := decision.hours(point)) is not None
            }
            cheapest = decision.cheapest(unit == "node hours")
            assert (cheapest is None) == (not cost)
            if cheapest:
                assert cost[cheapest.scale] == min(cost.values())
        rows = [block.rows for block in milestone_table(view, headings) if block.headings]
        assert len(rows) <= 1


def test_a_gate_that_was_judged_with_another_statistic_says_so() -> None:
    specs = make_specs(["1x1", "1x2", "2x1"])
    view = view_of([make_record(spec, 1000.0 * spec.gpus) for spec in specs])
    before = tuple(point for point in view.points if point.stage != "stage3")
    gate = Verdict.model_construct(stage="stage2", verdict="open", points=before)
    assert before[0].statistic == MEDIAN_OF_BLOCKS
    assert judged_earlier(gate, view.rungs) == ""
    now = [replace(point, statistic=SAMPLES_PER_TIME) for point in view.rungs]
    said = "judged before 2x1 was measured; with it, the figures of the table are samples / time"
    assert judged_earlier(gate, now) == said
