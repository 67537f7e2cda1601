"""Git state of the training script's repository, of real repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ddp_ladder.repository import git_state


def git(directory: Path, *words: str) -> str:
    options = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *options, *words], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "train.py"
    path.parent.mkdir()
    path.write_text("print('trained')\n")
    git(path.parent, "init", "-q")
    git(path.parent, "add", ".")
    git(path.parent, "commit", "-qm", "first")
    return path


def test_clean_and_dirty(script: Path) -> None:
    commit = git(script.parent, "rev-parse", "HEAD")
    assert git_state(str(script)) == {"commit": commit, "dirty": False}
    (script.parent / "log.txt").write_text("not tracked\n")
    assert git_state(str(script)) == {"commit": commit, "dirty": False}
    script.write_text("print('trained better')\n")
    assert git_state(str(script)) == {"commit": commit, "dirty": True}


def test_a_module_is_looked_for_where_the_workflow_runs(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(script.parent)
    state = git_state("-m package.train")
    assert state is not None
    assert state["commit"] == git(script.parent, "rev-parse", "HEAD")


def test_no_repository_no_commit_no_git(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(str(tmp_path / "train.py")) is None
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert git_state(str(empty / "train.py")) is None
    monkeypatch.setenv("PATH", str(empty))
    assert git_state(str(script)) is None


def test_nothing_that_the_repository_configures_is_run(script: Path) -> None:
    marker = script.parent / "ran"
    hook = script.parent / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    git(script.parent, "config", "core.fsmonitor", str(hook))
    assert git_state(str(script)) is not None
    assert not marker.exists()
