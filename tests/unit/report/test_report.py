"""The report, on whatever a ladder has left."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.common.files import write_json
from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.gates.figures import SCALING_CSV
from ddp_ladder.gates.gate import Verdict
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import HourUnit, RunSpec
from ddp_ladder.plan.short_runs import Fit, Trial, workload_key
from ddp_ladder.records.record import Evidence, Failure, Record
from ddp_ladder.report.hours import milestones
from ddp_ladder.report.page import write_report
from ddp_ladder.report.plots import growth
from ddp_ladder.report.terminal import terminal_table
from ddp_ladder.report.view import LadderResults, ReportView, headline, read_results
from ddp_ladder.settings.terms import Scale
from make_preflight import write_preflight
from make_records import (
    make_failed_record,
    make_gate,
    make_judged,
    make_plan_of,
    make_record,
    make_spec,
    make_specs,
    records_by_name,
    repeated,
    with_ranks,
    with_steps,
)
from make_results import make_results
from make_runs import write_ladder, write_run

PLOTS = ("throughput", "efficiency", "attribution")
FILES = [
    "index.html", "scaling.md", "proposal.md", "runs.csv", "scaling.csv",
    *(f"{name}.{kind}" for name in PLOTS for kind in ("svg", "png")),
]  # fmt: skip
TODAY = date(2026, 11, 20)
EFFICIENCY = {"1x1": 1.0, "1x2": 0.91, "1x4": 0.85, "2x1": 0.86, "2x2": 0.8, "2x4": 0.75}
HOSTILE = "<script>alert('x')</script>|`$\\"


def rate(spec: RunSpec) -> float:
    return repeated(1000.0 * spec.world_size * EFFICIENCY[str(spec.scale)], spec)


def found(
    specs: Sequence[RunSpec],
    records: Sequence[Record] | None = None,
    gates: Sequence[dict[str, Any]] = (),
    warnings: tuple[str, ...] = (),
) -> LadderResults:
    """A ladder's results; by default every run of ``specs`` went well."""
    if records is None:
        records = [make_record(spec, rate(spec)) for spec in specs]
    verdicts = {gate["stage"]: Verdict.from_json(gate) for gate in gates}
    return make_results(records, specs, gates=verdicts, warnings=warnings)


def open_gates(*stages: str) -> list[dict[str, Any]]:
    return [make_gate(stage) for stage in stages]


def words(results: LadderResults) -> str:
    text = headline(results).text
    return text.replace("\u00a0", " ").replace("\u2013", "-")


def written(tmp_path: Path, results: LadderResults) -> dict[str, str]:
    """The text files of the report; its pictures are made, and not drawn."""
    with patch("ddp_ladder.report.page.drawn", lambda figure: {"svg": b"<svg/>", "png": b""}):
        files = write_report(replace(results, directory=tmp_path), TODAY).files
    return {path.name: path.read_text() for path in files if path.suffix != ".png"}


