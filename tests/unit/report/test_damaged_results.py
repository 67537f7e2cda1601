"""The report of results with missing and damaged files: it says what is missing, where, and what to do."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import report as report_command
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory, read_bytes, touched_s, write_json
from ddp_ladder.diagnosis.signatures import read_lines
from ddp_ladder.gates.gate import judge, write_verdict
from ddp_ladder.nodes.sampler import machine_directory
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.report.view import LadderResults, read_results
from ddp_ladder_instrument.contract import RUN_VARIABLE
from ddp_ladder_instrument.files import MOST_BYTES, RunSettingsError, read_run_settings
from ddp_ladder_instrument.progress import read_metrics
from make_jobs import make_row, write_job
from make_machine import make_machine
from make_preflight import write_preflight
from make_runs import edit, reassemble, write_ladder
from make_sampled_runs import sample_nodes

RUN = "runs/default/weak/1x2/r1"
Damage = Callable[[Path], object]
FILES = ("index.html", "scaling.md", "scaling.csv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a ladder that went well: 12 runs, with everything that a climb leaves."""
    results = tmp_path_factory.mktemp("whole") / "results"
    plan = write_ladder(results, repeats=2, variants=("default", "gloo"))
    sample_nodes(RunDirectory(results / RUN))
    for job in plan.jobs:
        machine = make_machine(str(job.scale), "node0")
        write_json(machine_directory(results, job.scale) / "node0/machine.json", machine.model_dump())
        if job.scale.world_size > 1:
            write_preflight(results, job)
    for stage in plan.stages:
        write_verdict(judge(plan, stage, results), results / "gates")
    for job in plan.jobs:
        write_job(results, "4711", scale=str(job.scale), row=make_row(scale=str(job.scale)))
    return results


@pytest.fixture
def results(whole: Path, tmp_path: Path) -> Path:
    """A copy of the results, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "results", symlinks=True))


def read(results: Path) -> LadderResults:
    return read_results(results, read_plan(results / "plan.json"))


def newer(path: str) -> Damage:
    return lambda results: edit(results / path, lambda data: data.update(schema_version=4))


def write(path: str, content: bytes) -> Damage:
    def damage(results: Path) -> None:
        (results / path).parent.mkdir(parents=True, exist_ok=True)
        (results / path).write_bytes(content)

    return damage


def remove(*paths: str) -> Damage:
    def damage(results: Path) -> None:
        for path in paths:
            shutil.rmtree(results / path) if (results / path).is_dir() else (results / path).unlink()

    return damage


def directory(path: str) -> Damage:
    """A directory in the place of a file: unreadable also for root."""

    def damage(results: Path) -> None:
        (results / path).unlink(missing_ok=True)
        (results / path).mkdir(parents=True)

    return damage


def pipe(path: str) -> Damage:
    def damage(results: Path) -> None:
        (results / path).unlink()
        os.mkfifo(results / path)

    return damage


def text(path: str, old: str, new: str) -> Damage:
    return lambda results: (results / path).write_text((results / path).read_text().replace(old, new))


LEFT_OUT: dict[str, tuple[Damage, str]] = {
    "record: empty": (write(f"{RUN}/record.json", b""), "not JSON"),
    "record: NaN": (text(f"{RUN}/record.json", '"samples_per_s": ', '"samples_per_s": NaN, "x": '), "NaN is not a"),
    "record: newer": (newer(f"{RUN}/record.json"), "schema_version: 4, not 3: another version of ddp-ladder wrote"),
    "record: directory": (directory(f"{RUN}/record.json"), "it is no regular file"),
    "record: pipe": (pipe(f"{RUN}/record.json"), "it is no regular file"),
    "rank: pipe": (pipe(f"{RUN}/ranks/rank0.json"), "ranks/rank0.json"),
    "record: alone": (
        remove(f"{RUN}/run.json", f"{RUN}/ranks", f"{RUN}/ended.json"),
        "(run.json is missing: if this is a copy, copy all files below runs/)",
    ),
    "rank: missing": (remove(f"{RUN}/ranks/rank1.json"), "ranks/rank1.json is missing"),
    "rank: other steps": (write(f"{RUN}/ranks/rank0.steps", b"\0"), "ranks/rank0.steps has changed"),
}
"""Damage to one of twelve runs, and what is said of it."""


@pytest.mark.parametrize(("damage", "why"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_run_whose_record_cannot_be_used_is_named(results: Path, damage: Damage, why: str) -> None:
    damage(results)
    found = read(results)
    (warning,) = (each for each in found.warnings if each.startswith(str(results / RUN)))
    assert why in warning
    assert "left out. Next: start snakemake again" in warning
    assert found.counts == "12 runs are planned: 11 ok, 1 left out, without a usable record"
    assert len(found.records) == 11


# The whole command


def reported(results: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Write the report; return what it prints, and the page with the Markdown."""
    assert report_command.main(["--results", str(results)]) == 0
    assert all((results / "report" / name).is_file() for name in FILES)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    page = "".join((results / "report" / name).read_text() for name in FILES)
    assert f"{read(results).counts}." in page
    return out + err, page


