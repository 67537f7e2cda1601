"""The section for an application: every figure comes from a record, blanks are marked, limits are said."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.common.findings import remark
from ddp_ladder.gates.gate import Verdict
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.records.raw_models import Flops, Witnessed
from ddp_ladder.records.record import Record
from ddp_ladder.report.document import Block, Document, Section, as_markdown, blank, markdown_text
from ddp_ladder.report.hours import milestones
from ddp_ladder.report.page import write_report
from ddp_ladder.report.proposal import proposal
from ddp_ladder.report.sections import sections
from ddp_ladder.report.view import LadderResults, ReportView, read_results
from make_preflight import write_preflight
from make_records import make_failed_record, make_gate, make_record, make_spec, make_specs, repeated
from make_results import make_results
from make_runs import add_ddp_times, edit, reassemble, write_ladder

TODAY = date(2026, 11, 20)
RATES = {"1x1": 1000.0, "1x4": 3700.0, "2x4": 6900.0, "4x4": 12000.0}


def records_of(rates: Mapping[str, float] = RATES, **changes: Any) -> list[Record]:
    specs = make_specs(list(rates), **{"device": "cuda", **changes})
    return [make_record(spec, repeated(rates[str(spec.scale)], spec)) for spec in specs]


def with_counted(flops: Flops) -> ReportView:
    """A ladder of A100s whose first scale has counted FLOPs."""
    first, *others = (
        record.replace(fingerprint=record.fingerprint.replace(gpu="NVIDIA A100-SXM4-40GB"), ranks=())
        for record in records_of()
    )
    return ReportView(make_results([first.replace(flops=flops), *others]), TODAY)


def test_flops_are_in_the_headline_and_in_the_results() -> None:
    view = with_counted(Flops(forward=20e9, backward=40e9, precisions={"bf16": 1.0}, steps=3))
    text = as_markdown(proposal(view))
    at_last = 60e9 * 12000 / 16 / 1e12
    assert f"each GPU does {at_last:.1f} TFLOP/s (bf16), {100 * at_last / 312:.0f}" in view.headline.text
    assert "A sample takes 60.0 GFLOP" in text
    assert "| scale | TFLOP/s per GPU | of the peak |" in text  # no preflight: no matrix rate


@pytest.mark.parametrize(
    ("witness", "headline", "sentence"),
    [
        (
            Witnessed(status="witnessed"),
            " (witnessed)",
            "The number of samples is witnessed: in a short run of the same",
        ),
        (Witnessed(status="differs", why="half of them"), " (witnessed)", "the batches that changed them are counted."),
        (
            Witnessed(status="off", why="measure.witness_steps is off"),
            " (not witnessed)",
            "The number of samples is not witnessed, but counted by the form of the loop: measure.",
        ),
        (None, "", ""),
    ],
    ids=["witnessed", "differs", "off", "of an earlier version"],
)
def test_whether_the_samples_are_witnessed_is_said_beside_them(
    witness: Witnessed | None, headline: str, sentence: str
) -> None:
    view = ReportView(make_results([record.replace(witness=witness) for record in records_of()]), TODAY)
    text = as_markdown(proposal(view))
    page = str(sections(view, ()))
    assert f"4x4 runs at 12,000 samples/s{headline}" in view.headline.text
    assert all(sentence in each for each in (text, page))
    assert ("not witnessed" in text + page) == ("not" in headline)
    notes = {point.note for point in view.rungs if "its samples are not witnessed" in point.note}
    assert bool(notes) == ("not" in headline)


def test_samples_with_a_doubt_are_not_called_witnessed() -> None:
    doubt = remark("doubtful count", "the number of samples is doubtful: a place drew", "compare it")
    records = [each.replace(witness=Witnessed(status="witnessed"), remarks=(doubt,)) for each in records_of()]
    view = ReportView(make_results(records), TODAY)
    assert "4x4 runs at 12,000 samples/s (not witnessed)" in view.headline.text
    for text in (as_markdown(proposal(view)), str(sections(view, ()))):
        assert "The number of samples is doubtful: a place drew." in text
        assert "is witnessed" not in text


def text_of(results: LadderResults) -> str:
    return as_markdown(proposal(ReportView(results, TODAY))).replace("\u00a0", " ").replace("\u2013", "-")


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


# Figures and their sources


def figures_in(text: str) -> list[str]:
    """The numbers of a text, without those of names such as 1x4, r2 or sha256."""
    return re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w]|\.\d)", text)


def numbers(data: Any) -> Iterator[float]:
    if isinstance(data, dict):
        for value in data.values():
            yield from numbers(value)
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        yield data
    elif isinstance(data, str):
        yield from (float(figure.replace(",", "")) for figure in re.findall(r"\d+(?:\.\d+)?", data))


def sources(results: Path) -> list[float]:
    """The values that the text names as its sources: in record.json, plan.json and scaling.csv."""
    found: list[float] = []
    records = [read_json(path) for path in (results / "runs").rglob("record.json")]
    for record in records:
        kept = {key: record[key] for key in ("spec", "fingerprint", "job", "world")}
        timing = {key: record["timing"][key] for key in ("warmup_steps", "measured_steps", "wall_s")}
        counted = [rank[key] for key in ("samples", "steps") for rank in record["ranks"]]
        counted += [sum(rank["samples"] for rank in record["ranks"]), record["ranks"][0]["parameters"]["count"]]
        found += [*numbers(kept), *numbers(timing), record["throughput"]["samples_per_s"], *counted]
    scaling = pd.read_csv(results / "report/scaling.csv")
    found += [value for _, row in scaling.iterrows() for value in numbers(dict(row))]
    plan = read_json(results / "plan.json")
    found += [gate["min_efficiency"] for gate in plan["gates"].values() if gate["min_efficiency"]]
    return [*found, len(records), len(scaling)]


def untraced(text: str, known: Sequence[float]) -> list[str]:
    """The figures that are no source's value, rounded as they are: in percent, in ms, in MB, or as a duration."""
    missing = []
    for figure in figures_in(text):
        decimals = len(figure.partition(".")[2])
        value, half = float(figure.replace(",", "")), 0.5001 * 10.0**-decimals
        if not any(abs(value - unit * each) <= half for each in known for unit in (1, 100, 1000, 1e-6)):
            missing.append(figure)
    return missing


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a ladder with its report, for a training of 90 epochs. DDP timed its steps; one rank is slow."""
    results = tmp_path_factory.mktemp("ladder")
    plan = write_ladder(results, repeats=3)
    write_preflight(results, plan.job(plan.runs[-1].scale))
    for spec in plan.runs:
        directory = RunDirectory(results / "runs" / spec.name)
        for rank in range(spec.world_size):
            exposed_s = (0.0, 0.0113, 0.0207)[rank + (spec.world_size > 1)]
            add_ddp_times(directory, rank, 0.0454, exposed_s, overlap_s=0.0017)
        edit(directory.ranks / "rank0.json", lambda end: end["loader"].update(dataset_size=60000))
        reassemble(directory)
    found = read_results(results, plan)
    write_report(replace(found, work=replace(found.work, epochs=90)), TODAY)
    return results


def derived(results: Path) -> list[float]:
    """What the text computes itself: node hours, the hours of the whole wall time, and the fitted prediction."""
    found = replace(read_results(results, read_plan(results / "plan.json")), work=Work(90, None, 60000))
    view = ReportView(found, TODAY)
    values: list[float] = []
    for point in view.points:
        hours, wall = point["gpu_hours_to_solution"] or 0, point["wall_hours_to_solution"] or 0
        values += [hours / point.gpus_per_node, wall * point.world_size]
        for seconds in (3600 * (point["hours_to_solution"] or 0), 3600 * wall):
            minutes = round(seconds) // 60
            values += [minutes // 60, minutes % 60, minutes, round(seconds) % 60]
    for each in milestones(view):
        training = each.training
        values += [training.samples / each.point.global_batch, training.samples, training.reserve]
        for hours in (training.hours, training.of_all.nodes):
            values += [hours, *(hours * end / each.of_steps.value for end in each.of_steps.ends)]
        values.append(each.point.nodes * (each.point["startup_s"] or 0) / 3600)
    for outlook in view.outlooks:
        values += numbers(outlook.model_dump())
    took = round(sum(run.timing.wall_s for run in view.runs if run.timing))
    return [*values, took // 60, took % 60, 90, 95, 2026, 11, 20]


LOSSES = "Why it does not scale further"


def prose(text: str) -> str:
    """The text without the numbers of its list of blanks, and the losses, which are derived from several columns."""
    text = re.sub(r"(?m)^\d+\. .*\n", "", text.replace("\u00a0", " ").replace("\\", ""))
    text = re.sub(r"\(\d+ marks", "(", text)
    return re.sub(rf"## {LOSSES}.*?(?=## )", "", text, flags=re.DOTALL)


def test_every_figure_is_one_of_its_sources(ladder: Path) -> None:
    text = prose((ladder / "report/proposal.md").read_text())
    known = [*sources(ladder), *derived(ladder)]
    assert len(figures_in(text)) > 80
    assert untraced(text, known) == []
    for figure in ("1,841", "0.302", "1.80"):  # samples/s, GPU hours, speed-up of 1x2
        assert figure in text
        wrong = figure[:-1] + str((int(figure[-1]) + 5) % 10)
        assert wrong in untraced(text.replace(figure, wrong), known)


# What is said


def test_a_training_of_known_size_is_justified_at_the_recommended_scale() -> None:
    text = section(text_of(make_results(records_of(), work=Work(90, None, 1_281_167, runs=12))), "Requested resources")
    assert "jobs of 4x4 are requested, the largest scale whose efficiency against 1x1 is at least 80" not in text
    assert "jobs of 2x4 are requested, the largest scale whose efficiency against 1x1 is at least 80 %" in text
    assert (
        "One training of 90 epochs takes 4 h 38 min at 2x4 (weak scaling): 37.1 GPU hours, or 9.28 node hours." in text
    )
    assert "| 12 | 2 |" in text
    assert "Predicted, not measured: 8x4 (weak scaling): " in text


def test_without_its_size_the_cost_of_a_million_samples_and_a_blank_stand_there() -> None:
    text = section(text_of(make_results(records_of(), work=Work(90))), "Requested resources")
    assert "report.samples" not in text  # the page says what to set
    assert "A million samples take 0.322 GPU hours at 2x4 (weak scaling)." in text
    assert "FILL IN: the samples of one training, the number of trainings, and the GPU hours" in text


def test_the_table_has_a_row_for_each_mode_and_scale_with_what_a_reviewer_compares() -> None:
    text = section(text_of(make_results(records_of(modes=["weak", "strong"]))), "Results")
    for mode, batch in (("Weak", "64 | 1,024 | 85.3 (85.3)"), ("Strong", "4 | 64 | 5.33 (5.33)")):
        assert f"{mode} scaling (variant default); speed-up and efficiency are by steps, against 1x1" in text
        row = (
            re.escape(f"| 4 | 16 | {batch} | 12,000 ")
            + r"\\\[.* \| 12\.0 \| 75 % .* \| 9,800 \(75 %\) \| .* \| local \|"
        )
        assert re.search(row, text), text
    assert "| scale | repeats | wall time (s) | efficiency by total time | GPU h per million samples |" in text
    assert len(re.findall(r"(?m)^\| 4x4 \((?:weak|strong) scaling\) \| 3 \|", text)) == 2


@pytest.mark.parametrize(("scales", "accumulation", "is_said"), [(4, None, False), (3, None, True), (3, 1, False)])
def test_no_more_gpus_are_predicted_than_the_global_batch_has_samples_or_batches(
    scales: int, accumulation: int | None, is_said: bool
) -> None:
    """64 samples; with accumulation in batches of 4, for 16 GPUs."""
    rates = dict([("1x1", 1000.0), ("1x4", 3950.0), ("4x4", 15500.0), ("16x4", 61000.0)][:scales])
    batch = {"batch_per_gpu": 4, "global_batch": 64} if accumulation else {}
    records = records_of(rates, modes=("strong",), accumulation=accumulation, **batch)
    records = [each.replace(fingerprint=each.fingerprint.replace(**batch)) for each in records]
    text = section(text_of(make_results(records)), "Requested resources")
    assert ("Predicted, not measured: 8x4" in text) is ("Predicted" in text) is is_said


def test_the_method_says_what_the_records_do() -> None:
    records = records_of({"1x1": 1000.0, "2x4": 6900.0}, launcher="srun")
    assert records[-1].job
    assert records[0].throughput
    assert records[0].timing
    records[-1] = records[-1].replace(job=records[-1].job.replace(id="999"))
    records[0] = records[0].replace(
        throughput=records[0].throughput.replace(source="metrics"),
        timing=records[0].timing.replace(warmup_stable=False),
    )
    plain = make_spec("1x1", variant="plain", device="cuda", launcher="python")
    text = text_of(make_results([*records, make_record(plain, 1100.0)]))
    assert "in one job on the same nodes (in several jobs at 2x4), variants" in text
    assert "until the step times were steady (not seen in 1 run: default/weak/1x1/r1)" in text.replace("\\", "")
    assert "measured in stages (stage1 1x1; stage3 2x4). A stage starts only when the gate of the one before" in text
    assert "started by srun, which exchange gradients with nccl." in text
    assert "samples and times are what the program wrote to DDP\\_LADDER\\_METRICS" in text


def test_limits_are_said() -> None:
    specs = make_specs(["1x1", "1x2", "2x2", "4x2"], device="cuda")
    records = []
    for spec in specs:
        if str(spec.scale) == "1x1":
            records.append(make_record(spec, 1000.0, fingerprint={"num_workers": 0}))
        elif str(spec.scale) == "2x2" and spec.repeat == 1:
            records.append(make_record(spec, 3600.0, hosts=["here"]))
        elif str(spec.scale) == "1x2":
            record = make_record(spec, 1900.0)
            assert record.timing
            drifting = record.replace(timing=record.timing.replace(drift_fraction=-0.12))
            records.append(make_failed_record(spec) if spec.repeat == 2 else drifting)
    gates = {"stage2": Verdict.from_json(make_gate("stage2", "closed", why="a run of 1x2 failed"))}
    results = make_results(
        records, specs, gates=gates, warnings=("runs/x/record.json: it is left out. Next: start snakemake again",)
    )
    text = section(text_of(results), "Limits of these measurements").replace("\\", "")
    for words in (
        "2x2: simulated nodes: 2 agents on 1 host, so the network between nodes was not measured.",
        "Fewer than three runs at 1x2, 2x2: they show little of the differences between runs.",
        "The speed changed within the runs of 1x2: by more than 5 % from the first to the last third of their steps.",
        "2x2: not like for like: num_workers: 0 at 1x1, 8 at 2x2",
        "Planned and not measured: 4x2.",
        "1 run failed (default/weak/1x2/r2): the script raised an exception.",
        "The gate of stage2 is closed: a run of 1x2 failed.",
        "runs/x/record.json: it is left out.",
    ):
        assert words in text, words
    assert "start snakemake" not in text


# Markdown


def test_a_blank_survives_the_escape() -> None:
    text = f"see {blank('the name & size', 'its page')}, please"
    document = Document("t", (Section("s", (Block(text),)),))
    assert "see **\\[FILL IN: the name &amp; size\\]**, please" in as_markdown(document)
    assert markdown_text("a|b") == "a\\|b"
