"""Git state of the training script's repository, of real repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ddp_ladder.node.software import git_state


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


def commit_all(directory: Path) -> str:
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "more")
    return git(directory, "rev-parse", "HEAD")


def test_clean_and_dirty(script: Path) -> None:
    commit = git(script.parent, "rev-parse", "HEAD")
    assert git_state(script) == {"commit": commit, "dirty": False}
    (script.parent / "log.txt").write_text("not tracked\n")
    assert git_state(script) == {"commit": commit, "dirty": False}
    script.write_text("print('trained better')\n")
    assert git_state(script) == {"commit": commit, "dirty": True}


def test_a_file_that_no_commit_holds_has_none(script: Path) -> None:
    """A script that was not added, and a package that is installed in the checkout's own .venv."""
    project = script.parent
    (project / ".gitignore").write_text(".venv\n")
    commit_all(project)
    for name in ("new.py", ".venv/lib/python3.11/site-packages/package/train.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
        assert git_state(project / name) is None


def test_no_repository_no_commit_no_git(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path / "train.py") is None
    assert git_state(tmp_path / "no/such/directory/train.py") is None
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert git_state(empty / "train.py") is None
    monkeypatch.setenv("PATH", str(empty))
    assert git_state(script) is None


def test_nothing_that_the_repository_configures_is_run(script: Path) -> None:
    marker = script.parent / "ran"
    hook = script.parent / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    git(script.parent, "config", "core.fsmonitor", str(hook))
    assert git_state(script) is not None
    assert not marker.exists()
