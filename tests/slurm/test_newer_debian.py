"""The newer Debian of the tests: it has the versions of the table, and nothing of it is left mounted."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

import pytest
from machines import HERE, System

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
LOCK = runpy.run_path(str(ROOT / ".ci/lock.py"))


def test_a_command_sees_the_checkout_and_leaves_no_mount(system: System) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    script = "cat requirements.lock; mount | wc -l >&2; exit 7"
    done = subprocess.run(system.command(["sh", "-c", script], ROOT), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, LOCK["LOCK"].read_text()), done.stderr
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.skipif("CI" not in os.environ, reason="only CI has to run with the versions of the table")
def test_its_versions_are_those_of_the_table(system: System) -> None:
    prefix, python = ((), system.python) if system == HERE else (LOCK["IN_NEWER"], "python")
    assert LOCK["header"](prefix, python) in LOCK["LOCK"].read_text()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    done = subprocess.run([*LOCK["IN_NEWER"], "true"], env=env, capture_output=True, text=True, check=False)
    missing = "debootstrap not found: apt-get install --no-install-recommends debootstrap"
    assert (done.returncode, done.stderr) == (1, f"newer_debian.py: {missing}\n")
