"""Secrets of the settings: the script gets them, and nothing that is written or printed has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from project_copy import NO_TORCH, Checkout, environment, last_box

TOKEN = "dGhlIHJl{ss'wo$rd"
SCRIPT = f"""{NO_TORCH}
assert os.environ["SITE_TOKEN"] == {TOKEN!r}
print("the log is the script's own:", os.environ["SITE_TOKEN"], flush=True)
if "/1x2/" in os.environ["DDP_LADDER_RUN"]:
    raise RuntimeError(f"https://me:hunter2@db.example.org refused {{os.environ['SITE_TOKEN']}}")
"""


def files_with(secret: str, *directories: Path) -> set[str]:
    found = subprocess.run(
        ["grep", "--recursive", "--files-with-matches", "--fixed-strings", secret, *directories],
        capture_output=True,
        text=True,
        check=False,
    )
    return {Path(line).name for line in found.stdout.splitlines()}


def test_only_the_script_and_its_log_have_them_and_job_sh_asks_for_them(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": {"scales": ["1x2"], "runtime": 5}}
    workload = {"script": "loop.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": 16}
    checkout.configure(workload={**workload, "secrets": ["SITE_TOKEN"]}, stages=stages)
    checkout.without_torch(SCRIPT)
    missing = checkout.snakemake("--cores", "2", "stage1")
    assert missing.returncode == 1
    assert "workload.secrets: a secret that is not in the environment of this start" in missing.stdout
    assert "export SITE_TOKEN=... and start again" in missing.stdout
    assert not (checkout.results / "runs").exists()
    monkeypatch.setenv("SITE_TOKEN", TOKEN)
    ejected, climb = checkout.snakemake("eject"), checkout.snakemake("--profile", "profiles/local")
    assert (ejected.returncode, climb.returncode) == (0, 1), climb.stdout
    assert (checkout.results / "gates/stage1.json").exists()
    assert "https://me:***@db.example.org refused ***" in " ".join(last_box(climb.stdout).values())
    record = checkout.record("default/weak/1x2/r1")
    assert record["failure"]["why"].endswith("RuntimeError: https://me:***@db.example.org refused ***")
    written = (checkout.results, checkout.path / ".snakemake")
    for secret in (TOKEN, "hunter2"):
        assert files_with(secret, *written) <= {"train.log"}
        assert secret not in ejected.stdout + climb.stdout
    assert files_with(TOKEN, *written) == {"train.log"}

    by_hand = ["bash", "results/runs/default/weak/1x1/r1/job.sh", "here"]
    env = {**environment(), "DDP_LADDER_RUN": "/runs/default/", "DDP_LADDER_METRICS": os.devnull}
    assert subprocess.run(by_hand, cwd=checkout.path, env=env, check=False, timeout=100).returncode == 0
    del env["SITE_TOKEN"]
    without = subprocess.run(by_hand, cwd=checkout.path, env=env, capture_output=True, text=True, check=False)
    assert without.returncode != 0
    assert "SITE_TOKEN: a secret that this script does not hold" in without.stderr
