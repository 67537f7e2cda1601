"""Thresholds, intervals that hold them, and efficiencies that are too good to be true."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.gates.gate import Verdict, closed_box, performance
from ddp_ladder.gates.interval import Estimate, LogMean, Variance, factor
from ddp_ladder.gates.points import Figures, ScalePoint
from ddp_ladder.report.view import gate_words
from ddp_ladder.settings.keys import GateThresholds
from make_records import make_gate, make_judged, make_plan_of, make_specs

Interval = tuple[float, float]  # value, and half the width in logarithms of the interval in one job
ONE: Interval = (1.0, 0.0)


def log_of(value: float, half_width: float, repeats: int, differ_percent: float) -> LogMean:
    """A ratio of two jobs: each of as many repeats."""
    freedom = 2 * (repeats - 1)
    own = Variance((half_width / factor(freedom)) ** 2, freedom) if freedom else None
    return LogMean(math.log(value), own, Variance(), Variance(2 * (differ_percent / 100) ** 2))


def point(
    ranks: int, efficiency: Interval = ONE, repeats: int = 5, differ_percent: float = 0.0, *, wait: float = 0.02
) -> ScalePoint:
    """Of one node."""
    value, half_width = efficiency
    found = Estimate.of(value, log_of(value, half_width, repeats, differ_percent))
    figures: Figures = {
        "samples_per_s": found * (1000 * ranks),
        "efficiency": found if ranks > 1 else replace(found, log=None),
        "data_wait_fraction": wait,
    }
    empty = ScalePoint("default", "weak", f"stage{ranks}", 1, ranks, ranks, 64, 64 * ranks, repeats, jobs=1)
    return empty.having(figures, status="ok")


def doubted(point: ScalePoint, *doubts: Finding) -> ScalePoint:
    return point.having({"efficiency": replace(point.of("efficiency"), doubts=doubts)})


UNSTEADY = remark("unsteady", "the step times were not steady", "set measure.max_steps: 200")


def judged(
    efficiency: Interval,
    gate: GateThresholds,
    *doubts: Finding,
    repeats: int = 5,
    differ_percent: float = 0.0,
    waits: float = 0.02,
    figures: Figures = MappingProxyType({}),
    **changed: Any,
) -> list[Finding]:
    one, two = point(1, wait=waits), point(2, efficiency, repeats, differ_percent)
    two = doubted(two, *doubts).having(figures, **changed)
    return list(performance(replace(PLAN, gates={"stage2": gate}), two, (one, two), Path("results")))


def only(efficiency: Interval, gate: GateThresholds, *doubts: Finding, repeats: int = 5, **changed: Any) -> Finding:
    (finding,) = judged(efficiency, gate, *doubts, repeats=repeats, **changed)
    return finding


AT_80 = GateThresholds(min_efficiency=0.8)
PLAN = make_plan_of(make_specs(["1x1", "1x2"]))


@pytest.mark.parametrize("gate", [GateThresholds(), AT_80])
def test_an_interval_wholly_above_the_ideal_closes_the_gate(gate: GateThresholds) -> None:
    finding, *others = judged((1.44, 0.03), gate)
    assert (finding.kind, finding.ok, finding.uncertain) == ("baseline", False, False)
    assert finding.measured == "efficiency 144.0 % (95 % interval 139.7 % to 148.4 %, in one job): more than the ideal"
    assert "delete results/runs/default/weak/1x1 and start snakemake again" in finding.next
    assert all(other.ok for other in others)


def test_one_repeat_far_above_the_ideal_closes_the_gate_on_its_estimate() -> None:
    (finding,) = judged((1.44, 0.0), GateThresholds(), repeats=1, differ_percent=2)
    assert (finding.kind, finding.ok, finding.uncertain) == ("baseline", False, True)
    assert finding.measured == "efficiency 144.0 %: more than the ideal"
    assert judged((1.08, 0.0), GateThresholds(), repeats=1, differ_percent=2) == []


def test_the_advice_names_what_makes_the_baseline_slow() -> None:
    (waiting,) = judged((1.44, 0.03), GateThresholds(), waits=0.4)
    assert waiting.next.startswith("give the script more loader workers")
    assert "or raise stages.stage2.gate.max_efficiency if you know why the larger scale does" in waiting.next
    assert judged((1.44, 0.03), GateThresholds(max_efficiency=1.5)) == []


REMEDY = "make 1x1 faster first"


@pytest.mark.parametrize(
    ("efficiency", "repeats", "differ_percent", "ok", "told", "advice"),
    [
        # Within 5 %, or 1 % where jobs differ by 2 %: two jobs differ by up to 5.5 %.
        ((0.82, 0.05), 5, 0, True, "in other jobs it may be 78.0 % to 86.2 %", "set repeats: 10"),
        ((0.78, 0.05), 3, 0, False, "in other jobs it may be 74.2 % to 82.0 %", f"{REMEDY}.*; or set repeats: 6"),
        ((0.82, 0.01), 5, 2, True, "in other jobs it may be 77.5 % to 86.7 %", "set repeats: 10"),
        ((0.78, 0.01), 5, 2, False, "in other jobs it may be 73.7 % to 82.5 %", f"{REMEDY}.*; or set repeats: 10"),
        ((0.9, 0.0), 1, 2, True, "this is an estimate from one repeat", "set repeats: 3"),
        ((0.4, 0.0), 1, 2, False, "this is an estimate from one repeat", f"{REMEDY}.*; or set repeats: 3"),
        ((0.9, 1.0), 2, 0, True, "its interval is wider than a factor of 4", "set repeats: 4"),
        ((0.82, 0.01), 5, 0, True, "", ""),
        ((0.86, 0.01), 5, 2, True, "", ""),
        ((0.70, 0.01), 5, 2, False, "", f"{REMEDY}.*; or lower stages.stage2.gate.min_efficiency"),
    ],
)
def test_a_verdict_that_another_job_may_turn_is_uncertain_and_the_remedy_comes_first(
    efficiency: Interval, repeats: int, differ_percent: float, ok: bool, told: str, advice: str
) -> None:
    finding = only(efficiency, AT_80, repeats=repeats, differ_percent=differ_percent)
    assert (finding.ok, finding.uncertain) == (ok, bool(told))
    assert finding.measured.partition(", uncertain: ")[2] == told
    assert re.match(advice, finding.next)
    assert (REMEDY in finding.next) == (not ok)


def test_a_verdict_on_step_times_that_were_not_steady_is_not_certain() -> None:
    finding = only((0.9, 0.01), AT_80, UNSTEADY)
    assert (finding.ok, finding.uncertain) == (True, True)
    assert finding.measured.endswith("uncertain: the step times were not steady")
    assert finding.next == "set measure.max_steps: 200"
    closed = only((0.4, 0.0), AT_80, UNSTEADY, repeats=1)
    assert closed.measured.endswith("uncertain: this is an estimate from one repeat; the step times were not steady")
    assert [step.split()[0] for step in closed.next.split("; or ")] == ["make", "set", "lower"]
    assert "; or set measure.max_steps: 200; or" in closed.next  # repeats do not make steps steady


@pytest.mark.parametrize(
    ("key", "boundary", "direction", "check"),
    [
        ("min_efficiency", 0.9, +1, "efficiency"),
        ("min_samples_per_s", 1800.0, +1, "throughput"),
        ("max_data_wait_fraction", 0.02, -1, "data wait"),
    ],
)
def test_a_threshold_opens_at_its_boundary_and_no_further(
    key: str, boundary: float, direction: int, check: str
) -> None:
    assert only((0.9, 0.03), GateThresholds(**{key: boundary})).ok
    beyond = only((0.9, 0.03), GateThresholds(**{key: math.nextafter(boundary, direction * math.inf)}))
    assert (beyond.ok, beyond.kind) == (False, check)
    assert f"stages.stage2.gate.{key}" in beyond.wanted
    assert f"stages.stage2.gate.{key}" in beyond.next


def test_all_thresholds_are_judged_and_what_is_not_known_passes_none() -> None:
    gate = GateThresholds(min_efficiency=0.8, min_samples_per_s=2000, max_data_wait_fraction=1)
    efficiency, throughput, data_wait = judged((0.9, 0.03), gate, figures={"data_wait_fraction": None})
    assert (efficiency.kind, efficiency.ok) == ("efficiency", True)
    assert (throughput.kind, throughput.ok) == ("throughput", False)
    assert (data_wait.kind, data_wait.ok, data_wait.measured) == ("data wait", False, "data wait: it was not measured")


# How it is told

DOUBT = "efficiency 0.82 (95 % interval 0.78 to 0.90, in one job), uncertain: about 20 repeats would decide it"
DOUBTFUL = {**make_judged("1x2", measured=DOUBT), "uncertain": True}


def test_a_closed_gate_says_so_only_where_nothing_else_closes_it() -> None:
    doubt = {**DOUBTFUL, "severity": "error"}
    gate = Verdict.from_json(make_gate("stage2", "closed", judged=[doubt]))
    assert gate_words({"stage2": gate}, point(2)) == "stage 2 closed (uncertain)"
    assert "the gate of stage2 is closed on the estimate, uncertain" in closed_box(gate)
    failed = make_judged("1x2", "run", ok=False, repeat=1)
    gate = Verdict.from_json(make_gate("stage2", "closed", judged=[doubt, failed]))
    assert gate_words({"stage2": gate}, point(2)) == "stage 2 closed"
    assert "uncertain" not in closed_box(gate)