class Page(HTMLParser):
    """Tags with their attributes, and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


SPECS = make_specs(["1x1", "1x2", "2x1"])
CASES: dict[str, Callable[[], LadderResults]] = {
    "full": lambda: found(SPECS, gates=open_gates("stage1", "stage2", "stage3")),
    "no record": lambda: found(SPECS, []),
    "no run planned": lambda: found([]),
    "stage 1 only": lambda: found(SPECS, [make_record(s) for s in SPECS if s.world_size == 1]),
    "all failed": lambda: found(SPECS, [make_failed_record(s) for s in SPECS]),
    "no baseline": lambda: found(SPECS, [make_record(s) for s in SPECS if s.world_size == 2]),
    "one repeat of one block": lambda: found(
        SPECS, [make_record(s, blocks=1, spread=0.0) for s in SPECS if s.repeat == 1]
    ),
    "nothing known of the hardware": lambda: found(SPECS, [make_record(s).replace(fingerprint={}) for s in SPECS]),
    "weak and strong, two variants": lambda: found(
        make_specs(["1x1", "1x2", "2x2"], variants=["default", "b"], modes=["weak", "strong"])
    ),
    "hostile names": lambda: found(
        make_specs(["1x1", "1x2"], variants=[HOSTILE], script=HOSTILE, env={"A": HOSTILE}),
        gates=[make_gate("stage1", "closed", why=HOSTILE, next_step=HOSTILE)],
        warnings=(HOSTILE,),
    ),
}


def check_page(html: str) -> None:
    """Fail unless the page is self-contained and accessible."""
    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert not {"iframe", "object"} & set(names)
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
    for tag, attributes in page.tags:
        if tag == "img":
            assert (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
            assert attributes["alt"]
        if tag == "th":
            assert attributes.get("scope") in ("col", "row")
    assert names.count("table") == names.count("caption")
    levels = [int(tag[1]) for tag in names if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    assert "url(http" not in html
    assert "@import" not in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("case", CASES)
def test_every_file_is_written_and_well_formed(tmp_path: Path, case: str) -> None:
    results = CASES[case]()
    files = write_report(replace(results, directory=tmp_path), TODAY).files
    several = "two variants" in case
    assert [path.name for path in files if path.stem != "comparison"] == FILES
    assert [path.suffix for path in files if path.stem == "comparison"] == [".csv"] * several
    for path in files:
        assert path.parent == tmp_path / "report"
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_bytes())
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
    frame = pd.read_csv(tmp_path / "report" / "scaling.csv")
    assert list(frame.columns) == SCALING_CSV
    assert len(frame) == len(scale_points(results.plan.runs, results.records))
    check_page(files[0].read_text())


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    first = write_report(replace(CASES["full"](), directory=tmp_path / "a"), TODAY).files
    second = write_report(replace(CASES["full"](), directory=tmp_path / "b"), TODAY).files
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name


def test_links_lead_to_files_that_exist(tmp_path: Path) -> None:
    """Into the page itself, and to files beside it; a run of hostile name too, and none that was removed."""
    specs = make_specs(["1x1", "1x2"], variants=["default", "50% & <more> #1"])
    records = [write_run(tmp_path, spec) and make_record(spec) for spec in specs]
    gone = tmp_path / "runs" / specs[0].name / "train.log"
    gone.unlink(missing_ok=True)
    page = Page(written(tmp_path, found(specs, records))["index.html"])
    links = {value for tag, attributes in page.tags if tag == "a" and (value := attributes["href"])}
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {link[1:] for link in links if link.startswith("#")} <= targets
    files = [tmp_path / "report" / unquote(link) for link in links if not link.startswith("#")]
    assert all(file.is_file() for file in files)
    named = {file.resolve().relative_to(tmp_path).as_posix() for file in files}
    assert {"report/scaling.csv", "report/throughput.svg", f"runs/{specs[-1].name}/record.json"} <= named
    assert f"runs/{specs[0].name}/train.log" not in named


def test_the_search_that_chose_the_batch_is_shown(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"])
    plan = make_plan_of(specs)
    tried = (
        Trial(batch_per_gpu=specs[0].batch_per_gpu, outcome="fits", samples_per_s=1234.5, peak_memory_bytes=5 * 10**9),
        Trial(batch_per_gpu=4096, outcome="out of memory", why="CUDA out of memory: no 2 GiB left"),
    )
    fit = Fit(
        key="", workload=workload_key(plan), scale="1x1", headroom_percent=10, trials=tried,
        chosen=specs[0].batch_per_gpu, schema_version=1,
    )  # fmt: skip
    write_json(tmp_path / "fit/1x1.json", fit.model_dump())
    assert read_results(tmp_path, plan).fit == fit
    files = written(tmp_path, replace(found(specs), fit=fit))
    for text in (Page(files["index.html"]).text, files["scaling.md"]):
        assert f"Chosen: {specs[0].batch_per_gpu} per GPU, the smallest batch within 3 % of the best" in text
        assert "1,234" in text
    # A search that chose another batch is of earlier settings.
    write_json(tmp_path / "fit/1x1.json", fit.replace(chosen=4096).model_dump())
    assert read_results(tmp_path, plan).fit is None


def test_hostile_names_come_out_as_text(tmp_path: Path) -> None:
    files = written(tmp_path, CASES["hostile names"]())
    assert files["index.html"].count("<script") == 1
    assert "<script" not in files["scaling.md"]
    assert "<script>alert('x')</script>" in Page(files["index.html"]).text
    tables = re.findall(r"(?m)(?:^\|.*\n)+", files["scaling.md"])
    assert sum("| 1x" in table for table in tables) == 5  # scales, cost, parts of a step, start-up, memory
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    assert pd.read_csv(tmp_path / "report" / "scaling.csv")["variant"][0] == HOSTILE


def test_headlines() -> None:
    two_modes = found(make_specs(["1x1", "1x2"], modes=["weak", "strong"]), gates=open_gates("stage1", "stage2"))
    for results, text in (
        (
            CASES["full"](),
            "Stage 3 reached: 2x1 runs at 1,720 samples/s, 1.72x one process, 86 % efficiency [85-87 %].",
        ),
        (
            found(SPECS, [make_record(s, rate(s)) for s in SPECS[:3]], open_gates("stage1")),
            "Stage 1 reached: 1x1 runs at 1,000 samples/s [990-1,010]. Stage 2 has not been run.",
        ),
        (two_modes, "Stage 2 reached. Weak scaling: 1x2 runs at 1,820"),
        (two_modes, "Strong scaling: 1x2 runs at 1,820"),
    ):
        assert text in words(results)


def test_the_first_screen_shows_the_evidence_of_a_closed_gate(tmp_path: Path) -> None:
    measured, next_step = "efficiency 0.41; of a step's 9 ms, 5 ms are lost", "set a: 1; or set b: 2"
    failing = make_judged("1x2", ok=False, measured=measured, next_step=next_step)
    failing["evidence"] = ["the exchange takes 52 ms", "<b>2 ms</b> of it overlap"]
    gates = [make_gate("stage1"), make_gate("stage2", "closed", judged=[failing])]
    files = written(tmp_path, found(SPECS, [make_record(s) for s in SPECS[:6]], gates))
    first_screen = Page(files["index.html"].partition('<nav aria-label="Contents"')[0]).text
    assert first_screen.count("5 ms are lost") == 1  # in the headline; the line of the gate has the figure alone
    assert "1x2: efficiency 0.41, wanted at least 0.80\n" in first_screen
    assert "Evidence: The exchange takes 52 ms; <b>2 ms</b> of it overlap." in first_screen
    assert "Next, one of:\n\nset a: 1.\nset b: 2.\n" in first_screen
    assert "Evidence: the exchange takes 52 ms; &lt;b&gt;2 ms&lt;/b&gt; of it overlap." in files["scaling.md"]


def test_headline_says_that_other_processes_used_the_machine() -> None:
    results = found(SPECS, [make_record(s, rate(s)) for s in SPECS], open_gates("stage1", "stage2", "stage3"))
    points, used = results.points, "other processes used 1.9 of the 2 CPUs"
    busy = Finding(kind="other processes", severity="warning", place="pc", measured=used, next="end them")
    vars(results)["points"] = [*points[:-1], replace(points[-1], findings=(busy,))]
    line = headline(results)
    assert (line.kind, line.next) == ("doubtful", "end them")
    assert f"Not measured alone: at {points[-1].scale}, {busy.in_words}." in line.text


def test_headline_does_not_celebrate_what_is_not_comparable() -> None:
    records = [make_record(s, rate(s), fingerprint={"num_workers": 8} if s.world_size > 1 else None) for s in SPECS]
    results = found(SPECS, records, open_gates("stage1", "stage2", "stage3"))
    line = headline(results)
    assert line.kind == "doubtful"
    assert "num_workers: 0 at 1x1, 8 at 2x1" in line.text
    assert "efficiency [" not in line.text


def test_runs_that_failed_alike_share_a_box_with_the_lines_of_the_first(tmp_path: Path) -> None:
    def died(spec: RunSpec) -> Record:
        record = make_failed_record(spec, "it died", "of cold", "1. heat\n2. wait")
        said = Evidence(speaker="rank 1 (node7)", line=f"<b> in repeat {spec.repeat}")
        return record.replace(failure=Failure(**{**dict(record.failure or ()), "node": "node7", "evidence": (said,)}))

    records = [make_record(s) if s.world_size == 1 else died(s) for s in SPECS]
    files = written(tmp_path, found(SPECS, records))
    text = Page(files["index.html"]).text
    assert text.count("of cold") == 1
    assert "It died (node7)" in text
    assert "default/weak/1x2/r1, default/weak/1x2/r2" in text
    assert "rank 1 (node7): <b> in repeat 1" in text
    assert "in repeat 2" not in text
    assert "- of cold\n- rank 1 (node7): &lt;b&gt; in repeat 1\n- Next: 1. heat 2. wait" in files["scaling.md"]


def with_startup(results: LadderResults, **seconds: float | None) -> LadderResults:
    """The same ladder with these parts of each rank's start-up."""
    records = {
        name: record.replace(ranks=tuple(r.replace(startup_s={**r.startup_s, **seconds}) for r in record.ranks))
        for name, record in results.records.items()
    }
    return replace(results, records=records)


