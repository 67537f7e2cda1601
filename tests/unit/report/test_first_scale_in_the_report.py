"""The report of a ladder that starts above one GPU: every sentence of it is against that scale."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from ddp_ladder.gates.figures import figures_in
from ddp_ladder.gates.verdict import Verdict
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from ddp_ladder.settings.terms import Scale
from make_records import make_gate, make_plan_of, make_record, make_specs, records_by_name, repeated, with_ranks

TODAY = date(2026, 11, 20)
RATES = {"1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}


def found() -> LadderResults:
    specs = (*make_specs(["1x2"], stage="stage1", device="cuda"), *make_specs(["1x4", "2x4"], device="cuda"))
    records = []
    for spec in specs:
        record = make_record(spec, repeated(RATES[str(spec.scale)], spec))
        step_s = record.timing.step_time_s if record.timing else 0.0
        compute, exposed, data = ([part * step_s] * spec.gpus for part in (0.7, 0.05, 0.02))
        records.append(with_ranks(record, compute_s=compute, exposed_comm_s=exposed, data_wait_s=data))
    gates = {stage: Verdict.from_json(make_gate(stage)) for stage in ("stage1", "stage2", "stage3")}
    return LadderResults(make_plan_of(specs), records_by_name(records), gates, ())


def test_no_text_is_about_one_gpu(tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in write_report(tmp_path, found(), TODAY) if path.suffix != ".png"}
    page = re.sub(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", "", files["index.html"], flags=re.DOTALL)
    texts = {"index.html": page, **{name: files[name] for name in ("scaling.md", "proposal.md", "proposal.tex")}}
    for name, text in texts.items():
        words = " ".join(re.sub("<[^>]*>", "", text).split())
        for wrong in ("1x1", "against one GPU", "than one GPU", "x one GPU", "Stage 1 is one GPU"):
            if name == "proposal.tex" or wrong not in words:
                continue
            place = words.index(wrong)
            raise AssertionError(f"{name}: {words[place - 80 : place + 80]}")
    shown = " ".join(page.split()).replace("\u00a0", " ")
    assert "2x4 runs at 6,500 samples/s, 3.42x the rate of 1x2, 86 % efficiency" in shown
    assert "against 1x2 of the same variant and mode, where the ladder starts" in shown
    assert "Speed-up and efficiency are against 1x2, where the ladder starts, of the same mode and variant" in shown
    assert "the ideal step: the time of 1x2 for as many samples per rank" in shown
    assert "At 2x4, against 1x2, " in files["proposal.md"]


def test_the_definitions_of_a_ladder_from_one_gpu_are_untouched() -> None:
    one, two = (
        {each.name: each.definition for each in figures_in("csv", first=scale)} for scale in (Scale(1, 1), Scale(1, 2))
    )
    changed = [name for name in one if one[name] != two[name]]
    assert changed == ["scale", "speed-up", "efficiency", "efficiency by total time"]
    assert "1x1" in one["speed-up"]
    assert two["efficiency"].startswith("X(n) / X(1x2) / (n / 2): 1x2 has n = 2.")
    assert not any("1x1" in text for text in two.values())
