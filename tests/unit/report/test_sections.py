"""The report's sections: where the time goes, cost, prediction, what runs used, the list of runs; and its pictures."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import date
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.ladder import after_gate
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import UNKNOWN
from ddp_ladder.gates.gate import judge
from ddp_ladder.plan.plan import Plan
from ddp_ladder.preflight.result import PreflightResult
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.report.document import Block, Cell, Section, in_words
from ddp_ladder.report.page import recommendations, write_report
from ddp_ladder.report.plots import (
    attribution_figure,
    draw_usage,
)
from ddp_ladder.report.sections import explained, sections
from ddp_ladder.report.view import ReportView, read_results
from make_records import (
    JOB_ID,
    make_plan_of,
    make_record,
    make_spec,
    make_specs,
    repeated,
    with_ranks,
)
from make_results import make_results
from make_runs import RATES as LADDER_RATES
from make_runs import edit, end_run, reassemble, write_ladder, write_loop, write_run
from make_sampled_runs import write_sampled_run
from matplotlib.patches import Rectangle

TODAY = date(2026, 11, 22)
STEPS = {"1x1": (0.05, 0.0), "1x2": (0.055, 0.004), "2x2": (0.1, 0.045)}  # step and exposed communication, in s
GRADIENTS = {"gradient_bytes": 4_000_000, "bucket_bytes": [1_000_000, 3_000_000]}
RATES = {"1x1": 1000.0, "1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}


def ladder(variants: Sequence[str] = ("default",), scales: Sequence[str] = tuple(STEPS)) -> list[Record]:
    """Return a ladder whose ranks timed the parts of a step."""
    found = []
    for spec in make_specs(scales, repeats=1, variants=variants):
        step_s, exposed_s = STEPS[str(spec.scale)]
        record = make_record(spec, spec.global_batch / step_s, fingerprint=GRADIENTS)
        n = spec.world_size
        found.append(with_ranks(record, compute_s=[0.04] * n, exposed_comm_s=[exposed_s] * n, data_wait_s=[0.001] * n))
    return found


def view_of(rates: Mapping[str, float], work: Work | None = None, **changes: Any) -> ReportView:
    records = [make_record(spec, repeated(rates[str(spec.scale)], spec)) for spec in make_specs(list(rates), **changes)]
    return ReportView(make_results(records, work=work or Work()), TODAY)


def section_of(view: ReportView, title: str) -> Section:
    return next(each for each in sections(view, ()) if each.title == title)


def rows_of(block: Block) -> list[dict[str, str]]:
    """The rows of a table by heading, without units."""
    names = [in_words(heading).partition(" (")[0].replace("\u2011", "-") for heading in block.headings]
    return [
        dict(zip(names, (in_words(cell).replace("\u00a0", " ") for cell in row), strict=True)) for row in block.rows
    ]


def table(view: ReportView, title: str, name: str) -> dict[str, dict[str, str]]:
    """A table of figures by the scale."""
    section = section_of(view, title)
    (found,) = (block for block in section.blocks if block.kind == "table" and block.name == name)
    return {row["scale"]: row for row in rows_of(found)}


# Where the time goes


def test_the_largest_scale_is_explained_and_the_others_are_folded() -> None:
    view = ReportView(make_results(ladder(["default", "gloo"])), TODAY)
    assert [view.place(point) for point, _ in explained(view)] == [
        "2x2 weak default", "1x2 weak default", "1x2 weak gloo", "2x2 weak gloo",
    ]  # fmt: skip
    section = section_of(view, "Where the time goes")
    assert [block.summary.partition(":")[0] for block in section.blocks if block.summary] == [
        "1x2 weak default", "1x2 weak gloo", "2x2 weak gloo",
    ]  # fmt: skip


def test_page_and_markdown_say_where_the_time_goes(tmp_path: Path) -> None:
    preflight = PreflightResult(
        schema_version=1, status="ok", scale="2x2", job={"id": JOB_ID, "attempt": 1, "run_id": "0" * 64},
        started_at_s=0.0, took_s=9.0, launcher="torchrun", backend="gloo", transport=(),
        nodes=(), sizes=(), pairs=(), alpha_s=0.001, beta_s_per_byte=1e-9, findings=(),
    )  # fmt: skip
    write_report(make_results(ladder(), preflights={"2x2": preflight}, directory=tmp_path), TODAY)
    page, text = ((tmp_path / "report" / name).read_text() for name in ("index.html", "scaling.md"))
    for words in ("Where the time goes", "45.0 ms exposed communication", "which 2.00 ms is latency"):
        assert words in page
        assert words in text
    assert "| 2x2 | 40.0 | 45.0 | 1.00 | 0.00 | 14.0 |" in text
    assert "bout 29 % more samples/s" in text


# Cost, and what to ask for


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (Work(90, None, 50_000), "90 epochs take 11 min 32 s: 1.54 process h."),
        (Work(None, 4.5e6), "4,500,000 samples take 11 min 32 s: 1.54 process h."),
        (Work(epochs=90), "set report.samples"),
    ],
)
def test_what_a_training_takes(work: Work, told: str) -> None:
    view = view_of(RATES, work=work)
    assert any(told in text for _, text in recommendations(view))
    costs = table(view, "Cost", "Cost")
    assert ("time to solution" in costs["2x4"]) == (work.total(1) is not None)


BY_HAND = {"sampler": "SequentialSampler", "shards": False, "shuffle": False}


@pytest.mark.parametrize(
    ("parts", "loader", "whole"),
    [
        ((1797, 1797), {}, 1797),  # DistributedSampler divides it
        ((899, 898), BY_HAND, 1797),
        ((1797, 1797), {**BY_HAND, "sampler": "RandomSampler", "shuffle": True}, None),  # parts, or all of it on each
        ((899, 898), {}, None),
        ((899, None), BY_HAND, None),
    ],
)
def test_the_size_of_the_whole_data_is_read_from_a_record(
    tmp_path: Path, parts: Sequence[int | None], loader: Mapping[str, Any], whole: int | None
) -> None:
    plan = write_ladder(tmp_path, scales=["1x2"], repeats=1)
    run = RunDirectory(tmp_path / "runs" / plan.runs[0].name)
    for rank, size in enumerate(parts):
        changes = {**loader, "dataset_size": size}
        edit(run.ranks / f"rank{rank}.json", lambda end, changes=changes: end["loader"].update(changes))
    reassemble(run)
    assert read_results(tmp_path, plan).work == Work(dataset_size=whole)


# Prediction


def test_a_forecast_stands_beside_what_was_measured(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    shutil.rmtree(tmp_path / "runs/default/weak/2x1")
    (line,) = after_gate(plan, judge(plan, "stage2", tmp_path), RunRecords(tmp_path))
    page, text = written(tmp_path, plan)
    assert line in page
    assert "measured since" not in text
    write_run(tmp_path, plan.runs[-1], LADDER_RATES["2x1"])
    page, text = written(tmp_path, plan)
    assert line not in page
    (row,) = [each for each in text.splitlines() if each.startswith("| 2x1 |") and "inside the interval" in each]
    assert "measured 1,738" in row


def written(results: Path, plan: Plan) -> tuple[str, str]:
    write_report(read_results(results, plan), TODAY)
    folder = results / "report"
    return unescape((folder / "index.html").read_text()), (folder / "scaling.md").read_text()


# Jobs, machine and runs


# Pictures


def test_the_bars_add_up_to_the_step_and_end_at_one_over_the_efficiency() -> None:
    axes = attribution_figure(make_results(ladder()).points).axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    for place, (step_s, _) in enumerate(STEPS.values()):
        own = [bar for bar in bars if bar.get_x() < place < bar.get_x() + bar.get_width()]
        assert sum(bar.get_height() for bar in own) == pytest.approx(step_s / 0.05)
    assert {"50.0 ms", "55.0 ms", "100 ms", "45.0"} <= {text.get_text() for text in axes.texts}
    (text,) = attribution_figure(make_results(ladder(scales=["2x2"])).points).axes[0].texts
    assert text.get_text() == "no step has been compared with one at 1x1 yet"


def test_each_scale_has_one_picture_and_damaged_samples_are_a_note(tmp_path: Path) -> None:
    specs = [*make_specs(["1x1", "1x2"], repeats=2), make_spec("1x2", mode="strong")]
    for spec in specs:
        write_sampled_run(tmp_path, spec, gpu_count=0)
    results = read_results(tmp_path, make_plan_of(specs))
    files = write_report(results, TODAY).files
    names = [path.name for path in files if path.parent.name == "usage"]
    assert names == [f"usage_default_weak_{scale}_r1.{kind}" for scale in ("1x1", "1x2") for kind in ("svg", "png")]
    page = (tmp_path / "report/index.html").read_text()
    assert page.count('<figure class="usage">') == 2
    assert "What 1x2 weak, r1 used over time. 1 node, no GPU." in page
    for repeat in (1, 2):
        samples = tmp_path / f"runs/default/weak/1x1/r{repeat}/nodes/node0.csv"
        samples.write_text("time_s,cpu_fraction\n1.0,much\n")
    picture, notes = draw_usage(tmp_path, list(results.records.values()))[0]
    assert "1x2" in picture.picture
    assert "node0.csv" in str(notes.items[0])


# The owners of the seconds


def test_the_owners_of_each_scale_add_up_to_its_wall_time(tmp_path: Path) -> None:
    """The run of two GPUs saves for 3 s; nothing is known of the steps' ends of 2x1, so it has no row."""
    plan = write_ladder(tmp_path, repeats=1)
    for spec in plan.runs[:2]:
        run = RunDirectory(tmp_path / "runs" / spec.name)
        pauses = {30: ("save", 3.0)} if spec.world_size == 2 else {}
        for rank in range(spec.world_size):
            ended_s = write_loop(run, rank, steps_s=[0.1] * 60, data_wait_s=0.01, pauses=pauses)
        end_run(run, ended_s)
        reassemble(run)
    view = ReportView(read_results(tmp_path, plan), TODAY)
    section = section_of(view, "Where every second went")
    table, _, meanings = section.blocks
    names = [in_words(heading).removesuffix(" (s)") for heading in table.headings]
    assert len(table.rows) == 2
    for row in table.rows:
        values = dict(zip(names, (cell.value for cell in row if isinstance(cell, Cell)), strict=True))
        owned_s = [value for name, value in values.items() if name not in ("scale", "wall time") and value is not None]
        assert sum(map(float, owned_s)) == pytest.approx(values["wall time"])
    first, second = (dict(zip(names, map(in_words, row), strict=True)) for row in table.rows)
    assert (first["saving"], second["saving"]) == ("0.00 0.0\u00a0%", "3.00 21\u00a0%")
    assert (first["computation and communication"], second["computation"]) == (UNKNOWN, UNKNOWN)
    assert len(meanings.items) == len(names) - 2


