"""Results that earlier commits of this project wrote (tests/data): today's commands show them, or say why not."""

import csv
import io
import shutil
from pathlib import Path

import compare
import pytest
import report as report_command
import watch
from ddp_ladder.common.files import read_json, write_json
from make_records import make_plan_of, make_specs

DATA = Path(__file__).parents[2] / "data"
SCALES = ("1x1", "1x2")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A copy of the results of before preflight, monitoring and accounting, which named no limits of logs and hangs."""
    return Path(shutil.copytree(DATA / "results_before_preflight", tmp_path / "results"))


def in_a_line(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").replace("\\", "").split())


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_the_report_of_old_results_has_their_figures(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {scale: read_json(results / f"runs/default/weak/{scale}/r1/record.json") for scale in SCALES}
    assert not {"usage", "profile"} & {*old["1x1"]}
    assert not {"hang", "monitor", "preflight", "max_log_mb_per_node"} & {*read_json(results / "plan.json")["jobs"][0]}
    assert report_command.main(["--results", str(results), "--centre", "generic"]) == 0
    rates = {scale: record["throughput"]["samples_per_s"] for scale, record in old.items()}
    rows = {f"{row['nodes']}x{row['gpus_per_node']}": row for row in table(results / "report/scaling.csv")}
    assert [*rows] == [*SCALES]
    for scale, rate in rates.items():
        assert float(rows[scale]["samples_per_s"]) == pytest.approx(rate, rel=1e-5)
        assert float(rows[scale]["wall_s"]) == pytest.approx(old[scale]["timing"]["wall_s"], rel=1e-5)
    assert float(rows["1x2"]["efficiency"]) == pytest.approx(rates["1x2"] / 2 / rates["1x1"], rel=1e-5)
    assert [row["status"] for row in table(results / "report/runs.csv")] == ["ok", "ok"]

    printed = in_a_line("".join(capsys.readouterr()))
    proposal = in_a_line((results / "report/proposal.md").read_text())
    page = in_a_line((results / "report/index.html").read_text())
    for text in (printed, proposal, page):
        assert all(f"{rate:,.0f}" in text for rate in rates.values())
        assert text.count("this gate was judged by another version, on other records or thresholds, or edited") == 2
    missing = "No run was sampled, so the use of CPUs, GPUs and memory is not known (monitor.enabled in config.yaml)."
    assert f"2 runs are planned: 2 ok. {missing}" in page
    assert f"2 runs are planned: 2 ok. {missing}" in in_a_line((results / "report/scaling.md").read_text())
    assert "Energy was not measured." in proposal
    assert (results / "report/generic.zip").is_file()


def test_other_commands_read_old_results(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = shutil.copytree(results, tmp_path / "again")
    assert compare.main([str(results), str(again)]) == 0
    assert "default 1.000 times" in in_a_line(capsys.readouterr().out).replace("about ", "")
    assert watch.main(["--results", str(results), "--once"]) == 0
    picture = in_a_line(capsys.readouterr().out)
    assert "stage 2 open" in picture
    assert "1x2 1/1 9,122 83 % finished" in picture


FIRST = DATA / "results_of_the_first_version"


@pytest.mark.parametrize("command", ["report", "compare", "watch"])
def test_a_plan_that_is_too_old_is_one_message_and_the_old_report_stays(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Path(shutil.copytree(FIRST, tmp_path / "results"))
    (results / "report").mkdir()
    (results / "report/index.html").write_text("of that version")
    options = {"report": ["--centre", "generic"], "compare": [], "watch": ["--once"]}[command]
    main = {"report": report_command.main, "compare": compare.main, "watch": watch.main}[command]
    assert main(["--results", str(results), *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[:2] == [
        f"{results / 'plan.json'}: this plan is of another version of ddp-ladder, or was edited",
        "  found    samples_per_step is missing",
    ]
    reads = "is watched with that version" if command == "watch" else "make the report with the version of ddp-ladder"
    assert reads in err
    assert (results / "report/index.html").read_text() == "of that version"


def test_a_record_that_is_too_old_is_left_out_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Path(shutil.copytree(FIRST, tmp_path / "results"))
    write_json(results / "plan.json", make_plan_of(make_specs(["1x1"], repeats=2)).to_json())
    assert report_command.main(["--results", str(results)]) == 0
    out, err = capsys.readouterr()
    assert "2 runs are planned: 1 left out, without a usable record, 1 not run" in out
    record = results / "runs/default/weak/1x1/r1/record.json"
    assert f"{record}: not a record of version 1: spec/samples_per_step is missing; it is left out." in err
    assert "spec/samples_per_step is missing; it is left out" in (results / "report/index.html").read_text()
