"""A user's mistake, seen from the terminal: one message, a non-zero exit, no traceback, and nothing was started."""

from __future__ import annotations

import pytest
from project_copy import EXPERIMENT, NO_TORCH, Checkout

# One in each file, the unit tests of settings have the rest: (file, text, what replaces it, what the message says).
MISTAKES = {
    "unknown key": ("config", "repeats: 1", "repeat: 1", 'did you mean "repeats"?'),
    "not in the format": ("cluster", "site: local", "site: my laptop", "letters, digits and . _ -"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_before_anything_starts(checkout: Checkout, mistake: str) -> None:
    name, old, new, message = MISTAKES[mistake]
    file = checkout.path / f"config/{name}.yaml"
    before = file.read_text()
    assert old in before
    file.write_text(before.replace(old, new, 1))
    done = checkout.snakemake(*(("--cores", "all") if name == "config" else ("stage2", "--dry-run")))
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert message in done.stdout
    assert f"config/{name}.yaml" in done.stdout
    assert "  next     " in done.stdout
    assert not checkout.results.exists()


def test_an_experiment_that_cannot_be_read_is_named(checkout: Checkout) -> None:
    (checkout.path / "tab.yaml").write_text("workload:\n\tscript: a.py\n")
    said = checkout.snakemake("--dry-run", "--config", "experiment=tab.yaml")
    assert said.returncode != 0
    assert "tab.yaml, line 2, column 1: not YAML: a tab" in said.stdout
    assert "  next     " in said.stdout
    assert "Traceback" not in said.stdout


def test_another_experiment_and_another_site(checkout: Checkout) -> None:
    """An experiment is one file: nothing of config/config.yaml is left in it."""
    other = checkout.path / "mine.yaml"
    other.write_text(
        "results: elsewhere\nworkload: {script: loop.py, args: [8], batch_per_gpu: 8}\nstages: {stage1: {}}\n"
    )
    site = checkout.path / "site.yaml"
    site.write_text("site: mine\nnode: {gpus: 1, device: cpu, cpus: 1}\n")
    planned = checkout.snakemake("--dry-run", "-p", "--config", "experiment=mine.yaml", "cluster=site.yaml")
    assert planned.returncode == 0, planned.stdout
    assert "The plan for site mine:" in planned.stdout
    assert "elsewhere/gates/stage1.json" in planned.stdout
    assert "stage2" not in planned.stdout


def test_data_that_are_missing_are_reported_before_any_job(checkout: Checkout) -> None:
    """And the advice works; a dry run shows the plan all the same: its data may be on another machine."""
    script = "import os; os.listdir('data/mine')\n" + NO_TORCH
    workload = {**EXPERIMENT["workload"], "data_dir": "data/mine"}
    checkout.configure(workload=workload, stages={"stage1": {"scales": ["1x1"], "runtime": 5}})
    checkout.without_torch(script)
    missing = "config/config.yaml: workload.data_dir: the training data are missing\n"
    planned = checkout.snakemake("--dry-run")
    assert planned.returncode == 0, planned.stdout
    assert f"warning: {missing}" in planned.stdout
    assert "\nstage1  1x1 " in planned.stdout
    refused = checkout.snakemake("stage1", "--profile", "profiles/local")
    assert (refused.returncode, missing in refused.stdout) == (1, True), refused.stdout
    assert refused.stdout.splitlines()[-1].startswith("  next     correct the path, or name in `workload.prepare`")
    assert "Traceback" not in refused.stdout
    assert not (checkout.results / "runs").exists()

    (checkout.path / "data/mine").mkdir(parents=True)
    climbed = checkout.snakemake("stage1", "--profile", "profiles/local")
    assert climbed.returncode == 0, climbed.stdout


def test_a_variable_that_nothing_reads_is_a_warning(checkout: Checkout) -> None:
    checkout.configure(variants={"default": {"env": {"NCCL_SOCKET_IFNAM": "eth0"}}})
    planned = checkout.snakemake("stage1", "--dry-run")
    assert planned.returncode == 0
    assert planned.stdout.count("variants.default.env.NCCL_SOCKET_IFNAM: ") == 1
    assert '  next     did you mean "NCCL_SOCKET_IFNAME"?' in planned.stdout
