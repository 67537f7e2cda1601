"""The report's section on where the time goes: what it shows, and that its bars add up to the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import pytest
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.preflight.result import PreflightResult
from ddp_ladder.records.record import Record
from ddp_ladder.report.attribution_plot import attribution_figure
from ddp_ladder.report.attribution_section import attribution_section, factor_mark
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.view import make_view
from make_records import JOB_ID, make_plan_of, make_record, make_specs, records_by_name, with_ranks
from matplotlib.patches import Rectangle

STEPS = {"1x1": (0.05, 0.0), "1x2": (0.055, 0.004), "2x2": (0.1, 0.045)}  # step and exposed communication, in s
GRADIENTS = {"gradient_bytes": 4_000_000, "bucket_bytes": [1_000_000, 3_000_000]}


def ladder(
    variants: Sequence[str] = ("default",), timed: bool = True, first: Mapping[str, object] = GRADIENTS
) -> list[Record]:
    """Return a ladder. first: the fingerprint of its first scale."""
    found = []
    for spec in make_specs([*STEPS], repeats=1, variants=variants):
        step_s, exposed_s = STEPS[str(spec.scale)]
        record = make_record(spec, spec.global_batch / step_s, fingerprint=first if spec.gpus == 1 else GRADIENTS)
        n = spec.world_size
        parts = {"exposed_comm_s": [exposed_s] * n if timed else None, "data_wait_s": [0.001] * n}
        found.append(with_ranks(record, compute_s=[0.04] * n, **parts))
    return found


def results(records: Sequence[Record], preflights: dict[str, PreflightResult] | None = None) -> LadderResults:
    plan = make_plan_of([record.spec for record in records])
    return LadderResults(plan, records_by_name(records), {}, (), preflights=preflights or {})


def points(records: Sequence[Record]) -> tuple[ScalePoint, ...]:
    return scale_points([record.spec for record in records], records_by_name(records))


def preflight(scale: str) -> PreflightResult:
    return PreflightResult(
        schema_version=1, status="ok", scale=scale, job={"id": JOB_ID, "attempt": 1, "run_id": "0" * 64},
        started_at_s=0.0, took_s=9.0, launcher="torchrun", backend="gloo", transport=(),
        nodes=(), sizes=(), pairs=(), alpha_s=0.001, beta_s_per_byte=1e-9, findings=(),
    )  # fmt: skip


def test_the_bars_add_up_to_the_step_and_end_at_one_over_the_efficiency() -> None:
    axes = attribution_figure(points(ladder())).axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    for place, (step_s, _) in enumerate(STEPS.values()):
        own = [bar for bar in bars if bar.get_x() < place < bar.get_x() + bar.get_width()]
        assert sum(bar.get_height() for bar in own) == pytest.approx(step_s / 0.05)
    texts = [text.get_text() for text in axes.texts]
    assert {"50.0 ms", "55.0 ms", "100 ms", "45.0"} <= {*texts}


def test_time_that_is_not_told_apart_is_hatched() -> None:
    assert not any(patch.get_hatch() for patch in attribution_figure(points(ladder())).axes[0].patches)
    figure = attribution_figure(points(ladder(timed=False)))
    assert any(patch.get_hatch() for patch in figure.axes[0].patches)
    assert "hatched: with compute: not told apart" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_nothing_to_compare_is_said() -> None:
    alone = [record for record in ladder() if str(record.spec.scale) == "2x2"]
    (text,) = attribution_figure(points(alone)).axes[0].texts
    assert text.get_text() == "no step has been compared with one at 1x1 yet"


def test_the_largest_scale_is_explained_and_the_others_are_folded() -> None:
    section = attribution_section(make_view(results(ladder(["default", "gloo"])), date(2026, 11, 22)))
    assert [each.place for each in section.explained] == ["2x2 weak default"]
    assert [each.place for each in section.others] == ["1x2 weak default", "1x2 weak gloo", "2x2 weak gloo"]
    assert {point.variant for point in section.plotted} == {"default"}
    assert len(section.table) == 6
    marks = {column.key: factor_mark(column, section.table[2]) for column in section.columns}
    assert [key for key, mark in marks.items() if mark] == [
        "global_efficiency", "parallel_efficiency", "communication_efficiency",
    ]  # fmt: skip


def test_a_first_scale_with_other_settings_is_no_baseline() -> None:
    records = ladder(first={**GRADIENTS, "autocast_dtype": "float16"})
    (explained,) = attribution_section(make_view(results(records), date(2026, 11, 22))).explained
    assert explained.place == "2x2, against 1x2 (1x1 not comparable: precision)"
    assert [loss.in_words for loss in explained.found.named] == [
        "41.0 ms exposed communication (41.0 points of efficiency)"
    ]


def test_page_and_markdown_say_where_the_time_goes(tmp_path: Path) -> None:
    files = write_report(tmp_path, results(ladder(), {"2x2": preflight("2x2")}), date(2026, 11, 22))
    assert {"attribution.svg", "attribution.png"} <= {file.name for file in files}
    page = (tmp_path / "report/index.html").read_text()
    text = (tmp_path / "report/scaling.md").read_text()
    for words in ("Where the time goes", "45.0 ms exposed communication", "which 2.00 ms is latency"):
        assert words in page
        assert words in text
    assert "| 2x2 | 40.0 | 45.0 | 1.00 | 0.00 | 14.0 |" in text
    assert "about 29 % more samples/s" in text
    assert 'id="attribution-title"' in page


def test_a_ladder_without_figures_has_no_such_section(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"])
    write_report(tmp_path, LadderResults(make_plan_of(specs), {}, {}, ()), date(2026, 11, 22))
    assert "Where the time goes" not in (tmp_path / "report/index.html").read_text()
