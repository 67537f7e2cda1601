"""Comparison of variants: verdicts, what differs, what is not alike; how often it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import compare
import pandas as pd
import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.messages import MOST_COLUMNS
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.report.comparison import (
    FASTER,
    NO_DIFFERENCE,
    NOT_RUN,
    REFERENCE,
    SLOWER,
    Compared,
    Comparison,
    beyond_chance,
    chance,
    compare_variants,
    paired,
    sentences,
    terminal_text,
)
from ddp_ladder.report.page import write_report
from make_records import make_failed_record, make_plan_of, make_record, make_spec, records_by_name
from make_results import make_results
from make_runs import write_run

DRIFT = {1: 0.9, 2: 1.0, 3: 1.2, 4: 1.05, 5: 0.97}
WOBBLE = {1: 0.001, 2: -0.001, 3: 0.0005, 4: -0.0007, 5: 0.0002}  # of a variant beside the default
SPEED = {"default": 1.0, "fast": 1.1, "alike": 1.0001, "slow": 0.6}


def specs_of(
    variants: Sequence[str], repeats: int = 3, scales: Sequence[str] = ("1x2",), **changes: Any
) -> list[RunSpec]:
    return [
        make_spec(scale, variant=variant, repeat=repeat, **changes.get(variant, {}))
        for scale in scales
        for repeat in range(1, repeats + 1)
        for variant in variants
    ]


def rate(spec: RunSpec) -> float:
    own = 1 + (WOBBLE[spec.repeat] if spec.variant != "default" else 0)
    return 1000 * spec.gpus * SPEED.get(spec.variant, 1.0) * DRIFT[spec.repeat] * own


def records_of(specs: Sequence[RunSpec], **changes: Mapping[str, Any]) -> dict[str, Record]:
    """Good records; changes: of the fingerprint by variant."""
    return records_by_name([make_record(s, rate(s), fingerprint=changes.get(s.variant)) for s in specs])


def compared(specs: Sequence[RunSpec], records: Mapping[str, Record] | None = None) -> Comparison:
    return compare_variants(make_plan_of(specs), records_of(specs) if records is None else records)


def rows(found: Comparison, place: int = -1) -> dict[str, Compared]:
    return {row.name: row for row in found[place].rows}


def test_pairs_show_what_the_drift_hides() -> None:
    found = compared(specs_of(list(SPEED)))
    own = rows(found)
    assert [(name, row.verdict) for name, row in own.items()] == [
        ("fast", FASTER), ("alike", NO_DIFFERENCE), ("default", REFERENCE), ("slow", SLOWER),
    ]  # fmt: skip
    fast = own["fast"].ratio
    assert fast.value == pytest.approx(1.1, rel=1e-3)
    assert own["fast"]["step_time_s"] == pytest.approx(128 / 2200, rel=2e-3)
    text = " ".join(sentences(found))
    assert text.startswith("At 1x2 weak, faster than default: fast 1.100 times [1.09")
    assert "At 1x2 weak, slower than default: slow 0.600" in text
    assert "At 1x2 weak, not beyond chance: alike 1.000 times" in text


def recommended(repeats: int, gb: Mapping[str, float], *variants: str, limit_gb: float = 80) -> str:
    """What is recommended of these variants; gb: peak memory per rank of those that have not 40 GB."""
    specs = specs_of(["default", *variants], repeats)
    records = {}
    for spec in specs:
        record = make_record(spec, rate(spec), exposed_comm_fraction=0.12)
        peak, limit = {"device": round(1e9 * gb.get(spec.variant, 40))}, {"device": round(limit_gb * 1e9)}
        known = {"peak_memory_bytes": peak, "memory_limit_bytes": limit}
        records[spec.name] = record.replace(ranks=tuple(rank.replace(**known) for rank in record.ranks))
    found = compared(specs, records)
    assert all(row["peak_memory_bytes"] == 1e9 * gb.get(row.name, 40) for row in found[0].rows)
    return " ".join(next(line for line in sentences(found) if ", use " in line).split())


def test_one_variant_is_recommended_and_one_for_short_memory() -> None:
    text = recommended(3, {"slow": 28}, "fast", "slow")
    assert text == (
        "At 1x2 weak, use fast (2,198 samples/s, 12 % of a step exposed communication): the fastest; slow if memory is "
        "short (12 GB less per rank, 55 % of the speed)."
    )
    text = recommended(3, {"alike": 39}, "alike", "slow")
    of_default = "(2,000 samples/s, 12 % of a step exposed communication)"
    assert text == f"At 1x2 weak, use default {of_default}: nothing is faster beyond chance."
    text = recommended(1, {}, "fast")
    assert (text[:21], text[-49:]) == ("At 1x2 weak, use fast", ": the fastest in one repeat, which may be chance.")


def test_a_scale_where_another_variant_is_best_is_named() -> None:
    specs = specs_of(["default", "fast"], scales=("1x1", "1x2", "2x2"))
    records = records_of(specs)
    for spec in specs:
        if (spec.variant, str(spec.scale)) == ("fast", "1x2"):
            records[spec.name] = make_record(spec, 0.8 * rate(spec))
    said = [line.partition(" (")[0] for line in sentences(compared(specs, records)) if ", use " in line]
    assert said == ["At 2x2 weak, use fast", "At 1x2 weak, use default"]


def test_a_difference_that_one_of_many_may_show_by_chance_is_not_shown() -> None:
    names = [f"v{k}" for k in range(19)]
    specs = specs_of(["default", "near", *names])
    records = records_of(specs)
    near = {1: 1.010, 2: 1.013, 3: 1.016}
    for spec in specs:
        if spec.variant == "near":
            records[spec.name] = make_record(spec, near[spec.repeat] * rate(spec.replace(variant="default")))
    assert rows(compared(specs, records))["near"].verdict == NO_DIFFERENCE
    alone = [spec for spec in specs if spec.variant in ("default", "near")]
    found = compared(alone, {spec.name: records[spec.name] for spec in alone})
    assert rows(found)["near"].verdict == FASTER


def test_no_variant_is_silently_dropped() -> None:
    variants = ["default", "broken", "part", "missing", "left-out"]
    specs = specs_of(variants)
    records = records_of([spec for spec in specs if spec.variant in ("default", "part")])
    for spec in specs:
        if spec.variant == "broken" or (spec.variant, spec.repeat) == ("part", 2):
            records[spec.name] = make_failed_record(spec, "CUDA out of memory")
        if spec.variant == "left-out":
            records[spec.name] = make_failed_record(spec, "not started", "an earlier run hung", started=False)
    found = compared(specs, records)
    own = rows(found)
    assert set(own) == set(variants)
    assert own["broken"].verdict == "failed: CUDA out of memory"
    assert own["missing"].verdict == NOT_RUN
    assert own["left-out"].verdict == "not run: an earlier run hung"
    assert (own["part"].verdict, own["part"].repeats) == (NO_DIFFERENCE, 2)
    assert "1 of 3 repeats failed: CUDA out of memory" in own["part"].notes[0]
    text = " ".join(sentences(found))
    assert "Failed runs: part at 1x2 weak, broken at 1x2 weak." in text
    assert "Not run: missing at 1x2 weak." in text


def test_without_a_default_nothing_is_compared_and_it_says_why() -> None:
    specs = specs_of(["default", "fast"])
    records = records_of([spec for spec in specs if spec.variant == "fast"])
    found = compared(specs, records)
    assert {name: row.verdict for name, row in rows(found).items()} == {"default": "not run", "fast": "default not run"}
    assert sentences(found)[0].startswith("Nothing can be compared: ")


def test_runs_of_other_jobs_or_nodes_are_named() -> None:
    specs = specs_of(["default", "fast"], fast={"launcher": "srun"})
    records = records_of(specs)
    for spec in specs:
        record = records[spec.name]
        if spec.variant == "fast" and record.job:
            job = record.job.replace(id="77")
            records[spec.name] = record.replace(job=job, world=record.world.replace(hosts=("node9",)))
    found = compared(specs, records)
    assert "not in one job on the same nodes (r1, r2, r3)" in rows(found)["fast"].notes[-1]


def test_what_a_variant_changes_and_what_is_not_alike_is_named() -> None:
    specs = specs_of(["default", "fast"], fast={"launcher": "srun", "env": {"A": "1"}})
    found = rows(compared(specs, records_of(specs, fast={"autocast_dtype": "bfloat16", "batch_per_gpu": 128})))["fast"]
    fields = {each.split()[0] for each in found.unlike}
    assert fields == {"autocast_dtype", "batch_per_gpu", "launcher", "env_template"}
    assert "batch_per_gpu 128 (reference: 64)" in found.unlike


def test_one_repeat_gives_a_ratio_and_no_interval() -> None:
    one = paired([1100.0], [1000.0])
    assert one.value == pytest.approx(1.1)
    assert (one.low, one.high, chance(one)) == (None, None, None)
    assert beyond_chance([one, None]) == (False, False)


# What `compare` prints and writes, and the report's section.

HOSTILE = "<script>alert('x')</script>|`$"


def test_the_verdict_comes_first_then_a_narrow_table_then_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, specs = tmp_path / "results", specs_of(["default", "fast", "slow"], scales=["1x1"])
    write_json(results / "plan.json", make_plan_of(specs).to_json())
    for spec in specs:
        write_run(results, spec, rate(spec))
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
    assert table["ratio"]["slow"] == pytest.approx(0.6, rel=0.01)
    assert (table["ratio_low"] < table["ratio"]).sum() == 2
    assert set(table["batch"]) == {"64 of 64"}
    assert table["memory_headroom_fraction"].between(0.5, 1).all()


def test_twenty_variants_with_long_names_fit_the_terminal_and_one_table_of_the_page(tmp_path: Path) -> None:
    variants = ["default", *(f"a-variant-with-a-very-long-name-{k}" for k in range(18)), "fast"]
    specs = specs_of(variants, scales=["1x1", "1x2", "2x2"])
    failing, good = (make_failed_record(specs[0], HOSTILE, HOSTILE), records_of(specs))
    records = {s.name: failing.replace(spec=s) if s.variant == variants[3] else good[s.name] for s in specs}
    found = make_results([*records.values()])
    text = terminal_text(compare_variants(found.plan, found.records), Path("comparison.csv"))
    assert max(map(len, text.splitlines())) <= MOST_COLUMNS
    write_report(replace(found, directory=tmp_path))
    page = (tmp_path / "report/index.html").read_text()
    assert page.count('<h2 id="variants">') == 1
    assert HOSTILE not in page
    rows = page.partition('<table class="comparison')[2].partition("</table>")[0]
    assert rows.count("<tr>") == 61
    assert re.search("1x1 weak</th>\\s*<td[^>]*>fast<", rows)
    assert HOSTILE not in (tmp_path / "report/scaling.md").read_text()
    assert len(pd.read_csv(tmp_path / "report/comparison.csv")) == 60
