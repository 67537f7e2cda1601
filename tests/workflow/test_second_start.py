"""A start on results that are there: what it measures is told by settings and records, not by time stamps or memory.

The results are prepared, so that what is measured is seen in dry runs; the whole table is in
tests/unit/climb/test_to_do.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from make_runs import RATES, edit, write_run
from project_copy import Checkout

DRY_RUN = ("--dry-run", "--printshellcmds")  # with Snakemake's own list of jobs
ALL = ("--cores", "all")
RUN = "default/weak/1x2/r1"


@pytest.fixture(scope="module")
def climbed(module_checkout: Callable[[], Checkout]) -> Checkout:
    """The small experiment at its top: its runs are prepared, its gates judged, and Snakemake knows nothing of it."""
    checkout = module_checkout()
    checkout.configure()
    for spec in checkout.planned.runs:
        write_run(checkout.results, spec, RATES[str(spec.scale)])
    done = checkout.climb("stage1", "stage2", "stage3")
    assert "gate stage3: open" in done.stdout, done.stdout
    return checkout


@pytest.fixture
def checkout(climbed: Checkout, tmp_path: Path) -> Checkout:
    """The same at another path, to be changed: so every test is one of a checkout that was moved, too."""
    shutil.copytree(climbed.path, tmp_path / "moved", symlinks=True)
    return Checkout(tmp_path / "moved")


def change(checkout: Checkout, **changes: Any) -> None:
    """Change keys of config.yaml, and give it a time stamp from before everything else."""
    file = checkout.path / "config/config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}, sort_keys=False))
    os.utime(file, (0, 0))


def all_that_is_no_change_of_a_run(checkout: Checkout) -> None:
    """Another run time and threshold, an edited script, a deleted record, new time stamps."""
    stages = yaml.safe_load((checkout.path / "config/config.yaml").read_text())["stages"]
    stages = {name: {**stage, "runtime": 7} for name, stage in stages.items()}
    stages["stage2"]["gate"]["min_efficiency"] = 0.01
    (checkout.path / "loop.py").open("a").write("#")
    (checkout.results / "runs" / RUN / "record.json").unlink()
    for path in checkout.path.rglob("*"):
        os.utime(path)
    change(checkout, stages=stages)


def test_what_is_no_change_of_a_run_measures_nothing_and_judges_again(checkout: Checkout) -> None:
    record, started = checkout.results / "runs" / RUN / "record.json", checkout.run_times()
    before = record.read_bytes()
    all_that_is_no_change_of_a_run(checkout)
    done = checkout.snakemake("stage3", *ALL)
    assert done.returncode == 0, done.stdout
    assert "nothing to measure" in done.stdout
    assert re.findall(r"^gate (\w+): open", done.stdout, re.MULTILINE) == ["stage1", "stage2", "stage3"]
    assert done.stdout.count("restored from its raw files") == 1
    assert record.read_bytes() == before
    assert len(checkout.run_times()) == len(started)


def test_a_dry_run_counts_what_is_there_already(checkout: Checkout) -> None:
    shutil.rmtree(checkout.results / "runs" / RUN)
    assert checkout.climb("stage1").returncode == 0  # its gate forecasts the stage above
    done = checkout.snakemake("stage3", *DRY_RUN)
    assert done.returncode == 0, done.stdout
    assert measured(done.stdout) == {"1x2"}
    assert "At most 0.17 process hours from here" in done.stdout
    assert "What the scales below let expect:\n  stage2 1x2: at most " in done.stdout


def measured(output: str) -> set[str]:
    """Scales of the jobs that a dry run lists."""
    jobs = re.findall(r"^(?:local)?rule measure_\w+:\n(.*?)\n\[|\Z", output, re.MULTILINE | re.DOTALL)
    return {found[1] for job in jobs if (found := re.search(r"wildcards: scale=(\S+)", job))}


def test_a_report_of_other_settings_says_so_and_job_scripts_are_of_the_settings_of_now(checkout: Checkout) -> None:
    change(checkout, workload={"script": "loop.py", "args": ["{batch_per_gpu}", "--x"], "batch_per_gpu": 16})
    plan = (checkout.results / "plan.json").read_bytes()
    done = checkout.snakemake("report", "--config", "centre=csc-large")
    assert done.returncode == 0, done.stdout
    assert "cannot be checked" in done.stdout
    for text in (done.stdout, (checkout.results / "report/index.html").read_text()):
        assert "the settings have changed since these runs were planned" in text
        assert "3 runs: default/weak/1x1/r1, default/weak/1x2/r1, default/weak/2x1/r1" in text
    assert (checkout.results / "plan.json").read_bytes() == plan
    done = checkout.snakemake("eject")
    assert done.returncode == 0, done.stdout
    assert "--x" in (checkout.results / "runs" / RUN / "job.sh").read_text()
    assert json.loads((checkout.results / "plan.json").read_text())["jobs"][0]["runs"][0]["args"] == ["16", "--x"]


def test_what_makes_finished_runs_be_measured_again_is_said_before_they_are(checkout: Checkout) -> None:
    edit(checkout.results / "runs/default/weak/2x1/r1/run.json", lambda run: run.update(unknown_key=1))
    change(checkout, workload={"script": "loop.py", "args": ["{batch_per_gpu}", "--x"], "batch_per_gpu": 16})
    said = checkout.snakemake("stage3", *DRY_RUN).stdout
    changed = "(default/weak/1x1/r1, default/weak/1x2/r1), changed: args: was {batch_per_gpu}, is {batch_per_gpu} --x."
    words = " ".join(said.split())
    assert f"warning: 2 finished runs will be measured again {changed}" in words
    assert "1 finished run will be measured again (default/weak/2x1/r1), their files cannot be read" in words
    assert "name another directory as `results` in config/config.yaml" in words
    change(checkout, workload={"script": "loop.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": 16})
    assert "changed: " not in checkout.snakemake("stage3", *DRY_RUN).stdout