def test_the_start_up_is_split(tmp_path: Path) -> None:
    results = with_startup(CASES["full"](), spawn=0.51, import_torch=12.3, process_group=None, total=21.25)
    files = written(tmp_path, results)
    row = "| 1x2 | 0.51 | 12.30 | 8.14 | 0.30 | 21.25 |"
    assert row in files["scaling.md"]
    assert "| scale | spawn (s) | import torch (s) | script (s) | first step (s) | total (s) |" in (files["scaling.md"])
    text = " ".join(Page(files["index.html"]).text.split())
    assert "1x2 0.51 12.30 8.14 0.30 21.25" in text
    frame = pd.read_csv(tmp_path / "report" / "scaling.csv")
    assert frame["startup_import_torch_s"].tolist() == [12.3] * 3
    assert frame["startup_process_group_s"].isna().all()
    assert "torch.compile (s)" not in files["scaling.md"]
    assert "torch.compile (s)" in written(tmp_path, with_startup(results, compile=0.2))["scaling.md"]


FIELDS: dict[str, Any] = {
    "script_sha256": "1111aaaa", "parameter_dtype": "float32", "autocast_dtype": "float16",
    "float32_products": "medium", "optimizer": "LARS", "num_workers": 77,
    "torch": "2.99", "cuda": "13.9", "nccl": "2.88", "cudnn": 91234, "python": "3.99", "driver": "580.65",
    "power_limit_w": [432.5], "gpu": "GPU Z1", "cpu_model": "CPU Z2", "threads": 13,
    "global_batch": 130, "gradient_bytes": 605_224, "bucket_bytes": [605_001, 223], "comm_hook": "powersgd",
    "git_commit": "3333cccc", "git_dirty": True, "cpus": 17, "cpu_sets": ["0-8", "9-16"],
    "sources": {"model.py": "4444dddd"}, "configuration": {"conf.yaml": "5555eeee"}, "libraries": {"timm": "1.99"},
    "compiled_graphs": 3,
}  # fmt: skip


