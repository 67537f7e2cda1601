"""The command lines by hand: --help everywhere, and a Makefile that says what is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project_copy import ROOT, environment

SCRIPTS = sorted((ROOT / "workflow/scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help_says_what_it_is_for_with_an_example(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, script, "--help"], capture_output=True, text=True, check=True, env=environment()
    )
    assert "xample" in done.stdout
    assert script.name in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("script", ["gate.py", "report.py", "run_scale.py"])
def test_missing_plan_is_reported_without_a_traceback(script: str, tmp_path: Path) -> None:
    extra = {"gate.py": ["--stage", "stage1"], "run_scale.py": ["--scale", "1x1"]}.get(script, [])
    plan = str(tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, ROOT / "workflow/scripts" / script, "--plan", plan, *extra],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 1
    assert plan in done.stderr
    assert "next" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["doctor.py", "predict.py"])
def test_a_python_without_packages_is_named_with_what_to_do(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", ROOT / "workflow/scripts" / script],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{sys.executable} (Python 3.")
    assert (
        "lacks jinja2, matplotlib, numpy, packaging, pandas, psutil, pydantic, rich, scipy, snakemake, yaml"
        in done.stderr
    )
    assert f"next: cd {ROOT} && make setup" in done.stderr
    assert "Traceback" not in done.stderr


def make(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "Makefile", directory)
    for name in ("requirements.txt", "requirements-training.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, directory)
    return subprocess.run(
        ["make", *arguments], cwd=directory, env={**environment(), **env}, capture_output=True, text=True, check=False
    )


def test_makefile_says_that_python_is_missing(tmp_path: Path) -> None:
    done = make(tmp_path, "run", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "no-such-python is missing: install Python 3.11 or newer" in done.stderr
