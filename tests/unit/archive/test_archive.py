"""The archive: the same figures elsewhere, and none of the names and secrets."""

import dataclasses
import json
import os
import shlex
import shutil
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import archive as archive_command
import hypothesis
import pytest
import report as report_command
from ddp_ladder.archive.archive import MANIFEST, Names, make_archive, read_archive, texts_in, unpack, without_names
from ddp_ladder.common.files import OWN, write_json
from ddp_ladder.common.messages import UserError
from ddp_ladder.gates.figures import SCALING_CSV, csv_row
from ddp_ladder.gates.gate import judge, write_verdict
from ddp_ladder.nodes.sampler import machine_directory
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.report.document import csv_text
from ddp_ladder.report.view import LadderResults, read_results
from ddp_ladder.settings.load import OF_NO_SITE
from hypothesis import given
from hypothesis import strategies as st
from make_jobs import make_row, write_job
from make_machine import make_machine
from make_runs import write_ladder

DAY = date(2026, 11, 28)
NAMES = Names(
    users=("asmith", "Anna Smith"),
    homes=("/data/asmith",),
    accounts=("project_465",),
    hosts=("uan07",),
    secrets=("s3cr3t/ä",),
)
HIDDEN = ("smith", "project_465", "uan07", "s3cr3t", "bjones", "example.org")
LOG = (
    "asmith@uan07: /data/asmith/x, /users/bjones/y, ask Anna Smith <anna@example.org>, "
    "--account=project_465 's3cr3t/ä'\n"
)
HOURS = "\nhours: {name: SBU, per_gpu_hour: 2}\n"


def figures(ladder: LadderResults) -> str:
    return csv_text(map(csv_row, ladder.points), SCALING_CSV)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("site") / "results"
    plan = write_ladder(results, scales=("1x1", "1x2"))
    for stage in plan.stages:
        write_verdict(judge(plan, stage, results), results / "gates")
    write_json(results / "witness/default.json", {"places": [{"lines": ["/data/asmith/train.py:12"]}]})
    for job in plan.jobs:
        write_json(
            machine_directory(results, job.scale) / "uan07/machine.json", make_machine("1x1", "uan07").model_dump()
        )
        write_job(results, "4711", scale=str(job.scale), row=make_row(scale=str(job.scale)))
    for spec in plan.runs:
        (results / "runs" / spec.name / "train.log").write_text(LOG)
    return results