def test_the_report_shows_what_each_field_is_at_each_scale() -> None:
    """Of every field of the fingerprint: where it differs both values, and where they were seen."""
    records = [make_record(s, fingerprint=FIELDS) for s in SPECS[:6]]
    for field in FIELDS:
        records[5] = records[4].replace(
            spec=SPECS[5], fingerprint={key: value for key, value in FIELDS.items() if key != field}
        )
        rows = {name: words for name, _, words in ReportView(found(SPECS[:6], records), TODAY).measured}
        assert rows.pop("steps").startswith("130 (8,320 samples) (1x1); 130 (16,640 samples)")
        assert [words for words in rows.values() if "(1x1, 1x2); " in words and words.endswith(" (1x2)")], field


# Reading results


@pytest.mark.parametrize(("spoil", "told"), [
    (lambda record: record.unlink(), "stage 1 measured"),
    (lambda record: record.write_text("{"), "what was measured cannot be shown: 3 records cannot be used."),
], ids=["deleted", "torn"])  # fmt: skip
def test_records_that_are_lost_are_not_called_unmeasured(
    tmp_path: Path, spoil: Callable[[Path], object], told: str
) -> None:
    """Snakemake deletes the records of a job that fails at last, by a full disk for example; their raw files stay."""
    plan = make_plan_of(SPECS)
    for spec in SPECS[:3]:
        write_run(tmp_path, spec)
        spoil(tmp_path / "runs" / spec.name / "record.json")
    results = read_results(tmp_path, plan)
    assert headline(results).text.lower().startswith(told.lower())


# Pictures


def test_lines_follow_growth_of_one_kind_only() -> None:
    specs = make_specs(["1x1", "1x2", "1x4", "2x1", "2x4"], repeats=1)
    lines = [([str(point.scale) for point in line], style) for line, style in growth(scale_points(specs, {}))]
    assert lines == [(["1x1", "1x2", "1x4"], "-"), (["1x1", "2x1"], "--"), (["1x4", "2x4"], "--")]


