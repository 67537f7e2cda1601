"""The section "What the runs used": which pictures are on the page, its tables, and what damaged samples do to it."""

from datetime import date
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from ddp_ladder.accounting.advice import accounting_table
from ddp_ladder.accounting.jobs import JobRow
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.nodes.usage import FindingKind, UsageFinding
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.report.missing import not_sampled
from ddp_ladder.report.outdated import PICTURE
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults, read_results
from ddp_ladder.report.usage_across import spreads
from ddp_ladder.report.usage_runs import read_sampled_run
from make_course import course
from make_records import make_failed_record, make_plan_of, make_record, make_spec, make_specs, records_by_name
from make_runs import write_run
from make_sampled_runs import sample_nodes
from make_usage import EVERY_S

SECONDS = 60.0
PAUSE = (40.0, 46.0, 0.1)
HOSTILE = "<script>alert('x')</script>|`$\\"


def sampled(results: Path, spec: RunSpec) -> Record:
    """A run of 60 steps with samples of its nodes; one with GPUs waits for 6 s."""
    run = write_run(results, spec, samples_per_s=spec.global_batch * 60 / SECONDS)
    gpus = spec.gpus_per_node if spec.device == "cuda" else 0
    return sample_nodes(run, gpus, **course(gpus, int((SECONDS + 5) / EVERY_S) + 1, [PAUSE]))


def report_of(results: Path, records: list[Record]) -> dict[str, str]:
    """The files of a report by their path below it; PNG pictures without their content."""
    plan = make_plan_of([record.spec for record in records])
    files = write_report(results, LadderResults(plan, records_by_name(records), {}, ()), date(2026, 11, 22))
    folder = results / "report"
    return {path.relative_to(folder).as_posix(): "" if path.suffix == ".png" else path.read_text() for path in files}


def section(page: str) -> str:
    """The section of a page without its pictures."""
    _, _, rest = page.partition(">What the runs used</h2>")
    return unescape(rest[: rest.index("</section>")])


