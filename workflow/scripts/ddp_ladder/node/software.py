"""Software of a node: the environment that the site's modules and setup create, repository and limits."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT, without_values

from ddp_ladder.common.files import TEMPLATES
from ddp_ladder.node.launch import INSTRUMENT, Places, is_module
from ddp_ladder.plan.plan import RunSpec

# Variables of the workflow's own Python, with which a Python of another version may fail.
WORKFLOW_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT")
SHELL_VARIABLES = ("_", "SHLVL", "PWD", "OLDPWD")
MESSAGE_LINES = 20
MODULE_COMMAND = TEMPLATES / "module_command.sh"
NODE_ENVIRONMENT = TEMPLATES / "node_environment.sh"
TIMEOUT_S = 20.0  # for git
WITHIN_S = 180.0  # for the doctor; a run's own limit is its job's

# argv, environment, descriptor for output and errors, descriptor to be passed on; returns the exit code.
Runner = Callable[[Sequence[str], Mapping[str, str], int, int], int]


class SetUpError(Exception):
    """A node could not be set up as the site's settings ask. Its text ends with the output's end, without secrets."""

    def __init__(self, key: str, why: str, output: str = "", exit_code: int = 1) -> None:
        self.what = f"{key}: {why}"  # one line that begins with the setting's key
        text = "\n".join([self.what, *output.strip().splitlines()[-MESSAGE_LINES:]])
        super().__init__(without_values(text, os.environ))
        self.exit_code = exit_code  # negative when a signal ended the shell


def run_shell(argv: Sequence[str], env: Mapping[str, str], output: int, result: int) -> int:
    """Run to the end and return the exit code. Raises SetUpError after WITHIN_S."""
    no_input = subprocess.DEVNULL
    try:
        return subprocess.run(
            argv, env=env, stdin=no_input, stdout=output, stderr=output, pass_fds=(result,), timeout=WITHIN_S
        ).returncode
    except subprocess.TimeoutExpired:
        why = f"modules and setup did not end within {WITHIN_S:.0f} s"
        raise SetUpError("software.setup", why) from None


def environment(
    spec: RunSpec, base_env: Mapping[str, str], run: Runner = run_shell, log: Callable[[bytes], None] | None = None
) -> dict[str, str]:
    """Return the environment of a run's processes on a node: ``base_env``, then the modules, then the setup snippet.

    log: gets the output of modules and snippet. Raises SetUpError, also when a signal ends the shell.
    """
    env = dict(base_env)
    if spec.python is not None or spec.container is not None:
        env = {key: value for key, value in env.items() if key not in WORKFLOW_VARIABLES}
    if not spec.modules and not spec.setup.strip():
        return env
    code, printed, written = _run(spec, env, run)
    if log is not None:
        log(printed)
    stages = [os.fsdecode(part) for part in written.split(b"\0")[:-1]]
    if code != 0 or "environment" not in stages:
        raise _error(stages, printed.decode(errors="replace"), code)
    made = dict(part.split("=", 1) for part in stages[stages.index("environment") + 1 :])
    unchanged = {key: env[key] for key in SHELL_VARIABLES if key in env}
    return {key: value for key, value in made.items() if key not in SHELL_VARIABLES} | unchanged


def _run(spec: RunSpec, env: Mapping[str, str], run: Runner) -> tuple[int, bytes, bytes]:
    """Return the exit code of the shell, its output, and what it wrote on the descriptor."""
    key = "software.modules" if spec.modules else "software.setup"
    try:
        # Files, not pipes: a process that the snippet leaves running would hold a pipe open.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as result:
            shell = ("bash", "--noprofile", "--norc", "-c", NODE_ENVIRONMENT.read_text(), "bash")
            argv = (*shell, str(result.fileno()), str(MODULE_COMMAND), spec.setup, *spec.modules)
            code = run(argv, env, output.fileno(), result.fileno())
            output.seek(0)
            result.seek(0)
            return code, output.read(), result.read()
    except OSError as error:
        why = f"bash or its temporary files cannot be opened: {error.filename}: {error.strerror}"
        raise SetUpError(key, why) from error


def _error(stages: Sequence[str], output: str, code: int) -> SetUpError:
    at = stages[-1] if stages else ""
    if at == "no module command":
        return SetUpError("software.modules", "this node has no module command", output, code)
    if at.startswith("module "):
        return SetUpError("software.modules", f"{at} does not load", output, code or 1)
    why = f"the snippet failed with exit code {code}" if code else "the snippet ended its shell with exit"
    return SetUpError("software.setup", why, output, code or 1)


def check_secrets(spec: RunSpec, env: Mapping[str, str]) -> None:
    """Raise SetUpError if a secret of the run is not in the environment."""
    for name, value in spec.env.items():
        if value == FROM_ENVIRONMENT and name not in env:
            why = f"{name} is a secret, which no file has: it must be in the environment of what starts the run"
            raise SetUpError("workload.secrets", f"{why}: export {name}=...")


def container_binds(spec: RunSpec, places: Places, *more: Path) -> tuple[str, ...]:
    """Return the values of ``--bind`` for the container: the user's, and the directories that every run needs.

    Targets of links are bound as well as the links.
    """
    if spec.container is None:
        return ()
    needed = [places.start, places.run, places.working(spec), INSTRUMENT.parent, *more]
    if not is_module(spec):
        needed.append(Path(spec.script).parent)
    given = [bind for bind in spec.container.binds if ":" in bind]
    needed += [Path(bind) for bind in spec.container.binds if ":" not in bind]
    wanted = dict.fromkeys(path for file in needed for path in (Path(os.path.abspath(file)), file.resolve()))
    outer = [path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted)]
    return (*map(str, outer), *given)


# The repository that holds the training script. Git never runs inside the training's process.

# A repository is the user's data: run nothing that it configures, and write nothing to it.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def git_state(script: Path) -> dict[str, Any] | None:
    """Return the commit of the repository that tracks this file, and whether tracked files differ from it (``dirty``).

    None for a file that no repository tracks, such as an installed package in a checkout's own .venv; also without git,
    without a commit, and if git does not answer in TIMEOUT_S.
    """
    path = script.resolve()
    commit = _git(path.parent, "rev-parse", "HEAD")
    if not commit or _git(path.parent, "ls-files", "--error-unmatch", "--", path.name) is None:
        return None
    changed = _git(path.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(directory: Path, *words: str) -> str | None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    argv, no_input = [*GIT, "-C", str(directory), *words], subprocess.DEVNULL
    try:
        done = subprocess.run(argv, env=env, stdin=no_input, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# Limits of this process, which those that it starts inherit

# Enough for many peers and loader workers. Not more: some programs close each descriptor up to the limit, and a hard
# limit may be a thousand million.
MOST_OPEN_FILES = 65536


def raise_open_files() -> None:
    """Raise the soft limit of open files (``ulimit -n``) to the hard one, at most to MOST_OPEN_FILES.

    The agent does it for its ranks: `ulimit` in software.setup has no effect, as only that shell's variables are kept.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system with a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
