"""The ladder end to end on this machine: real Snakemake, torchrun, Gloo and training."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import pandas as pd
import pytest
import yaml
from project_copy import Checkout

ALL = ("--cores", "all")
Climbed = tuple[Checkout, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def shipped(
    module_checkout: Callable[[], Checkout],
) -> Climbed:
    """The shipped experiment, climbed as shipped but with gates that a busy machine passes as well."""
    checkout = module_checkout()
    file = checkout.path / "config/config.yaml"
    config = yaml.safe_load(file.read_text())
    for stage in ("stage2", "stage3"):
        config["stages"][stage]["gate"] = {"min_efficiency": 0.01}
    config["repeats"] = 2
    file.write_text(yaml.safe_dump(config))
    return checkout, checkout.snakemake("--profile", "profiles/local")


class TestShippedExperiment:
    def test_climbs_to_the_top_and_says_what_it_found(self, shipped: Climbed) -> None:
        _, climbed = shipped
        assert climbed.returncode == 0, climbed.stdout
        lines = climbed.stdout.splitlines()
        assert [line for line in lines if line.startswith("gate ")] == [
            "gate stage1: open",
            "gate stage2: open",
            "gate stage3: open",
        ]
        table = [line.split() for line in lines if re.match(r"\dx\d ", line)]
        assert [row[0] for row in table] == ["1x1", "1x2", "2x1"]
        assert "results/report/index.html" in climbed.stdout

    def test_learns_the_digits_at_every_scale(self, shipped: Climbed) -> None:
        checkout, _ = shipped
        logs = list(checkout.results.glob("runs/*/*/*/r*/train.log"))
        assert len(logs) == 6
        for log in logs:
            *_, last = re.findall(r"held-out accuracy ([\d.]+) %", log.read_text())
            assert float(last) > 95, log

    def test_leaves_a_job_script_beside_each_run(self, shipped: Climbed) -> None:
        checkout, _ = shipped
        runs = [file.parent for file in checkout.results.glob("runs/*/*/*/r*/run.json")]
        assert len(runs) == 6
        for run in runs:
            assert os.access(run / "job.sh", os.X_OK)

    def test_counts_samples_and_not_padding(self, shipped: Climbed) -> None:
        """1,437 digits: two ranks draw 719 each, one of them a repetition."""
        checkout, _ = shipped
        args = checkout.record("default/weak/1x1/r1")["spec"]["args"]
        epochs = int(args[args.index("--epochs") + 1])
        for scale, padding in (("1x1", 0), ("1x2", 1), ("2x1", 1)):
            ranks = checkout.record(f"default/weak/{scale}/r1")["ranks"]
            assert sum(rank["samples"] for rank in ranks) == 1437 * epochs
            assert sum(rank["padding_samples"] for rank in ranks) == padding * epochs

    def test_stage_3_is_two_agents_that_met(self, shipped: Climbed) -> None:
        checkout, _ = shipped
        run = checkout.results / "runs/default/weak/2x1/r1"
        nodes = [json.loads((run / f"nodes/node{k}.json").read_text()) for k in range(2)]
        assert all("--nnodes=2" in node["argv"] for node in nodes)
        record = checkout.record("default/weak/2x1/r1")
        assert record["world"]["size"] == 2
        assert record["world"]["backend"] == "gloo"
        assert {rank["local_rank"] for rank in record["ranks"]} == {0}
        assert len({rank["parameters"]["checksum"] for rank in record["ranks"]}) == 1

    def test_every_job_and_attempt_met_elsewhere(self, shipped: Climbed) -> None:
        checkout, _ = shipped
        meetings = [
            json.loads(file.read_text())["rendezvous"] for file in checkout.results.glob("runs/*/*/*/r*/run.json")
        ]
        assert len({meeting["id"] for meeting in meetings}) == len(meetings)

    def test_evidence_holds_the_numbers(self, shipped: Climbed) -> None:
        checkout, _ = shipped
        gate = json.loads((checkout.results / "gates/stage3.json").read_text())
        point = next(p for p in gate["points"] if p["stage"] == "stage3")
        table = pd.read_csv(checkout.results / "report/scaling.csv")
        row = table[table["stage"] == "stage3"].iloc[0]
        assert row["efficiency"] == pytest.approx(point["efficiency"], rel=1e-4)
        one, two = (table[table["stage"] == s].iloc[0]["samples_per_s"] for s in ("stage1", "stage3"))
        assert row["efficiency"] == pytest.approx(two / one / 2, rel=1e-4)

    def test_a_second_time_does_nothing_and_says_so(self, shipped: Climbed) -> None:
        checkout, _ = shipped
        before = checkout.run_times()
        again = checkout.snakemake(*ALL)
        assert again.returncode == 0
        assert "Nothing to be done" in again.stdout
        assert checkout.run_times() == before
        assert "Nothing to be done" in checkout.snakemake("--profile", "profiles/local").stdout

    def test_only_a_deleted_run_is_repeated(self, shipped: Climbed) -> None:
        checkout, _ = shipped
        before = checkout.run_times()
        shutil.rmtree(checkout.results / "runs/default/weak/1x1/r2")
        again = checkout.snakemake(*ALL)
        assert again.returncode == 0, again.stdout
        after = checkout.run_times()
        assert {run for run in after if after[run] != before[run]} == {"default/weak/1x1/r2"}
        # The baseline is part of every judgement.
        judged = re.findall(r"^gate stage(\d): open", again.stdout, re.MULTILINE)
        assert judged == ["1", "2", "3"]
        assert "finished earlier, kept" in again.stdout
        assert "Nothing to be done" in checkout.snakemake(*ALL).stdout

    def test_leaves_no_process(self, shipped: Climbed) -> None:
        assert shipped[0].processes() == []


def test_closed_gate_leaves_nothing_of_the_next_stage(checkout: Checkout) -> None:
    config = yaml.safe_load((checkout.path / "config/config.yaml").read_text())
    config["stages"]["stage2"]["gate"] = {"min_samples_per_s": 10**12}
    (checkout.path / "config/config.yaml").write_text(yaml.safe_dump(config))
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode != 0
    assert "Traceback" not in climbed.stdout
    assert not list(checkout.results.rglob("*2x1*"))
    assert not (checkout.results / "gates/stage2.json").exists()
    assert json.loads((checkout.results / "gates/stage2.closed.json").read_text())["verdict"] == "closed"
    assert checkout.processes() == []
    box = climbed.stdout[climbed.stdout.rindex("| verdict") :]
    for label in ("measured", "wanted", "next"):
        assert f"| {label}" in box
    assert "stages.stage2.gate.min_samples_per_s" in box
    assert "Stopped at the gate of stage 2" in (checkout.results / "report/index.html").read_text()

    # The threshold is the only thing in the way: lowering it judges again, and measures nothing again.
    before = checkout.run_times()
    config["stages"]["stage2"]["gate"] = {}
    (checkout.path / "config/config.yaml").write_text(yaml.safe_dump(config))
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode == 0, climbed.stdout
    after = checkout.run_times()
    assert {run for run in after if after[run] != before.get(run)} == {"default/weak/2x1/r1"}
    assert not (checkout.results / "gates/stage2.closed.json").exists()


@pytest.mark.parametrize("everyone", [True, False], ids=["Ctrl-C", "only Snakemake"])
def test_sigint_in_stage_2_then_rerun_continues(checkout: Checkout, everyone: bool) -> None:
    """Ctrl-C in a terminal reaches the whole process group; kill -INT reaches Snakemake alone."""
    checkout.configure(repeats=2)
    climbing = checkout.start("--profile", "profiles/local")
    assert climbing.stdout is not None
    for line in climbing.stdout:
        if re.match(r"stage2 1x2 \[2/2\].*started", line):
            break
    if everyone:
        os.killpg(climbing.pid, signal.SIGINT)
    else:
        climbing.send_signal(signal.SIGINT)
    climbing.communicate(timeout=120)
    assert climbing.returncode != 0
    assert checkout.processes() == []
    before = checkout.run_times()
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode == 0, climbed.stdout
    after = checkout.run_times()
    repeated = {run for run in before if after[run] != before[run]}
    assert repeated == {"default/weak/1x2/r2"}
    assert "Nothing to be done" in checkout.snakemake(*ALL).stdout


def test_a_failing_variant_does_not_stop_the_others_and_is_tried_again(checkout: Checkout) -> None:
    checkout.configure(
        variants={
            "broken": {"args": ["--crash"]},
            "lost": {"network": {"interface": "no-such0"}},
            "default": {},
            "srun": {"launcher": "srun"},
        },
        repeats=2,
    )
    loop = checkout.path / "loop.py"
    whole = loop.read_text()
    crash = 'if "--crash" in sys.argv: raise ValueError("this variant is broken")\n'
    loop.write_text(whole.replace("torch.manual_seed", crash + "torch.manual_seed"))
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage1: open (without broken, lost: see the report)" in climbed.stdout
    assert "no interface no-such0" in checkout.record("lost/weak/1x1/r1")["failure"]["why"]
    failure = checkout.record("broken/weak/1x1/r1")["failure"]
    assert failure["verdict"] == "the script raised an exception"
    assert failure["why"] == "rank 0: ValueError: this variant is broken"
    # Neither the repeat nor the next stages of a broken variant are worth the GPU hours.
    for run in ("broken/weak/1x1/r2", "broken/weak/1x2/r1", "broken/weak/2x1/r1"):
        assert checkout.record(run)["failure"]["verdict"] == "not run"
    for run in ("default/weak/2x1/r2", "srun/weak/2x1/r2"):
        assert checkout.record(run)["status"] == "ok"

    before = checkout.run_times()
    loop.write_text(whole)
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode == 0, climbed.stdout
    after = checkout.run_times()
    assert {run.split("/")[0] for run in after if after[run] != before.get(run)} == {"broken"}
    assert checkout.record("broken/weak/1x1/r2")["status"] == "ok"
    assert (checkout.results / "runs/broken/weak/1x1/r1/attempts/1/ranks/rank0.json").exists()


def test_variants_modes_and_repeats_interleave_and_scales_never_overlap(checkout: Checkout) -> None:
    checkout.configure(
        variants={"default": {}, "b": {"env": {"OMP_NUM_THREADS": 2}}},
        modes=["weak", "strong"],
        stages={
            "stage1": {"scales": ["1x1"], "runtime": 5},
            "stage3": {"scales": ["2x1", "2x2"], "runtime": 5},
        },
        measure={"warmup_steps": 1, "min_steps": 2, "max_steps": 10},
    )
    climbed = checkout.snakemake("--cores", "8")
    assert climbed.returncode == 0, climbed.stdout
    spans = []
    for file in checkout.results.glob("runs/*/*/*/r*/ended.json"):
        ended = json.loads(file.read_text())
        spans.append((ended["started_at_s"], ended["ended_at_s"], file.parts[-5:-1]))
    spans.sort()
    assert len(spans) == 3 * 4
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert [span[2][:2] for span in spans[:4]] == [
        ("default", "weak"),
        ("b", "weak"),
        ("default", "strong"),
        ("b", "strong"),
    ]
    strong = checkout.record("default/strong/2x2/r1")["spec"]
    assert (strong["batch_per_gpu"], strong["global_batch"]) == (4, 16)
    assert checkout.record("b/weak/1x1/r1")["fingerprint"]["threads"] == 2


def test_a_site_with_one_gpu_per_node_has_no_stage_2(checkout: Checkout) -> None:
    checkout.site(node={"gpus": 1, "device": "cpu", "cpus": 1})
    stages = {
        "stage1": {"scales": ["1x1"], "runtime": 5},
        "stage3": {"scales": ["2x1"], "runtime": 5},
    }
    checkout.configure(stages=stages)
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode == 0, climbed.stdout
    assert sorted(path.name for path in (checkout.results / "gates").iterdir()) == [
        "stage1.json",
        "stage3.json",
    ]
    asked = checkout.snakemake("stage2", *ALL)
    assert asked.returncode != 0
    assert "config/config.yaml: stages.stage2: this experiment has no stage2" in asked.stdout
    assert "Traceback" not in asked.stdout


def test_data_preparation_runs_once_and_its_failure_is_told(checkout: Checkout) -> None:
    prepare = checkout.path / "prepare.py"
    prepare.write_text("import sys; sys.exit('no room for the data')")
    workload = {
        "script": "loop.py",
        "args": ["{batch_per_gpu}"],
        "batch_per_gpu": 16,
        "data_dir": "data/mine",
        "prepare": ["prepare.py", "{data_dir}"],
    }
    checkout.configure(workload=workload)
    failed = checkout.snakemake("stage1", "--profile", "profiles/local")
    assert failed.returncode != 0
    assert "results/logs/prepare_data.log" in failed.stdout
    assert "no room for the data" in (checkout.results / "logs/prepare_data.log").read_text()
    assert not (checkout.results / "runs").exists()
    prepare.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "path.mkdir(parents=True, exist_ok=True)\n"
        "(path / 'written').open('x').write('once')\n"
    )
    for _ in range(2):  # a second preparation would find the file
        done = checkout.snakemake("stage1", *ALL)
        assert done.returncode == 0, done.stdout
    assert (checkout.path / "data/mine/written").read_text() == "once"


def test_time_limit_closes_the_gate(checkout: Checkout) -> None:
    """The job's own limit, without Slurm: a hanging script is ended, and every run has a record."""
    (checkout.path / "hang.py").write_text("import threading; threading.Event().wait()")
    plan = ("plan", "--cores", "1")
    checkout.configure(workload={"script": "hang.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": 1})
    assert checkout.snakemake(*plan).returncode == 0
    code = (
        "import sys, time; sys.path.insert(0, 'workflow/scripts')\n"
        "from pathlib import Path\n"
        "from ddp_ladder import job, nodes; from ddp_ladder.plan_file import read_plan\n"
        "from ddp_ladder.progress import Console\n"
        "scale = read_plan(Path('results/plan.json')).jobs[0]\n"
        "here, ends_s = nodes.ThisMachine('test'), time.monotonic() + 6\n"
        "job.run_scale(job.Context('local', scale, Path('results'), here, ends_s, Console(1)), {})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout.path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    failure = checkout.record("default/weak/1x1/r1")["failure"]
    assert failure["verdict"] == "time limit"
    assert "stages.stage1.runtime" in failure["next"]
    assert checkout.processes() == []
