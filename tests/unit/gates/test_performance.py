"""Thresholds, intervals that hold them, and efficiencies that are too good to be true."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.gates.file import Finding, Verdict, closed_box, outcome_line
from ddp_ladder.gates.performance import performance
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.report.headline import gate_words
from ddp_ladder.settings.config_keys import GateThresholds
from make_records import make_gate, make_judged, make_plan_of, make_specs

Interval = tuple[float, float, float]  # value, low, high
ONE: Interval = (1.0, 1.0, 1.0)


def point(
    scale: str, efficiency: Interval = ONE, *, mode: str = "weak", repeats: int = 5, wait: float = 0.02
) -> ScalePoint:
    nodes, gpus = map(int, scale.split("x"))
    ranks = nodes * gpus
    value, low, high = efficiency
    rate, rate_low, rate_high = (1000 * ranks * figure for figure in efficiency)
    stage = "stage1" if ranks == 1 else "stage2"
    return ScalePoint(
        "default", mode, stage, nodes, gpus, ranks, 64, 64 * ranks, repeats,
        samples_per_s=rate, samples_per_s_low=rate_low, samples_per_s_high=rate_high,
        efficiency=value, efficiency_low=low, efficiency_high=high,
        data_wait_fraction=wait, data_wait_fraction_max=2 * wait, status="ok",
    )  # fmt: skip


def judged(
    efficiency: Interval, gate: GateThresholds, *, repeats: int = 5, mode: str = "weak", waits: float = 0.02
) -> list[Finding]:
    plan = make_plan_of(make_specs(["1x1", "1x2"], modes=[mode]))
    plan = replace(plan, gates={"stage1": GateThresholds(), "stage2": gate})
    here = point("1x2", efficiency, mode=mode, repeats=repeats)
    points = (point("1x1", mode=mode, wait=waits), here)
    return list(performance(plan, here, points, Path("results")))


def only(efficiency: Interval, gate: GateThresholds, repeats: int = 5) -> Finding:
    (finding,) = judged(efficiency, gate, repeats=repeats)
    return finding


AT_80 = GateThresholds(min_efficiency=0.8)
CERTAINLY_80 = AT_80.replace(certain=True)


@pytest.mark.parametrize("gate", [GateThresholds(), AT_80])
def test_an_interval_wholly_above_the_ideal_closes_the_gate(gate: GateThresholds) -> None:
    finding, *others = judged((1.44, 1.40, 1.48), gate)
    assert (finding.check, finding.ok) == ("baseline", False)
    assert finding.measured == "efficiency 1.44 (95 % interval 1.40 to 1.48): more than the ideal"
    assert "delete results/runs/default/weak/1x1 and start snakemake again" in finding.next
    assert all(other.ok for other in others)


def test_an_interval_that_reaches_the_ideal_does_not() -> None:
    assert judged((1.2, 1.05, 1.5), GateThresholds()) == []


def test_the_advice_names_what_makes_the_baseline_slow() -> None:
    (waiting,) = judged((1.44, 1.40, 1.48), GateThresholds(), waits=0.4)
    assert waiting.next.startswith("give the script more loader workers")
    (strong,) = judged((1.44, 1.40, 1.48), GateThresholds(), mode="strong")
    assert "results/runs/default/strong/1x1" in strong.next
    assert "lower workload.batch_per_gpu; or raise stages.stage2.gate.max_efficiency" in strong.next
    assert judged((1.44, 1.40, 1.48), GateThresholds(max_efficiency=1.5)) == []


@pytest.mark.parametrize(
    ("efficiency", "repeats", "ok", "told", "advice"),
    [
        # The half-width on the threshold's side is twice the distance.
        ((0.82, 0.78, 0.90), 5, True, "about 13 repeats would decide it", "set repeats: 13"),
        ((0.82, 0.78, 0.90), 10, True, "about 33 repeats would decide it", "set repeats: 33"),
        ((0.82, 0.78, 0.90), 3, True, "about 5 repeats would decide it", "set repeats: 5"),
        ((0.78, 0.70, 0.82), 5, False, "about 13 repeats would decide it", "set repeats: 13"),
        ((0.82, 0.7999, 0.9), 8, True, "about 9 repeats would decide it", "set repeats: 9"),
        ((0.801, 0.78, 0.82), 5, True, "more repeats would hardly decide it", ""),
        ((0.8, 0.78, 0.82), 5, True, "more repeats would hardly decide it", ""),
    ],
)
def test_a_threshold_inside_the_interval_makes_the_verdict_uncertain(
    efficiency: Interval, repeats: int, ok: bool, told: str, advice: str
) -> None:
    finding = only(efficiency, AT_80, repeats)
    assert (finding.ok, finding.uncertain) == (ok, True)
    assert finding.measured.endswith(f"), uncertain: {told}")
    assert finding.next.startswith(advice)
    assert ("make 1x1 faster first" in finding.next) == (not ok)


@pytest.mark.parametrize("efficiency", [(0.82, 0.80, 0.84), (0.78, 0.76, 0.7999), (0.8, 0.8, 0.8)])
def test_a_threshold_outside_the_interval_leaves_no_doubt(efficiency: Interval) -> None:
    finding = only(efficiency, AT_80)
    assert (finding.ok, finding.uncertain) == (efficiency[0] >= 0.8, False)
    assert "certain" not in finding.measured


@pytest.mark.parametrize(
    ("efficiency", "ok", "told"),
    [
        ((0.82, 0.80, 0.84), True, ""),
        ((0.82, 0.78, 0.90), False, ", not certain: about 13 repeats would decide it"),
        ((0.79, 0.78, 0.90), False, ""),
    ],
)
def test_certain_asks_the_lower_end(efficiency: Interval, ok: bool, told: str) -> None:
    finding = only(efficiency, CERTAINLY_80)
    assert (finding.ok, finding.uncertain) == (ok, False)
    assert finding.measured == "efficiency {:.2f} (95 % interval {:.2f} to {:.2f})".format(*efficiency) + told
    assert finding.wanted == "the interval's lower end at least 0.80 (stages.stage2.gate.min_efficiency)"


@pytest.mark.parametrize(("certain", "ok"), [(False, True), (True, False)])
def test_the_throughput_is_judged_alike(certain: bool, ok: bool) -> None:
    finding = only((0.9, 0.87, 0.93), GateThresholds(min_samples_per_s=1780, certain=certain))
    assert (finding.ok, finding.uncertain) == (ok, not certain)
    assert finding.measured.startswith("1,800 samples/s (95 % interval 1,740 to 1,860), ")
    assert "certain: about 25 repeats would decide it" in finding.measured


@pytest.mark.parametrize(("certain", "ok"), [(False, True), (True, False)])
def test_certain_asks_the_data_wait_of_every_repeat(certain: bool, ok: bool) -> None:
    finding = only((0.9, 0.87, 0.93), GateThresholds(max_data_wait_fraction=0.03, certain=certain))
    assert finding.ok == ok
    assert finding.measured.startswith("4.0 % of the step time in the longest" if certain else "2.0 % of the step time")


# How it is told

DOUBT = "efficiency 0.82 (95 % interval 0.78 to 0.90), uncertain: about 20 repeats would decide it"
DOUBTFUL = {**make_judged("1x2", measured=DOUBT), "uncertain": True}


def test_an_open_gate_says_that_it_is_uncertain() -> None:
    gate = Verdict.from_json(make_gate("stage2", judged=[DOUBTFUL]))
    assert outcome_line(gate) == f"gate stage2: open, 1x2 {DOUBT}"
    assert gate_words({"stage2": gate}, point("1x2")) == "stage 2 open (uncertain)"


def test_a_closed_gate_says_so_only_where_nothing_else_closes_it() -> None:
    doubt = {**DOUBTFUL, "ok": False}
    gate = Verdict.from_json(make_gate("stage2", "closed", judged=[doubt]))
    assert gate_words({"stage2": gate}, point("1x2")) == "stage 2 closed (uncertain)"
    assert "the gate of stage2 is closed on the estimate, uncertain" in closed_box(gate)
    failed = make_judged("1x2", "exit codes", ok=False, repeat=1)
    gate = Verdict.from_json(make_gate("stage2", "closed", judged=[doubt, failed]))
    assert gate_words({"stage2": gate}, point("1x2")) == "stage 2 closed"
    assert "uncertain" not in closed_box(gate)


def test_the_doubts_of_one_variant_are_not_those_of_another() -> None:
    doubt = {**DOUBTFUL, "variant": "gloo"}
    variants = {"default": "open", "gloo": "open"}
    gate = Verdict.from_json(make_gate("stage2", judged=[make_judged("1x2"), doubt], variants=variants))
    assert outcome_line(gate) == "gate stage2: open"
    assert gate.words_of(point("1x2")) == "open"
    assert gate.words_of(replace(point("1x2"), variant="gloo")) == "open (uncertain)"


def test_a_throughput_that_is_not_known_is_not_called_zero() -> None:
    plan = make_plan_of(make_specs(["1x1", "1x2"]))
    plan = replace(plan, gates={"stage2": GateThresholds(min_samples_per_s=100)})
    nothing = replace(point("1x2"), samples_per_s=None, efficiency_low=None, status="failed", note="3 repeats failed")
    (finding,) = performance(plan, nothing, (point("1x1"), nothing), Path("results"))
    assert (finding.ok, finding.measured) == (False, "no throughput: failed: 3 repeats failed")
