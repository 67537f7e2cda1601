"""The table at the end of a ladder."""

from pathlib import Path

from ddp_ladder.gates.gate import Verdict
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import HourUnit
from ddp_ladder.report.terminal import terminal_table
from make_records import make_failed_record, make_gate, make_record, make_specs, records_by_name, repeated

RATES = {"1x1": 1000.0, "1x2": 1820.0, "2x1": 1700.0, "8x4": 27_000.0}


def test_golden() -> None:
    specs = make_specs(["1x1", "1x2", "2x1"])
    records = [make_record(s, repeated(RATES[str(s.scale)], s)) for s in specs if s.stage != "stage3"]
    gates = {
        "stage1": Verdict.from_json(make_gate("stage1")),
        "stage2": Verdict.from_json(make_gate("stage2", "closed")),
    }
    points = scale_points(specs, records_by_name(records))
    text = terminal_table(points, gates, Path("results/report"))
    assert text.isascii()
    assert text.splitlines() == [
        "scale  GPUs  samples/s  speed-up  efficiency       gate            status",
        "-----  ----  ---------  --------  ---------------  --------------  -------",
        "1x1       1      1,000      1.00  100 %            stage 1 open",
        "1x2       2      1,820      1.82   91 % [90-92 %]  stage 2 closed",
        "2x1       2          -         -      -            -               not run",
        "",
        "report   results/report/index.html",
        "figures  results/report/scaling.csv",
    ]
    assert terminal_table((), {}) == "no run is planned"
    assert "  processes  " in terminal_table(points, gates, unit=HourUnit("process", None)).splitlines()[0]


def test_fits_the_terminal_with_everything_in_it() -> None:
    names = ["default", "a-variant-with-a-very-long-name"]
    specs = make_specs(["1x1", "8x4"], variants=names, modes=["weak", "strong"])
    records = [
        make_failed_record(s, why="x" * 300)
        if s.variant != "default" and s.world_size > 1
        else make_record(s, RATES[str(s.scale)])
        for s in specs
    ]
    gates = {"stage3": Verdict.from_json(make_gate("stage3", "closed"))}
    text = terminal_table(scale_points(specs, records_by_name(records)), gates)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "mode" in text.splitlines()[0]
    assert "variant" in text.splitlines()[0]
    assert "\x1b" not in text
