"""Git state of the repository that holds the training script. Git never runs inside the training's process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

TIMEOUT_S = 20.0
# A repository is the user's data: run nothing that it configures, and write nothing to it.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def git_state(script: Path, at_s: float | None = None) -> dict[str, Any] | None:
    """Return the commit of the repository that tracks this file, and whether tracked files differ from it.

    at_s: unix time of the commit to report; None: now. ``dirty`` is None if the repository has another commit now.
    None for a file that no repository tracks, such as an installed package in a checkout's own .venv; also without git,
    without a commit, and if git does not answer in TIMEOUT_S.
    """
    path = script.resolve()
    commit = head = _git(path.parent, "rev-parse", "HEAD")
    if not head or _git(path.parent, "ls-files", "--error-unmatch", "--", path.name) is None:
        return None
    if at_s is not None:
        commit = _git(path.parent, "rev-parse", f"HEAD@{{{int(at_s)}}}") or head  # a repository may keep no log
    changed = _git(path.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None or commit != head else bool(changed)}


def _git(directory: Path, *words: str) -> str | None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            [*GIT, "-C", str(directory), *words],
            env={**env, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
