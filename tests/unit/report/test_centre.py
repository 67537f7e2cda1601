"""The rules of computing centres: each passes, fails or cannot be checked, with its figure; and the zip file."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import report as report_command
from ddp_ladder.common.files import CENTRES
from ddp_ladder.common.messages import UserError
from ddp_ladder.plan.plan import Job
from ddp_ladder.records.record import Record
from ddp_ladder.report.centre import CHECKS, Case, Found, case_of, read_centre, terminal_lines
from ddp_ladder.report.centre import judged as judged_centre
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.view import ReportView, make_view
from ddp_ladder.settings.sources import read_sources
from make_records import make_failed_record, make_plan_of, make_record, make_specs, records_by_name, repeated
from make_runs import write_ladder

TODAY = date(2026, 11, 20)
GOOD = {"1x1": 1000.0, "1x4": 3800.0, "2x4": 7200.0, "4x4": 13600.0}
NAMES = ("csc-large", "generic", "lumi")


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
        total = 16 * 10**6
        ranks = tuple(rank.replace(samples=total // spec.gpus) for rank in record.ranks)
        slowest = min(rates.values())
        timing = record.timing.replace(wall_s=startup_s + (wall_s - startup_s) * slowest / rate, startup_s=startup_s)
        records.append(record.replace(ranks=ranks, timing=timing, job=Job(id=job, attempt=1, run_id=record.job.run_id)))
    return records


def view_of(records: Sequence[Record], specs: Sequence[Any] = ()) -> ReportView:
    plan = make_plan_of(tuple(specs) or tuple(record.spec for record in records))
    return make_view(LadderResults(plan, records_by_name(records), {}, ()), TODAY)


def case(records: Sequence[Record], results: Path = Path("nowhere"), **changes: Any) -> Case:
    found = case_of(view_of(records), ())
    assert found is not None
    return replace(found, **changes)


def judged(check: str, of: Case, **parameters: float) -> Found:
    return CHECKS[check][0](of, parameters)


def test_every_shipped_centre_is_read_and_names_known_checks() -> None:
    assert tuple(sorted(file.stem for file in CENTRES.glob("*.toml"))) == NAMES
    for name in NAMES:
        assert read_centre(name).name == name
    assert not any(rule.confirmed for rule in read_centre("lumi").rules)
    used = {rule.check for name in NAMES for rule in read_centre(name).rules}
    assert used == set(CHECKS)


def test_a_good_ladder_meets_the_rules_of_csc(tmp_path: Path) -> None:
    records = records_of(wall_s=6000.0)
    for record in records:
        file = tmp_path / "runs" / record.spec.name / "job.sh"
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/bash\n")
    view = view_of(records)
    busy = tuple(replace(point, gpu_busy_fraction=0.97) for point in view.points)
    view = replace(view, points=busy, results=replace(view.results, directory=tmp_path))
    section = judged_centre(read_centre("csc-large"), view, ["usage/across.svg"])
    verdicts = [(rule.check, found.verdict) for rule, found in section.rules]
    person = ("by a person", "cannot be checked")
    assert [each for each in verdicts if each[1] != "pass"] == [person, person, person]
    assert section.summary == "8 of 11 rules pass, 3 cannot be checked"
    figures = {rule.check: found.figure.replace("\u00a0", " ") for rule, found in section.rules}
    assert figures["node counts"] == "3 node counts: 1, 2, 4"
    assert re.fullmatch(r"2x4 94\.\d % \[.*\], 4x4 8\d\.\d % \[.*\], against 1x4", figures["efficiency by total time"])
    assert figures["batch script"] == "runs/default/weak/4x4/r1/job.sh"
    assert "strong" not in section.judged_on
    assert "read 2026-11" in section.note
    assert "unconfirmed" not in section.note
    table, _ = section.section(with_next=False).blocks
    assert table.headings == ("rule", "asks for", "verdict", "figure")
    assert {len(row) for row in table.rows} == {4}


def test_unconfirmed_rules_are_called_so_wherever_the_result_is_read() -> None:
    section = judged_centre(read_centre("lumi"), view_of(records_of()), ())
    assert section.summary == "0 of 1 rules pass, 1 cannot be checked (unconfirmed: 1 of 1)"
    told = " ".join(" ".join(terminal_lines(section)).split())
    assert "LUMI, runs on the full machine: 0 of 1 rules pass, 1 cannot be checked (unconfirmed: 1 of 1)" in told
    assert told.count("unconfirmed: only an excerpt was seen, so read the rule there.") == 1
    assert section.section(with_next=False).blocks[0].text.endswith("(unconfirmed: 1 of 1).")


IN_WORDS = {3: "three", 0.1: "a tenth", 0.75: "75 %", 60: "a minute", 120: "we take 120 s"}


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_says_each_value_that_it_is_checked_with(name: str) -> None:
    for rule in read_centre(name).rules:
        for value in rule.parameters.values():
            assert IN_WORDS[value] in rule.asks


def test_each_rule_fails_with_a_next_step() -> None:
    slow = {"1x4": 3800.0, "2x4": 5000.0}
    bad = case(records_of(slow, wall_s=40.0, startup_s=10.0, job="local-here-1"))
    for check, parameters, figure, step in (
        ("node counts", {"least": 3}, "2 node counts: 1, 2", "add scales such as 4x4 to stages.stage3.scales; start"),
        ("through Slurm", {}, "not in Slurm: local-here-1", "profiles/slurm"),
        ("run length", {"min_run_s": 120, "max_startup_fraction": 0.1}, "shortest run 33 s (2x4)", "measure.max_steps"),
        ("efficiency by total time", {"min_efficiency": 0.75}, "2x4 6", "ask for at most 1x4"),
        ("efficiency by steps", {"min_efficiency": 0.75}, "2x4 65.8", "ask for at most 1x4"),
        ("GPU utilisation", {}, "not sampled at 1x4, 2x4", "monitor.enabled"),
        ("batch script", {}, "no job.sh of 2x4", "results/runs"),
        ("repeats", {"least": 5}, "runs of each scale: 1x4 3", "set repeats to 5"),
    ):
        found = judged(check, bad, **parameters)
        assert (check, found.verdict) == (check, "fail")
        assert figure in found.figure.replace("\u00a0", " "), found
        assert step in found.next, found


def test_steps_that_scale_in_runs_that_are_too_short_are_told_to_be_longer() -> None:
    short = case(records_of({"1x4": 3800.0, "2x4": 7400.0, "4x4": 14000.0}, wall_s=60.0, startup_s=30.0))
    assert judged("efficiency by steps", short, min_efficiency=0.75).verdict == "pass"
    found = judged("efficiency by total time", short, min_efficiency=0.75)
    assert found.verdict == "fail"
    assert found.next.startswith(
        "at 2x4, 4x4 the steps alone reach it, so start-up and end take too much of a run: train longer: raise"
    )


def test_longer_runs_are_no_advice_for_a_scale_whose_steps_do_not_reach_it() -> None:
    rates = {"1x4": 3692.0, "2x4": 6984.0, "8x4": 19950.0}
    short = case(records_of(rates, modes=["strong"], wall_s=60.0, startup_s=20.0))
    found = judged("efficiency by total time", short, min_efficiency=0.75)
    assert found.next.startswith("the steps of 8x4 do not reach it: ask for at most 2x4, or do what the section")


def test_a_scale_that_is_planned_is_not_to_be_added() -> None:
    records = records_of({"1x4": 3800.0, "2x4": 7400.0})
    more = make_specs(["8x4", "16x4"], device="cuda")
    failed = [make_failed_record(spec) for spec in more if spec.nodes == 8]
    view = view_of([*records, *failed], [*(record.spec for record in records), *more])
    found = case_of(view, ())
    assert found is not None
    assert judged("node counts", found, least=3).next == (
        "8x4, 16x4 planned: see the gates and failed runs in report/index.html; start snakemake again"
    )


def test_a_doubtful_pass_is_called_so() -> None:
    records = records_of({"1x4": 4000.0, "2x4": 6030.0}, startup_s=0.001, repeats=2)
    assert judged("efficiency by steps", case(records), min_efficiency=0.75).verdict == "pass"
    found = judged("efficiency by total time", case(records), min_efficiency=0.75)
    assert found.verdict == "pass"
    assert "the interval of 2x4 goes below 75 %: more repeats tell" in found.figure


def test_other_programs_and_simulated_nodes_do_not_pass() -> None:
    records = [
        record.replace(fingerprint={**record.fingerprint, "num_workers": 0}) if record.spec.nodes == 1 else record
        for record in records_of()
    ]
    found = judged("same input", case(records))
    assert (found.verdict, found.figure) == ("fail", "num_workers differ at 2x4, 4x4")
    assert judged("efficiency by total time", case(records), min_efficiency=0.75).verdict == "cannot be checked"
    here = [record.replace(world=record.world.replace(nodes=("a",) * record.spec.nodes)) for record in records_of()]
    found = judged("through Slurm", case(here))
    assert found.verdict == "fail"
    assert "simulated nodes: 2 agents on 1 host" in found.figure


def test_one_node_alone_compares_with_nothing() -> None:
    one = case(records_of({"1x4": 3800.0}))
    assert judged("efficiency by total time", one, min_efficiency=0.75).verdict == "cannot be checked"
    assert judged("speed-up table", one).verdict == "fail"


def test_a_failed_run_and_unknown_start_up() -> None:
    records = records_of()
    failed = [*records[:-1], make_failed_record(records[-1].spec, next_step="read train.log")]
    found = judged("no failed runs", case(failed))
    assert (found.verdict, found.next) == ("fail", "read train.log")
    unknown = [r.replace(timing=r.timing.replace(startup_s=None)) for r in records if r.timing]
    unknown = [
        r.replace(ranks=tuple(rank.replace(startup_s={**rank.startup_s, "total": None}) for rank in r.ranks))
        for r in unknown
    ]
    found = judged("run length", case(unknown), min_run_s=1, max_startup_fraction=0.1)
    assert (found.verdict, "not recorded" in found.figure) == ("cannot be checked", True)


def test_the_mode_with_more_node_counts_is_judged_and_strong_of_equals() -> None:
    both = case(records_of(modes=["weak", "strong"]))
    assert both.largest.mode == "strong"
    strong = [record for record in records_of(modes=["weak", "strong"]) if record.spec.mode == "weak"]
    assert case(strong).largest.mode == "weak"


def test_nothing_measured_cannot_be_checked() -> None:
    section = judged_centre(read_centre("generic"), view_of([], make_specs(["1x1"])), ())
    assert {found.verdict for _, found in section.rules} == {"cannot be checked"}


def test_an_unknown_centre_is_one_message_with_the_list() -> None:
    with pytest.raises(UserError) as caught:
        read_sources([], {"centre": "csc"})
    assert str(caught.value).splitlines()[:3] == [
        "--config centre: no rules of such a centre",
        "  found    csc",
        f"  allowed  {', '.join(NAMES)}",
    ]
    sources = read_sources([], {"centre": "csc-large", "repeats": 1})
    assert (sources.report_options, sources.overrides) == (["--centre", "csc-large"], {"repeats": 1})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("node counts", "nodes"), "check 'nodes' is none of node counts, same input"),
        (("least", "most"), "the parameters of 'node counts' are least"),
        (("asks = ", "ask = "), "ask"),
    ],
)
def test_a_mistake_in_a_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], told: str
) -> None:
    (tmp_path / "mine.toml").write_text((CENTRES / "generic.toml").read_text().replace(*change))
    monkeypatch.setattr("ddp_ladder.settings.sources.CENTRES", tmp_path)
    with pytest.raises(UserError, match=re.escape(told)):
        read_centre("mine")


def test_the_command_writes_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    for spec in plan.runs:
        (tmp_path / "runs" / spec.name / "job.sh").write_text("#!/bin/bash\n")
    command = ["--results", str(tmp_path), "--centre", "generic"]
    assert report_command.main(command) == 0
    out = capsys.readouterr().out
    assert "centre   What most centres ask for: " in out
    told = " ".join(out.split())
    assert "fail through Slurm: not in Slurm: local-1x1, local-2x1 asked: runs on the machine itself" in told
    assert "next: run it on the centre's machine: snakemake --profile profiles/slurm" in told
    for name in ("index.html", "proposal.md", "proposal.tex"):
        assert "Rules of the centre" in (tmp_path / "report" / name).read_text()


def test_a_later_report_deletes_what_it_does_not_write_and_nothing_of_a_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ladder(tmp_path, scales=["1x1"], repeats=1, variants=["default", "gloo"])
    report = tmp_path / "report"
    assert report_command.main(["--results", str(tmp_path), "--centre", "lumi"]) == 0
    outdated = ["comparison.md", "comparison.csv", "comparison.svg", "comparison.png"]
    assert all((report / name).is_file() for name in outdated)
    assert "deleted" not in capsys.readouterr().out

    pictures = ["usage/usage_gloo_weak_1x1_r1.svg"]
    users = ["mine.zip", "comparison.txt", "comparison_of_results.csv", "usage/usage_mine.png", "usage/mine.svg"]
    for name in (*pictures, *users):
        (report / name).parent.mkdir(exist_ok=True)
        (report / name).write_text("")
    write_ladder(tmp_path, scales=["1x1"], repeats=1)
    assert report_command.main(["--results", str(tmp_path)]) == 0
    said = "deleted  comparison.md, comparison.csv, comparison.svg, comparison.png, usage/usage_gloo_weak_1x1_r1.svg"
    assert said in capsys.readouterr().out
    assert [name for name in (*outdated, *pictures) if (report / name).exists()] == []
    assert [name for name in (*users, "index.html") if not (report / name).exists()] == []


def test_files_hold_source_and_month() -> None:
    for file in CENTRES.glob("*.toml"):
        data = tomllib.loads(file.read_text())
        assert data["source"].startswith(("https://", "docs/")), file
        assert all(isinstance(rule["confirmed"], bool) for rule in data["rules"])
