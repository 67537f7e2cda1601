"""The scripts of docs/scripts, as they are: a rehearsal, or a chain here with its final report."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from ddp_ladder.common.files import read_json
from ddp_ladder.production.chain import STOP_FILE
from one_run import Here
from project_copy import ROOT, Checkout, environment, last_box

# At its 18th step a start gets the signal, on one rank, once a file "asked" is there if it is to "stop"; or it stands
# still at its 70th until it is killed.
CUTS = """
import os, pathlib, signal, time
from torch.optim.optimizer import register_optimizer_step_post_hook
how_file, own_steps = pathlib.Path(__file__).with_name("how"), 0
how, _, following = how_file.read_text().partition(" ")
def cut(*_):
    global own_steps
    own_steps += 1
    if how in ("signal", "stop") and own_steps == 18 and os.environ["RANK"] == "1":
        how_file.write_text(following)
        while how == "stop" and not how_file.with_name("asked").exists():
            how_file.with_name("trains").touch()
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)
    while how == "wait" and own_steps == 70:
        how_file.with_name("waits").touch()
        time.sleep(0.05)
register_optimizer_step_post_hook(cut)
"""


SCRIPTS = {file.stem: file.read_text() for file in sorted((ROOT / "docs/scripts").glob("*.py"))}


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {"plain_torch"}))  # of which the test below is a chain
def test_a_script_passes_the_rehearsal(here: Here, name: str) -> None:
    (here.path / "how").write_text("signal signal")
    saved = here.path / "saved"
    saved.mkdir()
    found, *others = here.rehearsed(CUTS + SCRIPTS[name], str(saved), "1000", launcher="torchrun")
    assert found.severity == "note", (found, *others)
    assert "goes on where the first one ended" in found.measured


def test_a_chain_with_a_kill_ends_with_the_parameters_of_an_uninterrupted_training(checkout: Checkout) -> None:
    script = SCRIPTS["plain_torch"]
    (checkout.path / "whole.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    uninterrupted = [*torchrun, "whole.py", ".", "3"]
    subprocess.run(uninterrupted, cwd=checkout.path, env=environment(), check=True, stdout=subprocess.DEVNULL)
    production = {"scale": "1x2", "args": ["{run_dir}", "3"], "runtime": 10, "up_to_hours": 2.0}
    told = {"command": ["sh", "-c", 'echo "$0" >>told', "{subject}"]}
    checkout.configure(production={**production, "unproven": True, "unrehearsed": True}, notify=told)
    (checkout.path / "loop.py").write_text(CUTS + script)
    (checkout.path / "how").write_text("stop wait")
    without = checkout.snakemake("final_report")
    assert without.returncode != 0
    assert without.stdout.count("there is no chain of jobs here") == 1, without.stdout
    typed = ("production", "--profile", "profiles/local")
    chain, output = checkout.results / "production", checkout.path / "output"
    for sign in (checkout.path / "trains", checkout.path / "waits"):
        with output.open("w") as file:
            start = checkout.start(*typed, output=file)
        until_s = time.monotonic() + 200
        while not sign.exists():
            assert start.poll() is None, output.read_text()
            assert time.monotonic() < until_s, output.read_text()
            time.sleep(0.1)
        if sign.name == "waits":
            start.kill()
            start.wait()
        else:
            (chain / STOP_FILE).touch()
            (checkout.path / "asked").touch()
            assert start.wait(200) == 1
            assert last_box(output.read_text())["verdict"] == "stopped as asked"
    (checkout.path / "how").write_text("")
    done = checkout.snakemake(*typed)
    assert done.returncode == 0, done.stdout
    assert last_box(done.stdout)["verdict"] == "the training is complete"
    links = json.loads((checkout.results / "production/links.json").read_text())["links"]
    assert [link["end"] for link in links] == ["saved", "failed", "complete"]
    assert [link["steps"] for link in links][::2] == [20, 3 * 64 - 64]
    reached = torch.load(checkout.results / "production/runs/default/weak/1x2/r1/state.pt")
    wanted = torch.load(checkout.path / "state.pt")
    assert reached["done"] == wanted["done"] == 3 * 64
    for name, parameter in wanted["model"].items():
        assert torch.equal(reached["model"][name], parameter), name
    done = checkout.snakemake("final_report")
    assert done.returncode == 0, done.stdout
    assert "The training is complete: 3 links used " in done.stdout, done.stdout
    check_final_report(checkout.results / "production")
    ends = (checkout.path / "told").read_text().splitlines()
    assert [line.rpartition("production: ")[2] for line in ends] == ["stopped as asked", "the training is complete"]


def check_final_report(chain: Path) -> None:
    """Compare the figures of the links that ended in order, the first and the last one, with sums over their files."""
    jobs = sorted(map(read_json, chain.glob("jobs/1x2/*.json")), key=lambda job: job["begun_at_s"])[::2]
    run = chain / "runs/default/weak/1x2/r1"
    packed = [zipfile.ZipFile(path / "nodes/node0.zip") for path in (run / "attempts/1", run)]
    ranks = [json.loads(files.read("ranks/rank0.json")) for files in packed]
    rows = {row["link"]: row for row in csv.DictReader((chain / "final_report.csv").open())}
    links = [rows["1"], rows["3"]]
    assert [rows[number]["end"] for number in "123"] == ["saved", "failed", "complete"]
    held_s = [job["ended_at_s"] - job["begun_at_s"] for job in jobs]
    assert [float(row["gpu_hours"]) for row in links] == pytest.approx([2 * s / 3600 for s in held_s], rel=1e-4)
    assert [float(row["samples_kept"]) for row in links] == [20 * 2 * 8, 128 * 2 * 8]
    assert [int(row["saves"]) for row in links] == [len(rank["phases"]["saves_s"]) for rank in ranks] == [1, 2]
    saves_s = [sum(end - begin for begin, end in rank["phases"]["saves_s"]) for rank in ranks]
    assert [float(row["checkpoints_s"]) for row in links] == pytest.approx(saves_s, abs=0.01)
    for files, row in zip(packed, links, strict=True):
        training_s = [json.loads(files.read(f"ranks/rank{rank}.json"))["training_s"] for rank in range(2)]
        assert 0 < float(row["training_s"]) <= max(training_s)
    parts = ("training_s", "checkpoints_s", "start_up_s", "preflight_s", "made_again_s", "rest_s")
    for row in rows.values():
        if row["link"] != "planned":
            assert sum(float(row[part]) for part in parts) == pytest.approx(float(row["elapsed_s"]), rel=1e-4)
    text = (chain / "final_report.md").read_text()
    assert "none was seen in " in text  # a person killed the start
    assert "process hours" in text
    assert "saved its state after 20 steps (exit code 75)" in (chain / "final_report.html").read_text()