# Other baselines, and what stands beside the figures


def with_plain(ok: bool = True) -> LadderResults:
    """A ladder whose script also ran alone in stage 1, or could not."""
    plain = [make_spec("1x1", repeat=k, variant="plain", launcher="python") for k in (1, 2, 3)]
    records = [make_record(spec, rate(spec)) for spec in SPECS]
    for spec in plain:
        good = make_record(spec, 1250.0)
        alone = good.replace(world=good.world.replace(backend=None))
        records.append(alone if ok else make_failed_record(spec, why="rank 0: ValueError: RANK expected"))
    return found([*SPECS, *plain], records, open_gates("stage1", "stage2", "stage3"))


def test_both_baselines_are_shown_and_named(tmp_path: Path) -> None:
    files = written(tmp_path, with_plain())
    page, text = Page(files["index.html"]).text, files["scaling.md"]
    assert "1x1plain, no DDP" in page
    named = "Speed-up and efficiency are against 1x1 under the launcher, a process group of one"
    assert named in page
    assert "\u201cvs plain\u201d is against the script alone" in page
    alone = Page(written(tmp_path, CASES["full"]())["index.html"]).text
    assert named in alone
    assert "vs plain" not in alone
    assert "73 % vs plain" in page.replace("\u00a0", " ")
    assert "(69 % against the script without DDP)" in page.replace("\u00a0", " ")
    header, _, *rows = ([cell.strip() for cell in line.split("|")] for line in text.splitlines() if line[:1] == "|")
    shown = {row[1]: dict(zip(header, row, strict=False)) for row in rows[:3]}
    assert list(shown) == ["1x1 plain, no DDP", "1x1 stage 1", "1x2 stage 2"]
    assert "73 % vs plain" in shown["1x2 stage 2"]["efficiency"].replace("\u00a0", " ")
    assert "Weak scaling, variant" not in text  # the plain baseline is no series of its own


def test_what_may_differ_stands_beside_the_figures(tmp_path: Path) -> None:
    records = [make_record(s, rate(s), fingerprint={"num_workers": 3 - s.world_size}) for s in SPECS]
    results = found(SPECS, records)
    files = written(tmp_path, replace(results, plan=replace(results.plan, may_differ=("num_workers",))))
    page = Page(files["index.html"]).text
    for text in (page, files["scaling.md"].replace("\\_", "_"), files["scaling.csv"]):
        assert "allowed to differ: num_workers: 2 at 1x1, 1 at 1x2" in text
    assert re.search(r"num_workers\s*may differ\s*2 \(1x1", page)
    assert "fields marked “may differ” are listed in fingerprint.may_differ" in page
    assert "| num\\_workers | may differ |" in files["scaling.md"]


def test_the_preflights_that_can_be_read_are_shown(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path)
    wrong = [{"bytes": 4096, "time_s": 1e-3, "wrong": [f"round 1: {HOSTILE}"]}]
    write_preflight(tmp_path, plan.job(Scale(1, 2)), rank1={"sizes": wrong})
    edited = write_preflight(tmp_path, plan.job(Scale(2, 1)))
    edited.write_text(edited.read_text().replace('"status": "', '"status": "ok", "was": "'))
    files = written(tmp_path / "report", read_results(tmp_path, plan))
    page = Page(files["index.html"]).text
    assert re.search(r"Preflight.*1x2\s*failed\s*[0-9.]+ GB/s", page, re.DOTALL)
    assert "an all-reduce of 4096 bytes returned wrong values on rank 1" in page
    assert "| 1x2 | failed |" in files["scaling.md"]
    assert "2x1.json: the preflight is left out" in page
    assert "Preflight" not in Page(written(tmp_path / "other", found(SPECS, []))["index.html"]).text


def test_samples_over_time_are_called_so_wherever_they_are_shown(tmp_path: Path) -> None:
    times_s = np.tile([*[1.0] * 15, 3.0], 4)
    records = [with_steps(make_record(spec), times_s) for spec in SPECS]
    results = found(SPECS, records, open_gates("stage1", "stage2", "stage3"))
    files = written(tmp_path, results)
    assert "2x1 runs at 114 samples/s (samples / time), " in words(results)
    assert Page(files["index.html"]).text.count("samples / time") > len(SPECS) // 3
    assert "| 114 \\[" in files["scaling.md"]
    assert "\\] samples / time |" in files["scaling.md"]
    assert set(pd.read_csv(tmp_path / "report/scaling.csv")["statistic"]) == {"samples / time"}