def test_saves_stand_beside_the_start_up_of_each_scale(tmp_path: Path) -> None:
    """At 1x2 rank 1 saves for longer; the second scale tells nothing of its saves. Without any there are no columns."""
    plan = write_ladder(tmp_path, repeats=1)
    for saving in (False, True):
        for spec in plan.runs[:2]:
            run = RunDirectory(tmp_path / "runs" / spec.name)
            for rank in range(spec.world_size):
                pauses = {30: ("save", 3.0), 40: ("save", 1.0 + rank)} if saving and spec.world_size == 2 else {}
                ended_s = write_loop(run, rank, steps_s=[0.1] * 60, pauses=pauses)
            end_run(run, ended_s)
            reassemble(run)
        view = ReportView(read_results(tmp_path, plan), TODAY)
        section = section_of(view, "Start-up and checkpoints")
        names = [*map(in_words, section.blocks[0].headings)][-4:]
        assert (names == ["saves", "in saves (s)", "saved (GB)", "saving"]) == saving
    first, second, third = ([*map(in_words, row)][-4:] for row in section.blocks[0].rows)
    assert first == ["0", "0.00", "0.00", "0.0\u00a0%"]
    assert second[:3] == ["2", "5.00", "2.80"]
    assert third == [UNKNOWN] * 4
    record = read_record(RunDirectory(tmp_path / "runs" / plan.runs[1].name).record)
    assert record.saves is not None
    assert (record.saves.rank, record.saves.seconds) == (1, 5.0)


def test_a_gate_on_a_run_with_unexplained_seconds_is_uncertain(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1, scales=["1x1", "1x2"])
    for pause_s, doubted in ((0.1, False), (3.0, True)):
        for spec in plan.runs:
            run = RunDirectory(tmp_path / "runs" / spec.name)
            for rank in range(spec.world_size):
                ended_s = write_loop(run, rank, steps_s=[0.1] * 60, pauses={30: ("nothing", pause_s)})
            end_run(run, ended_s)
            reassemble(run)
        gate = judge(plan, "stage2", tmp_path)
        assert gate.is_open
        assert any("are unexplained" in found.measured for found in gate.uncertain("default")) is doubted