def test_one_picture_for_each_scale_is_on_the_page_and_the_others_are_files(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"], repeats=2, variants=["default", "gloo"])
    files = report_of(tmp_path, [sampled(tmp_path, spec) for spec in specs])
    shown = ["usage_scales", "usage_default_weak_1x1_r1", "usage_default_weak_1x2_r1"]
    others = [f"usage_{s.variant}_weak_{s.scale}_r{s.repeat}" for s in specs if (s.variant, s.repeat) != ("default", 1)]
    page = section(files["index.html"])
    assert [name for name in shown if f'id="{name}"' in page] == shown
    assert not [name for name in others if f'id="{name}"' in page]
    pictures = {name for name in files if name.startswith("usage/")}
    assert all(PICTURE.fullmatch(name.removeprefix("usage/")) for name in pictures)  # a later report may delete them
    assert pictures == {f"usage/{name}.{kind}" for name in shown for kind in ("svg", "png")} | {
        f"usage/{name}.svg" for name in others
    }
    assert "Pictures of 6 more runs are files beside this page" in page
    assert all(f'<a href="usage/{name}.svg">' in page for name in others)


def test_the_first_repeat_with_samples_is_shown(tmp_path: Path) -> None:
    first, second = make_specs(["1x1"], repeats=2)
    gloo = make_spec("1x2", variant="gloo")
    files = report_of(tmp_path, [make_record(first), sampled(tmp_path, second), sampled(tmp_path, gloo)])
    assert 'id="usage_default_weak_1x1_r2"' in files["index.html"]
    assert 'id="usage_gloo_weak_1x2_r1"' not in files["index.html"]


def test_without_samples_there_is_no_section(tmp_path: Path) -> None:
    files = report_of(tmp_path, [make_record(spec) for spec in make_specs(["1x1"])])
    assert "What the runs used" not in files["index.html"] + files["scaling.md"]
    assert not [name for name in files if name.startswith("usage")]


def test_figures_of_a_run_with_gpus_in_every_output(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"], repeats=1, device="cuda")
    records = [sampled(tmp_path, spec) for spec in specs]
    files = report_of(tmp_path, records)
    table = pd.read_csv(tmp_path / "report/scaling.csv").set_index("gpus_per_node")
    for record in records:
        usage, row = record.usage, table.loc[record.spec.gpus_per_node]
        assert usage is not None
        assert 0.6 < row.gpu_busy_fraction < 0.95
        assert row.gpu_busy_fraction == pytest.approx(usage.gpu_busy_fraction, rel=1e-5)
        assert 200 < row.gpu_power_w < 370
        assert row.cpu_fraction == pytest.approx(usage.cpu_fraction, rel=1e-5)
        # 64 samples per GPU and second: the mean power of a GPU / 64
        assert row.energy_j_per_sample == pytest.approx(row.gpu_power_w / 64, rel=0.05)
    page, text = section(files["index.html"]), files["scaling.md"]
    headings = ("GPU busy", "GPU power", "CPU", "peak memory", "GPU energy", "findings")
    assert all(f">{heading}" in page for heading in headings)
    line = next(line for line in text.splitlines() if line.startswith("| scale | GPU busy"))
    assert [cell.split(" (")[0] for cell in line.strip("| ").split(" | ")] == ["scale", *headings]
    assert "2 GPUs on 1 node. Times in which a GPU was busy for less than 80\u00a0%: " in page


def test_a_site_without_gpus_has_no_columns_and_no_panels_of_gpus(tmp_path: Path) -> None:
    files = report_of(tmp_path, [sampled(tmp_path, make_spec("1x2"))])
    page = section(files["index.html"])
    assert "1 node, no GPU." in page
    assert "GPU busy" not in page
    assert "GPU power" not in page
    table = pd.read_csv(tmp_path / "report/scaling.csv")
    assert table["cpu_fraction"].notna().all()
    assert table[["gpu_busy_fraction", "gpu_power_w", "energy_j_per_sample"]].isna().all(axis=None)


def found(what: str, kind: FindingKind = "GPU idle") -> UsageFinding:
    return UsageFinding(kind=kind, measured=what, next="look at the loader", everywhere=True)


def test_findings_are_shown_with_the_scales_that_have_them(tmp_path: Path) -> None:
    records = [sampled(tmp_path, spec) for spec in make_specs(["1x1", "1x2", "2x1"], repeats=1)]
    idle, grows = found(f"the GPUs were busy for 50 % {HOSTILE}"), found("the CPUs are full", "CPUs full")
    for k, each in enumerate([(), (idle,), (idle, grows)]):
        usage = records[k].usage
        assert usage is not None
        records[k] = records[k].replace(usage=usage.replace(findings=each))
    files = report_of(tmp_path, records)
    page, text = section(files["index.html"]), files["scaling.md"]
    assert "<script>alert" not in files["index.html"] + text
    rows = [row for row in page.split("<tr>") if "Look at the loader." in row]
    assert [row[: row.index("</td>")].removeprefix("<td>") for row in rows] == ["1x2, 2x1", "2x1"]
    assert "The GPUs were busy for 50 % <script>" in rows[0]
    assert "- 2x1: the CPUs are full. Next: look at the loader." in text
    table = text[text.index("| scale | CPU") :].splitlines()[2:5]
    assert [line.strip("| ").split(" | ")[-1] for line in table] == ["none", "GPU idle", "GPU idle, CPUs full"]


def job_of(scale: str) -> JobRow:
    times = {"preflight_s": 5.0, "startup_s": 10.0, "training_s": 600.0, "other_s": 105.0}
    runs = {"runs_planned": 1, "runs_measured": 1, "runs_ok": 1, "samples": 1000}
    job = {"kind": "measure", "stage": "stage1", "source": "sacct", "state": "COMPLETED", "nodes": 1, "gpus": 1}
    hours = {"gpu_hours_held": 0.2, "gpu_hours_training": 0.17, "elapsed_s": 720.0, "cpus": 8}
    return JobRow(job_id="4711", scale=scale, ended_at="2026-11-22T14:12:02Z", **job, **times, **runs, **hours)


def test_jobs_are_shown_with_what_they_held(tmp_path: Path) -> None:
    records = [make_record(make_spec("1x1", device="cuda"))]
    plan = make_plan_of([record.spec for record in records])
    results = LadderResults(plan, records_by_name(records), {}, (), jobs=(job_of("1x1"),))
    write_report(tmp_path, results, date(2026, 11, 22))
    page, text = section((tmp_path / "report/index.html").read_text()), (tmp_path / "report/scaling.md").read_text()
    expected = accounting_table(plan, results.jobs)
    for output in (page, text.replace("\\", "")):
        assert expected.totals in output
        assert all(heading in output for heading in expected.headings)
        assert all(cell in output for cell in expected.rows[0])


def test_damaged_samples_are_a_note(tmp_path: Path) -> None:
    plan = make_plan_of(make_specs(["1x1"], repeats=2))
    for spec in plan.runs:
        sampled(tmp_path, spec)
    run = RunDirectory(tmp_path / "runs" / plan.runs[0].name)
    run.samples(0).write_text(run.samples(0).read_text().replace("0.5", "much", 3))
    run.record.unlink()  # it is assembled again, with the damage
    results = read_results(tmp_path, plan)
    assert len(results.records) == 2
    write_report(tmp_path, results, date(2026, 11, 22))
    page = section((tmp_path / "report/index.html").read_text())
    assert "node0.csv is damaged" in page
    assert 'id="usage_default_weak_1x1_r2"' in page


def test_samples_that_vanish_after_the_record_was_read_are_a_note(tmp_path: Path) -> None:
    record = sampled(tmp_path, make_spec("1x1"))
    RunDirectory(tmp_path / "runs" / record.spec.name).run.unlink()
    files = report_of(tmp_path, [record])
    assert "default/weak/1x1/r1: no picture, as its files cannot be read" in section(files["index.html"])


def test_gpus_that_no_rank_trained_on_are_not_drawn(tmp_path: Path) -> None:
    """Without Slurm a run sees all GPUs of the machine."""
    spec = make_spec("1x2", device="cuda")
    record = sample_nodes(write_run(tmp_path, spec), 4)
    run = read_sampled_run(RunDirectory(tmp_path / "runs" / spec.name), record)
    assert run is not None
    assert [gpu.about.index for gpu in run.nodes[0].gpus] == [0, 1]


def test_the_timeline_of_the_picture_is_that_of_the_run(tmp_path: Path) -> None:
    record = sampled(tmp_path, make_spec("1x2", device="cuda"))
    run = read_sampled_run(RunDirectory(tmp_path / "runs" / record.spec.name), record)
    assert run is not None
    assert [span.phase for span in run.timeline.spans] == ["start-up", "warm-up", "training", "end"]
    assert "training" in [dip.phase for dip in run.dips]


def test_across_scales_every_gpu_of_every_repeat_is_a_point(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"], repeats=2, variants=["default", "gloo"], device="cuda")
    across = {spread.key: spread for spread in spreads([sampled(tmp_path, spec) for spec in specs])}
    assert {"busy", "memory_busy", "power", "temperature", "cpu", "network"} <= set(across)
    counts = {place: len(values) for place, values in across["busy"].values.items()}
    assert counts == {("weak", "1x1"): 2, ("weak", "1x2"): 4}  # of the reference variant
    assert {len(values) for values in across["cpu"].values.values()} == {2}  # a node each
    assert across["network"].unit.name == "GB/s"
    assert all(60 < value < 100 for value in across["busy"].values["weak", "1x2"])
    assert spreads([make_record(specs[0])]) == []


def test_runs_without_samples_are_named(tmp_path: Path) -> None:
    first, second, failed = make_specs(["1x1"], repeats=3)
    files = report_of(tmp_path, [sampled(tmp_path, first), make_record(second), make_failed_record(failed)])
    words = "Not sampled: default/weak/1x1/r2, so the use of CPUs"
    assert words in files["index.html"]
    assert words in files["scaling.md"]
    assert "sampled" not in not_sampled([sampled(tmp_path, first), make_failed_record(failed)])
