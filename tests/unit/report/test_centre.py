"""The rules of a computing centre: read from their files, and judged on a ladder."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import report as report_command
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.common.files import CENTRES
from ddp_ladder.common.findings import Finding, RuleKind
from ddp_ladder.common.messages import UserError
from ddp_ladder.records.record import Job, Record
from ddp_ladder.report.centre import (
    CHECKS,
    Centre,
    JudgedScales,
    Rule,
    case_of,
    judged,
    read_centre,
    rules_section,
    summary,
)
from ddp_ladder.report.document import as_markdown
from ddp_ladder.report.proposal import proposal
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.load import read_sources
from make_records import make_record, make_specs, repeated
from make_results import make_results
from make_runs import write_ladder

TODAY = date(2026, 11, 20)
GOOD = {"1x1": 1000.0, "1x4": 3800.0, "2x4": 7200.0, "4x4": 13600.0}
NAMES = ("airr", "csc-large", "cscs", "eurohpc", "eurohpc-aif", "genci", "iscra", "lumi")


def records_of(
    rates: Mapping[str, float] = GOOD,
    wall_s: float = 400.0,
    startup_s: float = 10.0,
    job: str = "81234",
    **changes: Any,
) -> list[Record]:
    """Runs of a fixed amount of work: the same samples in all, and a wall time that follows from the rate."""
    records = []
    first, *others = rates
    changes = {"device": "cuda", **changes}
    for spec in (*make_specs([first], stage="stage1", **changes), *make_specs(others, **changes)):
        rate = repeated(rates[str(spec.scale)], spec)
        record = make_record(spec, rate, startup_s=startup_s)
        assert record.timing is not None
        assert record.job is not None
        ranks = tuple(rank.replace(samples=16 * 10**6 // spec.gpus) for rank in record.ranks)
        slowest = min(rates.values())
        timing = record.timing.replace(wall_s=startup_s + (wall_s - startup_s) * slowest / rate, startup_s=startup_s)
        records.append(record.replace(ranks=ranks, timing=timing, job=Job(id=job, attempt=1, run_id=record.job.run_id)))
    return records


def view_of(records: Sequence[Record], specs: Sequence[Any] = (), **changes: Any) -> ReportView:
    return ReportView(make_results(records, specs or None, **changes), TODAY)


def case(records: Sequence[Record]) -> JudgedScales:
    found = case_of(view_of(records))
    assert found is not None
    return found


def check(name: RuleKind, of: JudgedScales, **parameters: float) -> Finding:
    return CHECKS[name][0](of, Rule(check=name, asks="this", parameters=parameters))


def test_a_good_ladder_meets_the_rules_of_csc(tmp_path: Path) -> None:
    records = records_of(wall_s=6000.0)
    for record in records:
        file = tmp_path / "runs" / record.spec.name / "job.sh"
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/bash\n")
    view = view_of(records)
    view = replace(view, results=replace(view.results, directory=tmp_path))
    vars(view)["points"] = tuple(point.having({"gpu_busy_fraction": 0.97}) for point in view.points)
    centre = read_centre("csc-large")
    rules = judged(centre, view)
    assert [found.kind for found in rules if found.severity != "note"] == ["by a person"] * 3
    assert summary("csc-large", rules).endswith(": 8 of 11 rules pass, 3 cannot be checked")
    figures = {found.kind: found.measured.replace("\u00a0", " ") for found in rules}
    assert figures["node counts"] == "3 node counts: 1, 2, 4"
    assert re.fullmatch(r"2x4 94\.\d % \[.*\], 4x4 8\d\.\d % \[.*\], against 1x4", figures["efficiency by total time"])
    assert figures["batch script"] == "runs/default/weak/4x4/r1/job.sh"
    table, note = rules_section(centre, view, rules, with_next=False).blocks
    assert table.headings == ("rule", "asks for", "verdict", "figure")
    assert {len(row) for row in table.rows} == {4}
    assert note.text.endswith("read 2026-11. Judged on weak scaling at 1x4, 2x4, 4x4.")


IN_WORDS = {3: "three", 0.1: "a tenth", 0.75: "75 %", 120: "we take 120 s", 900: "15 minutes"}


def test_every_shipped_rule_has_a_known_check_and_says_each_value_that_it_is_checked_with() -> None:
    assert tuple(sorted(file.stem for file in CENTRES.glob("*.toml"))) == NAMES
    centres = [read_centre(name) for name in NAMES]
    assert all(centre.source.startswith("https://") for centre in centres)
    unconfirmed = [centre.name for centre in centres if centre.note.startswith("Unconfirmed: ")]
    assert unconfirmed == ["airr", "eurohpc-aif", "genci", "iscra"]
    rules = [rule for centre in centres for rule in centre.rules]
    assert {rule.check for rule in rules} == set(CHECKS)
    assert all(IN_WORDS[value] in rule.asks for rule in rules for value in rule.parameters.values())


def test_each_rule_fails_with_a_next_step() -> None:
    bad = case(records_of({"1x4": 3800.0, "2x4": 5000.0}, wall_s=40.0, startup_s=10.0, job="local-here-1"))
    for name, parameters, figure, step in (
        ("node counts", {"least": 3}, "2 node counts: 1, 2", "stages.stage3.scales, and start"),
        ("through Slurm", {}, "not in Slurm: local-here-1", "profiles/slurm"),
        ("run length", {"min_run_s": 120, "max_startup_fraction": 0.1}, "shortest run 33 s (2x4)", "measure.max_steps"),
        ("efficiency by total time", {"min_efficiency": 0.75}, "2x4 6", "ask for a scale below 2x4, train longer"),
        ("GPU utilisation", {}, "not sampled at 1x4, 2x4", "monitor.enabled"),
        ("batch script", {}, "no job.sh of 2x4", "keep the runs"),
    ):
        found = check(name, bad, **parameters)
        assert (name, found.severity) == (name, "error")
        assert figure in found.measured.replace("\u00a0", " "), found
        assert step in found.next, found


def test_other_programs_and_simulated_nodes_do_not_pass() -> None:
    records = [
        record.replace(fingerprint=record.fingerprint.replace(num_workers=0)) if record.spec.nodes == 1 else record
        for record in records_of()
    ]
    found = check("same input", case(records))
    assert (found.severity, found.measured) == ("error", "num_workers differ at 2x4, 4x4")
    assert check("efficiency by total time", case(records), min_efficiency=0.75).severity == "unknown"
    here = [record.replace(world=record.world.replace(nodes=("a",) * record.spec.nodes)) for record in records_of()]
    found = check("through Slurm", case(here))
    assert found.severity == "error"
    assert "simulated nodes: 2 agents on 1 host" in found.measured


def test_what_is_not_known_cannot_be_checked() -> None:
    one = case(records_of({"1x4": 3800.0}))
    assert check("efficiency by total time", one, min_efficiency=0.75).severity == "unknown"
    unknown = [
        record.replace(
            timing=record.timing and record.timing.replace(startup_s=None),
            ranks=tuple(rank.replace(startup_s={**rank.startup_s, "total": None}) for rank in record.ranks),
        )
        for record in records_of()
    ]
    found = check("run length", case(unknown), min_run_s=1, max_startup_fraction=0.1)
    assert (found.severity, "not recorded" in found.measured) == ("unknown", True)
    nothing = judged(read_centre("csc-large"), view_of([], make_specs(["1x1"])))
    assert {found.severity for found in nothing} == {"unknown"}


def test_an_unknown_centre_is_one_message_with_the_list() -> None:
    with pytest.raises(UserError) as caught:
        read_sources([], {"centre": "csc"})
    assert str(caught.value).splitlines()[:3] == [
        "--config centre: no rules of such a centre",
        "  found    csc",
        f"  allowed  {', '.join(NAMES)}",
    ]
    sources = read_sources([], {"centre": "csc-large", "repeats": 1})
    assert (sources.centre, sources.overrides) == ("csc-large", {"repeats": 1})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"node counts"', '"nodes"'), "check: should be 'node counts', 'same input', "),
        (("{least", "{most"), "the parameters of 'node counts' are least"),
        (("asks = ", "ask = "), "ask"),
    ],
)
def test_a_mistake_in_a_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], told: str
) -> None:
    (tmp_path / "mine.toml").write_text((CENTRES / "csc-large.toml").read_text().replace(*change))
    monkeypatch.setattr("ddp_ladder.settings.load.CENTRES", tmp_path)
    with pytest.raises(UserError, match=re.escape(told)):
        read_centre("mine")


def test_the_command_writes_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ladder(tmp_path, repeats=1)
    assert report_command.main(["--results", str(tmp_path), "--centre", "csc-large"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"centre   csc-large: \d of 11 rules pass, 4 fail \(node counts, ", said)
    assert [line.partition(" ")[0] for line in said.splitlines()[:3]] == ["reading", "drawing", "drawing"]
    page, application = ((tmp_path / "report" / name).read_text() for name in ("index.html", "proposal.md"))
    assert "run it on the centre&#39;s machine" in page
    assert "Rules of the centre" in page
    assert "Rules of the centre" in application


@pytest.mark.parametrize("smaller", [{}, {"1x1": 2000.0}], ids=["", "a smaller first scale"])
def test_a_pass_that_only_the_start_up_makes_is_unknown(smaller: dict[str, float]) -> None:
    """Weak scaling: all scales pay the same start-up per sample, which hides steps that scale badly.

    Both efficiencies are against the smallest scale that is judged, not against the first one of the ladder.
    """
    records = []
    for record in records_of({**smaller, "1x4": 4000.0, "2x4": 1280.0}):
        step_s = 60.0 if record.spec.nodes == 1 else 60.0 / 0.16
        ranks = tuple(rank.replace(samples=1000) for rank in record.ranks)
        assert record.timing is not None
        timing = record.timing.replace(startup_s=900.0, wall_s=900.0 + step_s)
        records.append(record.replace(ranks=ranks, timing=timing))
    found = check("efficiency by total time", case(records), min_efficiency=0.75)
    assert found.severity == "unknown"
    figure = found.measured.replace("\u00a0", " ")
    assert figure.startswith("2x4 75.3 %")
    assert figure.endswith("; but without the start-up, which all scales pay: 2x4 16.0 %")
    assert found.next.startswith("train longer: raise measure.max_steps")


# Forms


FORMS = tuple(name for name in NAMES if name != "csc-large")


def headings_of(form: Centre) -> Iterator[str]:
    """The headings under which something stands: the FLOPs of these runs are not known."""
    for chapter in form.chapters:
        yield from [f"# {chapter.title}"] if chapter.title else []
        yield from (f"## {heading.title}" for heading in chapter.headings if "peak (optional)" not in heading.title)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_has_its_headings_in_order_and_the_marks_with_their_place_at_the_end(name: str) -> None:
    view = view_of(records_of(modes=["weak", "strong"]), work=Work(samples=1e8, runs=12))
    text = as_markdown(proposal(view, read_centre(name).chapters))
    titles = re.findall(r"(?m)^#{1,2} .*$", text)
    assert titles == [
        "# Scalability of mnist.py on local",
        *headings_of(read_centre(name)),
        "## To fill in before it is sent",
    ]
    body, _, end = text.partition("## To fill in before it is sent")
    marks = re.findall(r"\*\*\\\[FILL IN: (.*?)\\\]\*\*", body)
    assert {"cscs": "the PDF of GSSR", "lumi": "the nodes and hours of the run"}.get(name, "") in " ".join(marks)
    assert marks
    assert [what in end for what in marks] == [True] * len(marks)
    assert re.findall(r"(?m)^\d+\. .* \(.+\)$", end) == re.findall(r"(?m)^\d+\. .*$", end)


def test_the_length_of_the_training_is_asked_for() -> None:
    records, centre = records_of(), read_centre("eurohpc")
    for work, told in (({}, "the length of the training is not known"), ({"epochs": 3}, "size of the data set is not"),
                       ({"samples": 1e6}, "the number of runs is not known")):  # fmt: skip
        rules = {found.kind: found for found in judged(centre, view_of(records, work=Work(**work)))}
        assert rules["time to solution"].severity == "error"
        assert told in rules["time to solution"].measured
        assert "report.runs" in rules["time to solution"].next
    modes = rules["both modes"]
    assert (modes.severity, modes.measured) == ("error", "only weak: 1x1, 1x4, 2x4, 4x4")
    assert modes.next == "set modes: [weak, strong] in config.yaml, and start snakemake again"
