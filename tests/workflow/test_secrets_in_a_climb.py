"""Secrets of the settings: the script gets them, and nothing that is written or printed has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from project_copy import NO_TORCH, Checkout, environment, last_box

TOKEN, PASSWORD, OTHER = "dGhlIHJlYWwgb25l", "pa{ss'wo$rd", "only-for-one-variant"
MARKER = "(secret from the environment)"
SCRIPT = f"""{NO_TORCH}
import hashlib
run = os.environ["DDP_LADDER_RUN"]
variant = run.split("/runs/")[1].split("/")[0]
known = {{name: os.environ.get(name) for name in ("SITE_TOKEN", "DB_PASSWORD", "ONE_KEY")}}
expected = dict({{"SITE_TOKEN": "{TOKEN}", "DB_PASSWORD": "{PASSWORD}", "ONE_KEY": None}})
if variant == "other":
    expected["ONE_KEY"] = "{OTHER}"
assert known == expected, known
assert not [name for name in os.environ if name.startswith("DDP_LADDER_SECRET")]
print("the log is the script's own:", known, flush=True)
if "/1x2/" in run:
    raise RuntimeError(f"https://me:hunter2@db.example.org refused {{known['SITE_TOKEN']}}")
"""


def configure(checkout: Checkout) -> None:
    variants = {"default": {}, "other": {"env": {"ONE_KEY": OTHER}}}
    stages = {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": {"scales": ["1x2"], "runtime": 5}}
    workload = {
        "script": "loop.py",
        "args": ["{batch_per_gpu}", "--api-key", "0123abc"],
        "batch_per_gpu": 16,
        "env": {"DB_PASSWORD": PASSWORD},
    }
    checkout.configure(workload=workload, variants=variants, stages={**stages, "stage3": None})
    checkout.without_torch(SCRIPT)
    checkout.site(network={"backend": "auto", "interface": "auto", "env": {"SITE_TOKEN": TOKEN}}, launcher="srun")


def files_with(secret: str, *directories: Path) -> set[str]:
    found = subprocess.run(
        ["grep", "--recursive", "--files-with-matches", "--fixed-strings", secret, *directories],
        capture_output=True,
        text=True,
        check=False,
    )
    return {Path(line).name for line in found.stdout.splitlines()}


def test_only_the_script_and_its_log_have_them(checkout: Checkout) -> None:
    configure(checkout)
    said = [checkout.snakemake(*words) for words in (["--cores", "2", "--dry-run"], ["eject"])]
    climb = checkout.snakemake("--profile", "profiles/local")
    said.append(climb)
    assert [done.returncode for done in said] == [0, 0, 1], climb.stdout
    assert (checkout.results / "gates/stage1.json").exists()
    assert "https://me:***@db.example.org refused ***" in " ".join(last_box(climb.stdout).values())
    record = checkout.record("default/weak/1x2/r1")
    assert record["failure"]["why"].endswith("RuntimeError: https://me:***@db.example.org refused ***")
    assert record["spec"]["env"]["SITE_TOKEN"] == MARKER
    written = (checkout.results, checkout.path / ".snakemake")
    for secret in (TOKEN, PASSWORD, OTHER, "hunter2"):
        assert files_with(secret, *written) <= {"train.log"}
        assert secret not in "".join(done.stdout for done in said)
    assert files_with(TOKEN, *written) == {"train.log"}
    # Arguments have to be written: every start says so, and what to do.
    assert "0123abc" not in climb.stdout
    for done in (said[0], climb):
        assert done.stdout.count("workload.args[2]: a secret that is written to files") == 1, done.stdout
        assert "put it in workload.env" in done.stdout


def test_a_script_that_is_started_by_hand_asks_for_them(checkout: Checkout) -> None:
    configure(checkout)
    assert checkout.snakemake("eject").returncode == 0
    script = "results/runs/default/weak/1x1/r1/job.sh"
    metrics = {**environment(), "DDP_LADDER_RUN": "/runs/default/", "DDP_LADDER_METRICS": os.devnull}
    without = subprocess.run(
        ["bash", script, "here"], cwd=checkout.path, env=metrics, capture_output=True, text=True, check=False
    )
    assert without.returncode != 0
    assert "SITE_TOKEN: a secret that this script does not hold" in without.stderr
    given = {**metrics, "SITE_TOKEN": TOKEN, "DB_PASSWORD": PASSWORD}
    done = subprocess.run(["bash", script, "here"], cwd=checkout.path, env=given, check=False, timeout=100)
    assert done.returncode == 0


def test_an_experiment_may_leave_a_secret_to_the_environment(checkout: Checkout) -> None:
    """As climb.config.json does, the experiment that a module hands over."""
    configure(checkout)
    config = checkout.path / "config/config.yaml"
    config.write_text(config.read_text().replace(PASSWORD.replace("'", "''"), MARKER).replace(PASSWORD, MARKER))
    assert MARKER in config.read_text()
    done = checkout.snakemake("--cores", "2", "stage1")
    assert done.returncode == 1
    assert "DB_PASSWORD: a secret that is to come from the environment is not there" in done.stdout
    assert not (checkout.results / "runs").exists()