def test_everything_damaged_at_once(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("machine/1x2/node0/machine.json", "forecast/stage2.json", "jobs/1x2/77.json", "gates/stage2.json"):
        write(path, b"{")(results)
    write("preflight/1x2.json", b"{")(results)
    LEFT_OUT["record: NaN"][0](results)
    remove("runs/gloo/weak/1x2/r1/record.json", "runs/gloo/weak/1x2/r1/run.json", "runs/gloo/weak/2x1")(results)
    write("runs/a\nb\x1b[31m<b>/weak/1x1/r1/record.json", b"{}")(results)
    printed, page = reported(results, capsys)
    counted = "8 ok, 1 left out, without a usable record, 1 begun, without a record, 2 not run"
    assert f"12 runs are planned: {counted}." in page
    assert f"12 runs are planned: {counted}\n" in printed
    for path in ("preflight/1x2.json", RUN):
        assert path in printed
        assert path in page
    assert "1 run begun, without a record: gloo/weak/1x2/r1" in page
    assert "runs that the plan does not have are left out" in page
    assert "\x1b" not in printed + page
    assert "<b>/weak" not in page
    assert report_command.main(["--summary", "--plan", str(results / "plan.json")]) == 0
    assert "record.json" in "".join(capsys.readouterr())


def fail(spec_name: str) -> Damage:
    def damage(results: Path) -> None:
        run = RunDirectory(results / "runs" / spec_name)
        edit(run.ranks / "rank0.json", lambda end: end.update(exit_code=1, exception="RuntimeError: no"))
        reassemble(run)

    return damage


STATES: dict[str, tuple[Damage, str]] = {
    "plan alone": (remove("runs", "gates", "preflight", "machine", "jobs"), "12 runs are planned: 12 not run"),
    "a variant that failed everywhere": (
        lambda results: [fail(f"gloo/weak/{s}/r{k}")(results) for s in ("1x1", "1x2", "2x1") for k in (1, 2)],
        "12 runs are planned: 6 ok, 6 failed",
    ),
    "no run can be read": (
        lambda results: [remove("runs")(results), write("runs", b"")(results)],
        "12 runs are planned: 12 left out, without a usable record",
    ),
}


@pytest.mark.parametrize(("damage", "counts"), STATES.values(), ids=STATES)
def test_every_planned_run_is_counted(
    results: Path, damage: Damage, counts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(results)
    assert read(results).counts == counts
    _, page = reported(results, capsys)
    assert f"{counts}." in page


PLANS: dict[str, Damage] = {
    "none": remove("plan.json"),
    "newer": newer("plan.json"),
    "cut": write("plan.json", b'{"schema_version": 1, "si'),
}


@pytest.mark.parametrize("damage", PLANS.values(), ids=PLANS)
def test_without_a_plan_there_is_one_message(results: Path, damage: Damage, capsys: pytest.CaptureFixture[str]) -> None:
    damage(results)
    assert report_command.main(["--results", str(results)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{results / 'plan.json'}: ")
    assert "next" in err


def test_a_report_reads_all_raw_files_and_says_so(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plan = results / RUN / "ranks/rank0.steps", read_plan(results / "plan.json")
    for path in (results / RUN).rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    runs = RunRecords(results)
    assert all(runs.is_believed(spec) for spec in plan.runs)
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    os.utime(file, (1_700_000_000, 1_700_000_000))
    spec = next(spec for spec in plan.runs if RUN.endswith(spec.name))
    assert RunRecords(results).is_believed(spec)  # by its size, time and inode
    assert report_command.main(["--results", str(results)]) == 0
    printed = capsys.readouterr().out
    assert "ranks/rank0.steps has changed" in (results / "report/index.html").read_text()
    assert f"checked  {len(plan.runs) - 1} runs: the raw files were read" in printed


def put(path: Path, kind: str) -> None:
    """Put a pipe, a socket or a file that is too large in the place of a file."""
    path.unlink()
    if kind == "large":
        path.touch()
        os.truncate(path, MOST_BYTES + 1)
    else:
        os.mknod(path, 0o600 | (stat.S_IFIFO if kind == "pipe" else stat.S_IFSOCK))


@pytest.mark.parametrize("kind", ["pipe", "socket", "large"])
def test_what_is_no_file_or_too_large_is_not_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "file").touch()
    put(path, kind)
    why = {"pipe": "it is no regular file", "socket": "No such device", "large": "it has more than"}[kind]
    with pytest.raises(OSError, match=f"{why}.*{path}"):
        read_bytes(path)
    with pytest.raises(OSError, match=f"{why}.*{path}"):
        read_metrics(path)
    monkeypatch.setenv(RUN_VARIABLE, str(path))
    with pytest.raises(RunSettingsError, match=f"cannot read {path}: {why}"):
        read_run_settings()
    if kind != "large":  # of a long log, parts are read
        with pytest.raises(OSError, match=why):
            touched_s(path)
        assert read_lines(path) == ()