def test_an_uncertain_verdict_is_called_so_wherever_it_is_shown(tmp_path: Path) -> None:
    doubt = "efficiency 0.82 (95 % interval 0.78 to 0.90), uncertain: about 20 repeats would decide it"
    judged = {**make_judged("1x2", measured=doubt), "uncertain": True}
    results = found(SPECS, gates=[make_gate("stage2", judged=[judged])])
    files = written(tmp_path, results)
    page = Page(files["index.html"]).text
    assert "open (uncertain)" in page
    # In the headline, beside the gate, and in the table of gates.
    assert page.count("uncertain: about 20 repeats would decide it") == 3
    assert words(results).endswith(f"Decided on the estimate alone: 1x2 {doubt}.")
    assert "uncertain: about 20 repeats" in files["scaling.md"]


# A ladder that starts above one GPU: every sentence is against that scale


def test_a_ladder_that_starts_above_one_gpu_is_not_compared_with_one(tmp_path: Path) -> None:
    rates = {"1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}
    specs = (*make_specs(["1x2"], stage="stage1", device="cuda"), *make_specs(["1x4", "2x4"], device="cuda"))
    records = []
    for spec in specs:
        record = make_record(spec, repeated(rates[str(spec.scale)], spec))
        step_s = record.timing.step_time_s if record.timing else 0.0
        compute, exposed, data = ([part * step_s] * spec.gpus for part in (0.7, 0.05, 0.02))
        records.append(with_ranks(record, compute_s=compute, exposed_comm_s=exposed, data_wait_s=data))
    files = written(tmp_path, found(specs, records, open_gates("stage1", "stage2", "stage3")))
    page = re.sub(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", "", files["index.html"], flags=re.DOTALL)
    texts = {"index.html": page, **{name: files[name] for name in ("scaling.md", "proposal.md")}}
    for name, text in texts.items():
        words = " ".join(re.sub("<[^>]*>", "", text).split())
        for wrong in ("1x1", "against one GPU", "than one GPU", "x one GPU", "Stage 1 is one GPU"):
            assert wrong not in words, name
    shown = " ".join(page.split()).replace("\u00a0", " ")
    assert "2x4 runs at 6,500 samples/s, 3.42x the rate of 1x2, 86 % efficiency" in shown
    assert "against 1x2 of the same variant and mode, where the ladder starts" in shown
    assert "Speed-up and efficiency are against 1x2, where the ladder starts, of the same mode and variant" in shown
    assert "the ideal step: the time of 1x2 for as many samples per rank" in shown
    assert "At 2x4, against 1x2, " in files["proposal.md"]


def test_a_doubt_stands_wherever_the_figure_is_used(tmp_path: Path) -> None:
    specs = make_specs([*EFFICIENCY])
    doubt = remark("doubtful count", "the number of samples is doubtful: no batch was seen", "set samples_per_step")
    records = [make_record(spec, rate(spec)).replace(remarks=(doubt,)) for spec in specs]
    results = replace(found(specs, records), work=Work(samples=1e9))
    shown = headline(results)
    assert (shown.kind, shown.next) == ("doubtful", "set samples_per_step")
    assert words(results).endswith("In doubt: at 2x4 the number of samples is doubtful: no batch was seen.")
    files = written(tmp_path, results)
    here = "at 1x1, 1x2, 1x4, 2x1 and 2 more the number of samples is doubtful: no batch was seen"
    predicted = [line for line in files["scaling.md"].splitlines() if "Predicted, not measured" in line]
    assert predicted
    assert all(line.endswith(f"; in doubt, as {here}.") for line in predicted)
    assert f"In doubt: {here}." in files["proposal.md"]
    kinds = [each.training.run_type.split(", ")[-1] for each in milestones(ReportView(results, TODAY), per_node=False)]
    assert kinds == ["recommended 1x4 (uncertain)", "cheapest 1x1 (uncertain)"]


# The table in the terminal


RATES = {"1x1": 1000.0, "1x2": 1820.0, "2x1": 1700.0, "8x4": 27_000.0}


def test_the_table_in_the_terminal() -> None:
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


def test_the_table_fits_the_terminal_with_everything_in_it() -> None:
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
