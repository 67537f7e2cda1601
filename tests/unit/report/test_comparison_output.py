"""What `compare` prints and writes, and the report's section on the variants."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import compare
import pandas as pd
import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.messages import MOST_COLUMNS
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.report.comparison import compare_variants, terminal_text
from ddp_ladder.report.page import write_report
from ddp_ladder.report.view import LadderResults
from make_records import make_failed_record, make_plan_of, make_record, make_specs
from make_results import make_results
from make_runs import write_run

TODAY = date(2026, 11, 20)
HOSTILE = "<script>alert('x')</script>|`$"
DRIFT = (0.9, 1.0, 1.1)


def rate(spec: RunSpec) -> float:
    speed = 1 + 0.1 * (spec.variant == "fast") - 0.2 * (spec.variant == "slow")
    return 1000 * speed * DRIFT[spec.repeat - 1] * (1 + 0.001 * spec.repeat * (spec.variant != "default"))


def ladder(variants: list[str], scales: list[str], failing: str = "", **changes: Any) -> LadderResults:
    specs = make_specs(scales, variants=variants, **changes)
    records = [
        make_failed_record(s, HOSTILE, HOSTILE) if s.variant == failing else make_record(s, rate(s)) for s in specs
    ]
    return make_results(records)


def write_results(results: Path, variants: list[str]) -> Path:
    specs = make_specs(["1x1"], variants=variants)
    write_json(results / "plan.json", make_plan_of(specs).to_json())
    for spec in specs:
        write_run(results, spec, rate(spec))
    return results


def test_the_verdict_comes_first_then_a_narrow_table_then_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = write_results(tmp_path / "results", ["default", "fast", "slow"])
    assert compare.main(["--results", str(results), "--warning", "old settings"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("At 1x1 weak, faster than default: fast 1.10")
    assert printed.err == "warning: old settings\n"
    assert re.search(r"^1x1 weak +fast +1\.10\d +\[1\.\d+-1\.\d+\] +\d+ +[-\d].* +faster$", printed.out, re.MULTILINE)
    assert re.search(r"^1x1 weak +default +1 +\d+ +[-\d].* +reference$", printed.out, re.MULTILINE)
    shown = [line for line in printed.out.splitlines() if not line.startswith("written")]
    assert max(map(len, shown)) <= MOST_COLUMNS
    assert printed.out.endswith(f"\nwritten  {results}/report/comparison.csv\n")
    table = pd.read_csv(results / "report/comparison.csv").set_index("variant")
    assert table["found"].to_dict() == {"fast": "faster", "default": "reference", "slow": "slower"}
    assert table["ratio"]["slow"] == pytest.approx(0.8, rel=0.01)
    assert (table["ratio_low"] < table["ratio"]).sum() == 2
    assert set(table["batch"]) == {"64 of 64"}
    assert table["memory_headroom_fraction"].between(0.5, 1).all()


def test_twenty_variants_with_long_names_fit_the_terminal_and_one_table_of_the_page(tmp_path: Path) -> None:
    variants = ["default", *(f"a-variant-with-a-very-long-name-{k}" for k in range(18)), "fast"]
    found = ladder(variants, ["1x1", "1x2", "2x2"], failing=variants[3])
    text = terminal_text(compare_variants(found.plan, found.records), Path("comparison.csv"))
    assert max(map(len, text.splitlines())) <= MOST_COLUMNS
    write_report(replace(found, directory=tmp_path), TODAY)
    page = (tmp_path / "report/index.html").read_text()
    assert page.count('<h2 id="variants">') == 1
    assert HOSTILE not in page
    rows = page.partition('<table class="comparison')[2].partition("</table>")[0]
    assert rows.count("<tr>") == 61
    assert re.search("1x1 weak</th>\\s*<td[^>]*>fast<", rows)
    assert HOSTILE not in (tmp_path / "report/scaling.md").read_text()
    assert len(pd.read_csv(tmp_path / "report/comparison.csv")) == 60