@pytest.fixture(scope="module")
def archive(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("elsewhere") / "a.zip"
    file.write_bytes(make_archive(results, OF_NO_SITE.load(), NAMES, DAY))
    return file


def test_the_report_elsewhere_has_the_same_figures(
    results: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report_command.main(["--archive", str(archive)]) == 0
    wanted = read_results(results, read_plan(results / "plan.json"))
    assert (archive.parent / "a/report/scaling.csv").read_text() == figures(wanted)
    assert report_command.main(["--archive", str(archive)]) == 0  # it may be shown again
    other = Path(shutil.copy(archive, tmp_path / "b.zip"))
    (tmp_path / "b").mkdir()
    assert report_command.main(["--archive", str(other)]) == 1
    assert list((tmp_path / "b").iterdir()) == []
    _, shown = read_archive(archive, tmp_path / "again")
    assert shown.gates.keys() == wanted.gates.keys()
    assert [gate.verdict for gate in shown.gates.values()] == [gate.verdict for gate in wanted.gates.values()]
    assert not [warning for warning in shown.warnings if "left out" in warning]


def test_no_member_has_a_name_or_a_secret(archive: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        assert file.namelist() == sorted(file.namelist())
        for name in file.namelist():
            content = name.encode() + file.read(name)
            assert [word for word in HIDDEN if word.encode() in content] == [], name
        log = file.read("runs/default/weak/1x1/r1/train.log").decode()
        readme = file.read("README.md").decode()
        followed = file.read("witness/default.json").decode()
    assert "/train.py:12" in followed
    assert "| `witness` | which batches the script trains on" in readme
    assert log == "user1@login1: /home/user1/x, /users/user3/y, ask user2 <email1>, --account=account '***'\n"
    assert "raw files of ranks and nodes" in readme
    assert not any("/ranks/" in name for name in file.namelist())


def test_a_secret_is_hidden_wherever_it_stands(results: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(results, tmp_path / "results", symlinks=True))
    (copy / "runs/default/weak/1x1/r1/train.log").write_text("logged in with opensesame\n")
    (copy / "runs/default/weak/1x2/r1/train.log").write_text("TRACKER_KEY=tr4ck3r-one\ntr4ck3r-one is old\n")
    settings = OF_NO_SITE.load()
    software = settings.site.software.replace(setup="export TRACKER_TOKEN=opensesame")
    settings = dataclasses.replace(settings, site=settings.site.replace(software=software))
    (tmp_path / "a.zip").write_bytes(make_archive(copy, settings, Names(), DAY))
    with zipfile.ZipFile(tmp_path / "a.zip") as file:
        shown = b"\n".join(file.read(name) for name in file.namelist())
    assert b"opensesame" not in shown
    assert b"tr4ck3r" not in shown


def test_records_that_are_not_believed_are_left_out_and_named(results: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(results, tmp_path / "results", symlinks=True))
    (damaged / "runs/default/weak/1x2/r1/record.json").write_text("{")
    wanted = read_results(damaged, read_plan(damaged / "plan.json"))
    (tmp_path / "a.zip").write_bytes(make_archive(damaged, OF_NO_SITE.load(), NAMES, DAY))
    manifest, shown = read_archive(tmp_path / "a.zip", tmp_path / "there")
    assert (shown.counts, shown.unread) == (wanted.counts, 1)
    assert any("r1/record.json" in line for line in manifest.warnings)


def test_the_same_results_make_the_same_bytes(results: Path, archive: Path) -> None:
    again = archive.with_name("again.zip")
    again.write_bytes(make_archive(results, OF_NO_SITE.load(), NAMES, DAY))
    with zipfile.ZipFile(archive) as first, zipfile.ZipFile(again) as second:
        differing = [name for name in first.namelist() if first.read(name) != second.read(name)]
    assert differing == []
    assert again.read_bytes() == archive.read_bytes()


word = st.from_regex(r"[b-z]{2}[0-9][a-zä'\"$ .-]{0,9}[0-9q]", fullmatch=True)


@hypothesis.settings(deadline=None)
@given(word, word, word, st.from_regex(r"[a-z]{3}[0-9][a-z]{2}", fullmatch=True))
def test_generated_names_never_appear(user: str, account: str, secret: str, other: str) -> None:
    names = Names(users=(user,), homes=(f"/lustre/{user}",), accounts=(account,), secrets=(secret,))
    data = {"env": {user: f"/lustre/{user}/{account}:{secret}"}, "mail": f"{other}@site.org", "home": f"/home/{other}"}
    text = "\n".join(
        (json.dumps(data), f"export A={shlex.quote(secret)} B={shlex.quote(account)}", f"{user}: {account}")
    )
    names = names.with_those_in((*texts_in(data), text))
    for content in without_names(names, {"a.json": data, "b.yaml": data}, {f"{user}.txt": text}).items():
        shown = f"{content[0]}\n{content[1].decode()}"
        for hidden in (user, account, secret, other):
            assert hidden not in shown
            assert json.dumps(hidden)[1:-1] not in shown


def test_the_command_knows_who_archives_and_which_account_pays(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("LOGNAME", "asmith"), ("SLURM_SUBMIT_HOST", "uan07"), ("HOME", "/data/asmith")):
        monkeypatch.setenv(name, value)
    cluster, text = tmp_path / "cluster.yaml", (OWN / "config/sites/local.yaml").read_text()
    cluster.write_text(text.replace("account: null", "account: project_465") + HOURS)
    given = [f"--results={results}", f"--config={OWN / 'config/config.yaml'}", f"--cluster={cluster}"]
    assert archive_command.main([*given, f"--out={tmp_path / 'a.zip'}"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["reading", "looking", "drawing", "drawing", "written", "next"]
    with zipfile.ZipFile(tmp_path / "a.zip") as file:
        assert "account: account" in file.read("settings/cluster.yaml").decode()
        log = file.read("runs/default/weak/1x1/r1/train.log").decode()
        plan = json.loads(file.read("plan.json"))
    assert plan["units"]["hours"]["name"] == "SBU"
    assert not [word for word in ("asmith", "project_465", "uan07", "bjones", "anna@") if word in log]


Change = Callable[[bytes, Path], None]


def rewritten(name: str, content: Callable[[bytes], bytes]) -> Change:
    def change(archive: bytes, file: Path) -> None:
        file.write_bytes(archive)
        with zipfile.ZipFile(file) as old:
            members = {each: old.read(each) for each in old.namelist()}
        members[name] = content(members.get(name, b""))
        with zipfile.ZipFile(file, "w") as new:
            for each, data in members.items():
                new.writestr(each, data)

    return change


def empty_zip(archive: bytes, file: Path) -> None:
    zipfile.ZipFile(file, "w").close()


def newer(manifest: bytes) -> bytes:
    return json.dumps({**json.loads(manifest), "schema_version": 9, "more": 1}).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda archive, file: None, "it cannot be read: No such file"),
        (lambda archive, file: os.mkfifo(file), "it cannot be read: it is no regular file"),
        (lambda archive, file: file.write_text("text"), "no whole zip file"),
        (lambda archive, file: file.write_bytes(archive[: len(archive) // 2]), "no whole zip file"),
        (empty_zip, "a zip without manifest.json"),
        (rewritten("../out", lambda _: b""), "lead out of its directory"),
        (rewritten(MANIFEST, newer), "a newer version wrote this archive"),
        (rewritten("plan.json", lambda _: b"{}"), "it is not as it was made"),
    ],
)
def test_bad_archives_are_named(archive: Path, tmp_path: Path, change: Change, message: str) -> None:
    file = tmp_path / "bad.zip"
    change(archive.read_bytes(), file)
    with pytest.raises(UserError, match=message):
        unpack(file, tmp_path / "there")
    assert not (tmp_path / "there").exists()
    assert not (tmp_path / "out").exists()
