"""predict.py: what it prints, and one clear message for each mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import predict
import pytest
from ddp_ladder.analysis.prediction import predict as predict_scale
from ddp_ladder.analysis.prediction import series_of
from ddp_ladder.gates.figures import SCALING_CSV, csv_row
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.report.document import csv_text
from ddp_ladder.settings.terms import Scale
from make_records import make_record, make_specs, records_by_name, repeated

Captured = pytest.CaptureFixture[str]
HEADER = "nodes,gpus_per_node,samples_per_s"
# CSC ml-benchmarks, LUMI-G, ResNet-50 with fp16 (tests/published_scaling.csv).
LUMI = f"{HEADER}\n1,1,931.08\n1,2,1725.14\n1,8,6419.29\n2,8,12042.89\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "points.csv"
    file.write_text(LUMI)
    return file


def printed(capsys: Captured, *argv: object) -> dict[str, Any]:
    assert predict.main([*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_people_get_a_table(table: Path, capsys: Captured) -> None:
    assert predict.main(["--table", str(table), "--at", "4x8", "--at", "64x8"]) == 0
    heading, _, near, far, *notes = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[0] == "scale"
    assert re.fullmatch(r"4x8    weak +[\d,]+ +\[[\d,]+.[\d,]+\] +\d+ % of 1x1 +[\d.]+", near), near
    assert far.startswith("64x8")
    assert all(note.startswith("64x8: ") for note in notes)


@pytest.mark.parametrize(
    ("status", "largest"), [("ok", "2x8"), ("failed", "1x8"), ("check", "1x8"), ("not comparable", "1x8")]
)
def test_the_reports_table_is_read_as_the_report_judges_it(
    status: str, largest: str, table: Path, capsys: Captured
) -> None:
    statuses = ("ok", "ok", "incomplete", status)
    figures = [*zip(LUMI.splitlines()[1:], statuses, strict=True)]
    rows = [f"{variant},{row},{word}" for variant in ("plain", "default", "gloo") for row, word in figures]
    table.write_text("\n".join((f"variant,{HEADER},status", *rows, "default,4,8,,not run")))
    assert printed(capsys, "--table", table, "--at", "4x8")["largest_measured"] == largest
    assert predict.main(["--table", str(table), "--at", "4x8", "--variant", "srun"]) == 1
    assert "allowed  default, gloo" in capsys.readouterr().err


def test_the_table_of_the_report_gives_the_figures_of_the_report(table: Path, capsys: Captured) -> None:
    """Three repeats of each scale."""
    rates = {"1x1": 931.08, "1x2": 1725.14, "1x8": 6419.29, "2x8": 12042.89}
    records = [make_record(spec, repeated(rates[str(spec.scale)], spec)) for spec in make_specs(list(rates))]
    points = scale_points([record.spec for record in records], records_by_name(records))
    table.write_text(csv_text(map(csv_row, points), SCALING_CSV))
    for at in ("4x8", "2x8"):
        found = printed(capsys, "--table", table, "--at", at)
        shown = predict_scale(series_of(points, "default", "weak"), Scale.parse(at))
        assert (found["baseline"], shown.baseline) == ("1x1", "1x1")
        for name in ("samples_per_s", "samples_per_s_low", "samples_per_s_high", "efficiency"):
            assert found[name] == pytest.approx(getattr(shown, name), rel=1e-4), name
        assert found["samples_per_s_low"] < found["samples_per_s"] < found["samples_per_s_high"]


MISTAKES = [
    (f"{HEADER},samples_per_s_low,samples_per_s_high\n1,1,3,4,5\n", "samples_per_s_low and samples_per_s_high: not an"),
    (f"variant,{HEADER},status\ndefault,1,1,3,check\n", "status: no scale counts"),
    ("", "it is empty"),
    ("nodes,gpus_per_node,samples_per_sec\n1,1,3\n", "line 2: this is no table of scales: samples_per_s is missing"),
    (f"{HEADER}\n", "no such variant that was measured"),
    (f"{HEADER}\n1,1,3\n0,1,3\n", "line 3: this is no table of scales: nodes: should be greater than or equal to 1"),
    (f"{HEADER}\n1,1,nan\n", ": samples_per_s: should be"),
    (f"{HEADER}\n1,1,16,621\n", "the number of cells is not that of the header"),
    (f"{HEADER},mode\n1,1,3,medium\n", "mode: should be 'weak' or 'strong'"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_in_the_table_is_named(text: str, message: str, table: Path, capsys: Captured) -> None:
    table.write_text(text)
    assert predict.main(["--table", str(table), "--at", "8x4"]) == 1
    told = capsys.readouterr()
    assert message in told.err
    assert str(table) in told.err
    assert told.out == ""
