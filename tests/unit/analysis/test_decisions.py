"""What is decided from the points, and that all who word it name the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.analysis.decisions import Decision, Work, decide, with_cost
from ddp_ladder.common.formats import NARROW_SPACE, significant
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S
from ddp_ladder.gates.gate import performance
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.live import screen
from ddp_ladder.live.screen import LadderState, ScaleState
from ddp_ladder.plan.plan import Units
from ddp_ladder.records.record import Record
from ddp_ladder.report.comparison import (
    FASTER,
    NO_DIFFERENCE,
    REFERENCE,
    SLOWER,
    WITHHELD,
    comparison_blocks,
    sentences,
)
from ddp_ladder.report.document import as_markdown, in_words
from ddp_ladder.report.hours import EUROHPC, SWISS_AI, milestone_table, time_to_solution
from ddp_ladder.report.page import recommendations
from ddp_ladder.report.proposal import proposal
from ddp_ladder.report.view import ReportView
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_records import make_failed_record, make_record, make_specs, records_by_name, repeated
from make_results import make_results

RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}
GATES: Mapping[str, float | None] = {"stage1": None, "stage2": None, "stage3": None}
WORK = Work(samples=90e6, runs=3)


def points_of(rates: dict[str, float], other: str = "", between: float = 0.004) -> list[ScalePoint]:
    """The points of a ladder with these samples/s; one of them of another precision."""
    specs, half = make_specs(list(rates)), {"autocast_dtype": "float16"}
    seen = {scale: half if scale == other else None for scale in rates}
    scales = [(spec, str(spec.scale)) for spec in specs]
    records = [make_record(s, repeated(rates[scale], s, between), fingerprint=seen[scale]) for s, scale in scales]
    return [*scale_points(specs, records_by_name(records))]


def decided(rates: dict[str, float], gates: Mapping[str, float | None] = GATES, **kind: Any) -> Decision:
    (found,) = decide(points_of(rates, **kind), gates)
    return found


def chosen(rates: dict[str, float], gates: Mapping[str, float | None] = GATES, other: str = "") -> str:
    return str(decided(rates, gates, other=other).recommended.scale)


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
    shown = "and that its interval shows to be faster than all smaller ones"
    assert found.rule.endswith(f"as the gate of stage3 asks for, {shown}")


@pytest.mark.parametrize(
    ("rate", "between", "repeats", "scale"),
    [
        (1030.0, 0.2, 3, "1x1"),  # 1.03 times as fast, and it may be half as fast
        (1030.0, 0.004, 3, "1x1"),  # in other jobs of the same speed, the difference may be as large
        (1300.0, 0.004, 3, "4x1"),
        (1300.0, 0.2, 3, "1x1"),
        (1030.0, 0.0, 1, "1x1"),
        (1300.0, 0.0, 1, "4x1"),  # one repeat has no interval but that of any two jobs
    ],
)
def test_a_larger_scale_is_recommended_if_it_is_shown_to_be_faster(
    rate: float, between: float, repeats: int, scale: str
) -> None:
    specs = make_specs(["1x1", "4x1"], repeats=repeats)
    rates = {"1x1": 1000.0, "4x1": rate}
    records = [make_record(spec, repeated(rates[str(spec.scale)], spec, between)) for spec in specs]
    (found,) = decide(scale_points(specs, records_by_name(records)), {"stage3": 0.2})
    assert str(found.recommended and found.recommended.scale) == scale


def test_a_scale_is_uncertain_if_less_than_is_asked_for_may_be_true() -> None:
    assert decided(RATES).doubt == ""
    wide = decided({"1x1": 1000.0, "2x1": 1600.0}, between=0.05)
    assert wide.doubt.replace(NARROW_SPACE, " ") == (
        "Whether the efficiency of 2x1 (weak scaling) is at least 75 % is uncertain: "
        "in other jobs it may be 71.5 % to 89.6 %."
    )
    specs = make_specs(["1x1", "2x1"], repeats=1)
    (one,) = decide(scale_points(specs, records_by_name([make_record(spec, 1000.0 * spec.gpus) for spec in specs])), {})
    assert one.doubt.endswith(" is uncertain: this is an estimate from one repeat.")


def test_all_of_a_run_takes_no_less_than_its_steps() -> None:
    """The median of blocks may be slower than the mean of all steps."""
    specs = make_specs(["1x1"])
    faster = {"samples_per_s_total": 1100.0, "samples_per_s_end_to_end": 1090.0}
    records = [make_record(spec, 1000.0) for spec in specs]
    records = [record.replace(throughput=record.throughput.replace(**faster)) for record in records]
    (point,) = view_of(records).points
    assert point["hours_to_solution"] == pytest.approx(25)
    assert point["wall_hours_to_solution"] == pytest.approx(25 * 1100 / 1090 + 4.2 / 3600)


# --- Cost


def test_what_is_not_known_stays_unknown() -> None:
    assert "set report.samples" in Work(epochs=90).missing
    assert Work().missing == Work(90, None, 10).missing == Work(90, 5).missing == ""
    empty = ScalePoint("default", "weak", "stage2", 1, 2, 2, 64, 128, 0)
    assert with_cost([empty], Work(90, None, 10), Units()) == (empty,)
    known = empty.having({"samples_per_s": 1000.0})
    (unpriced,) = with_cost([known], Work(epochs=90), Units())
    assert (unpriced["hours_to_solution"], unpriced["energy_kwh_to_solution"]) == (None, None)


# --- All who word it


def view_of(records: Sequence[Record], specs: Sequence[Any] = ()) -> ReportView:
    return ReportView(make_results(records, specs or None, work=WORK), date(2026, 11, 24))


@dataclass(frozen=True)
class Asked:
    """The scale that a reader names for a mode; None: it does not say whether it is certain, or the hours."""

    recommended: str
    is_certain: bool | None = None
    hours: str | None = None


def of_page(view: ReportView) -> dict[str, Asked]:
    texts = [text for lead, text in recommendations(view) if lead == "Recommended"]
    found = [re.match(r"(\S+)(?: (\w+) \w+)? \((.*)", text) for text in texts]
    return {its[2] or view.decisions[0].mode: Asked(its[1], "is uncertain: " not in its[3]) for its in found}


def of_proposal(view: ReportView) -> dict[str, Asked]:
    said = as_markdown(proposal(view))
    found = re.findall(r"(\w+) scaling: jobs of (\S+) are requested,(.*)", said)
    return {mode.lower(): Asked(scale, "is uncertain: " not in why) for mode, scale, why in found}


def of_words(view: ReportView) -> dict[str, Asked]:
    said = [block.text for block in time_to_solution(view)]
    found = [(re.search(r"takes? .*? at (\S+) \((\w+) scaling\)", text), text) for text in said]
    return {place[2]: Asked(place[1], "is uncertain: " not in text) for place, text in found if place}


def of_table(view: ReportView, headings: Sequence[str], kind: str = "recommended") -> dict[str, Asked]:
    table = next((block for block in milestone_table(view, headings) if block.headings), None)
    rows = [[in_words(cell) for cell in row] for row in table.rows] if table else []
    found = [(re.fullmatch(r"training, (\w+) scaling, (\w+) (\S+)( \(uncertain\))?", row[0]), row[-1]) for row in rows]
    return {its[1]: Asked(its[3], not its[4], hours) for its, hours in found if its and its[2] == kind}


SCALES = ("1x1", "1x2", "1x4", "2x4", "4x4")


@st.composite
def ladders(draw: st.DrawFn) -> ReportView:
    """A ladder of modes, variants and repeats, of which some runs failed or are missing."""
    modes = draw(st.sampled_from([["weak"], ["strong"], ["weak", "strong"]]))
    variants = draw(st.sampled_from([["default"], ["default", "gloo", "zero1"], ["gloo", "zero1"]]))
    specs = make_specs(
        SCALES[: draw(st.integers(1, 5))], repeats=draw(st.integers(1, 3)), modes=modes, variants=variants
    )
    between, records = draw(st.sampled_from([0.0, 0.004, 0.05])), []
    efficiency = {scale: draw(st.sampled_from([1.2, 1.0, 0.9, 0.76, 0.5, 0.2])) for scale in SCALES}
    faster = {variant: draw(st.sampled_from([1000.0, 1010.0, 1100.0])) for variant in variants}
    places = [(scale, mode) for scale in SCALES for mode in modes]
    startup_s = {place: draw(st.sampled_from([4.2, 4.2, 4.2, 9000.0, None])) for place in places}
    for spec in specs:
        rate = repeated(faster[spec.variant] * spec.gpus * efficiency[str(spec.scale)], spec, between)
        record = make_record(spec, rate, startup_s=startup_s[str(spec.scale), spec.mode])
        fate = draw(st.sampled_from(["ok", "ok", "ok", "ok", "ok", "missing", "failed"]))
        if fate == "failed":
            record = make_failed_record(spec)
        if fate != "missing":
            records.append(record)
    return view_of(records, specs)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(ladders())
def test_all_readers_say_the_same(view: ReportView) -> None:
    chosen = {each.mode: (each, each.recommended) for each in view.decisions if each.recommended}
    truth = {mode: Asked(str(point.scale), not each.doubt) for mode, (each, point) in chosen.items()}
    assert of_page(view) == of_proposal(view) == of_words(view) == truth
    for headings, gpus_count in ((EUROHPC, False), (SWISS_AI, True)):
        rows, cheapest = of_table(view, headings), of_table(view, headings, "cheapest")
        assert {mode: replace(each, hours=None) for mode, each in rows.items()} == truth
        for decision in view.decisions:
            node_hours = {
                str(point.scale): point.nodes * hours * 3 * 1.1 * (point.gpus_per_node if gpus_count else 1)
                for point in decision.points
                if point.status in ("ok", "incomplete") and (hours := decision.hours(point)) is not None
            }
            shown = [reader[decision.mode] for reader in (rows, cheapest) if decision.mode in reader]
            for each in shown:
                assert each.hours.partition(" [")[0] == significant(node_hours[each.recommended])
            if node_hours:
                assert min(node_hours[each.recommended] for each in shown) == min(node_hours.values())
    certain_as_judged(view)
    seen_by_watch(view)
    compared_by_its_own_rule(view)


def certain_as_judged(view: ReportView) -> None:
    """A gate that asks for an efficiency is as certain of it as the recommendation."""
    for decision in view.decisions:
        if (point := decision.recommended) and view.thresholds[point.stage] is not None:
            judged = performance(view.plan, point, view.points, Path("results"))
            assert [each.uncertain for each in judged if each.kind == "efficiency"] == [bool(decision.doubt)]


def seen_by_watch(view: ReportView) -> None:
    """The live view has the figures of the table of the first mode and variant that is decided on."""
    state = LadderState(Path("results"), 0.0, view.plan, points=view.results.points)
    known = {str(point.scale): point for point in (view.decisions[0].points if view.decisions else ())}
    for job in view.plan.jobs:
        name, _, rate, efficiency = screen._figures(state, ScaleState(job, ()))
        point = known.get(name)
        assert rate == (SAMPLES_PER_S.shown(point) if point else "")
        assert efficiency == (EFFICIENCY.shown(point) if point and point["efficiency"] else "")


def compared_by_its_own_rule(view: ReportView) -> None:
    """One repeat of a variant is preferred only where no other variant has several; page and terminal say the same."""
    if view.comparison is None:
        return
    said = " ".join(sentences(view.comparison))
    assert said == next(iter(comparison_blocks(view.comparison))).text
    for panel in view.comparison:
        by_name = {row.name: row.verdict for row in panel.rows}
        for name in re.findall(rf"At {panel.place}, use (\S+) ", said):
            several = {FASTER, SLOWER, NO_DIFFERENCE} & {*by_name.values()}
            assert by_name[name] in ({REFERENCE, FASTER} if several else {REFERENCE, WITHHELD})
