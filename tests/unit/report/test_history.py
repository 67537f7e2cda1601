"""The history of a workload: what changed between two ladders, and which points are not like for like."""

import csv
import io
import re
from datetime import date
from pathlib import Path
from typing import Any

import history as history_command
import pytest
from ddp_ladder.archive.archive import Names, make_archive, unpack
from ddp_ladder.report.comparison import (
    ALIKE,
    FIRST,
    NO_CHANGE,
    OTHER_PLATFORM,
    SLOWER,
    UNLIKE,
    Ladder,
    history,
    history_csv,
    history_text,
    in_order,
)
from ddp_ladder.settings.load import OF_NO_SITE
from make_records import make_record, make_specs, repeated
from make_results import make_results
from make_runs import edit, write_ladder

RATES = {"1x1": 1000.0, "1x4": 3800.0, "2x4": 7000.0}
DAY = date(2026, 11, 28)


def ladder(on: str, slower: float = 1.0, site: str = "lumi", **fingerprint: Any) -> Ladder:
    specs = make_specs(list(RATES), device="cuda")
    records = [
        make_record(spec, slower * repeated(RATES[str(spec.scale)], spec), fingerprint=fingerprint) for spec in specs
    ]
    results = make_results(records)
    return Ladder(f"{site}-{on}.zip", site, on, "mnist.py", results.points, records)


LADDERS = in_order(
    [
        ladder("2026-06-02", 0.8, torch="2.5.1", nccl="2.21.5"),
        ladder("2026-03-01"),
        ladder("2026-09-10", 0.81, torch="2.5.1", nccl="2.21.5"),
        ladder("2026-10-01", 1.4, autocast_dtype="float16"),
        ladder("", 1.41, site="leonardo", autocast_dtype="float16", driver="580.1"),
    ]
)


def test_what_changed_is_named_and_another_training_has_no_ratio() -> None:
    of_largest = [entry for entry in history(LADDERS) if str(entry.point.scale) == "2x4"]
    assert [entry.ladder.on for entry in of_largest] == [
        "2026-03-01",
        "2026-06-02",
        "2026-09-10",
        "2026-10-01",
        "",
    ]
    first, slower, again, other, _ = of_largest
    assert (first.found, first.ratio) == (FIRST, None)
    assert slower.found == OTHER_PLATFORM
    assert [name for name, _, now in slower.changed] == ["torch", "nccl"]
    assert slower.ratio is not None
    assert slower.ratio.value == pytest.approx(0.8)
    assert slower.verdict == SLOWER
    assert (again.found, again.changed, again.verdict) == (ALIKE, (), NO_CHANGE)
    assert (other.found, other.ratio) == (UNLIKE, None)
    assert "autocast_dtype" in [name for name, _, _ in other.changed]


def test_the_table_of_the_terminal_and_the_csv_have_the_same_points() -> None:
    found = [*history(LADDERS)]
    rows = list(csv.DictReader(io.StringIO(history_csv(found))))
    assert len(rows) == len(RATES) * len(LADDERS)
    assert next(row["samples_per_s_per_gpu"] for row in rows if row["scale"] == "2x4") == "875"
    text = history_text(found)
    lines = [line for line in text.splitlines() if line.startswith(tuple(RATES))]
    assert [line.split()[0] for line in lines] == [row["scale"] for row in rows]
    assert re.search(r"2x4 weak +2026-06-02 +lumi +5,600 \(700 per GPU\) .* 0\.800 \[.*\] +slower +torch: ", text)
    assert "nccl: 2.27.3 → 2.21.5" in " ".join(text.split())
    assert text.count(NO_CHANGE) == 1 + 2 * len(RATES)  # the last words explain it


def test_archives_and_directories_of_one_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, archive = tmp_path / "results", tmp_path / "a.zip"
    write_ladder(results, scales=("1x1", "1x2"))
    archive.write_bytes(make_archive(results, OF_NO_SITE.load(), Names(), DAY))
    assert history_command.main([str(results), str(archive), "--out", str(tmp_path / "history.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "history.csv").open()))
    assert [row["found"] for row in rows] == [FIRST, ALIKE] * 2
    assert [row["measured"] for row in rows] == [DAY.isoformat(), ""] * 2
    other = tmp_path / "other"
    unpack(archive, other)
    edit(other / "plan.json", lambda plan: [run.update(script="gpt.py") for job in plan["jobs"] for run in job["runs"]])
    capsys.readouterr()
    assert history_command.main([str(archive), str(other), "--out", str(tmp_path / "two")]) == 1
    assert "different workloads" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
