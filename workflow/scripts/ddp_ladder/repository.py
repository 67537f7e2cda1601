"""Git state of the repository that holds the training script. Asked for beside the training, never inside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

TIMEOUT_S = 20.0
# A repository is the user's data: nothing that it configures may run, and nothing is written to it.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def git_state(script: str) -> dict[str, Any] | None:
    """Commit of the script's repository, and whether tracked files differ from it; None where there is no answer.

    None also without git, without a commit, and where git does not answer in TIMEOUT_S.
    """
    directory = Path.cwd() if script.startswith("-m ") else Path(script).resolve().parent
    commit = _git(directory, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


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
