"""Software of the site: the environment that its modules and its setup create, for the training only."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ddp_ladder.common.paths import TEMPLATES
from ddp_ladder.common.redaction import redacted
from ddp_ladder.node.launch import INSTRUMENT, Places, is_module
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT, exported_secret, known_secrets, without_exported

# Variables of the workflow's own Python, with which a Python of another version may fail.
WORKFLOW_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT")
SHELL_VARIABLES = ("_", "SHLVL", "PWD", "OLDPWD")
MESSAGE_LINES = 20
MODULE_COMMAND = TEMPLATES / "module_command.sh"
NODE_ENVIRONMENT = TEMPLATES / "node_environment.sh"
TORCH_NOT_INSTALLED = "No module named 'torch'"  # of a Python's report why it cannot import torch
NAMES_THE_CAUSE = (
    "the message names the cause: the installation of torch, or a variable of workload.env, network.env or the shell"
)
WITHIN_S = 180.0  # for the doctor; a run's own limit is its job's

# argv, environment, descriptor for output and errors, descriptor to be passed on; returns the exit code.
Runner = Callable[[Sequence[str], Mapping[str, str], int, int], int]


class SetUpError(Exception):
    """A node could not be set up as the site's settings ask.

    what: one line that begins with the setting's key; the exception's text adds the end of the output, without secrets.
    exit_code: negative when a signal ended the shell.
    """

    def __init__(self, key: str, why: str, output: str = "", exit_code: int = 1) -> None:
        self.what = f"{key}: {why}"
        text = "\n".join([self.what, *output.strip().splitlines()[-MESSAGE_LINES:]])
        super().__init__(redacted(text, known_secrets(os.environ)))
        self.exit_code = exit_code


def run_shell(argv: Sequence[str], env: Mapping[str, str], output: int, result: int) -> int:
    """Run to the end and return the exit code. Raises SetUpError after WITHIN_S."""
    try:
        return subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(result,),
            timeout=WITHIN_S,
            check=False,
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
    # Files, not pipes: a process that the snippet leaves running would hold a pipe open.
    with _temporary_file() as output, _temporary_file() as result:
        descriptor = result.fileno()
        shell = ("bash", "--noprofile", "--norc", "-c", NODE_ENVIRONMENT.read_text(), "bash")
        argv = (*shell, str(descriptor), str(MODULE_COMMAND), spec.setup, *spec.modules)
        try:
            code = run(argv, env, output.fileno(), descriptor)
        except OSError as error:
            key = "software.modules" if spec.modules else "software.setup"
            raise SetUpError(key, f"bash cannot be started: {error.strerror}") from error
        return code, _content(output), _content(result)


def _temporary_file() -> BinaryIO:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        where = os.environ.get("TMPDIR", "/tmp")
        why = f"no temporary file can be made in {where} ({error.strerror}); TMPDIR names another directory"
        raise SetUpError("software.setup", why) from error


def _content(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _error(stages: Sequence[str], output: str, code: int) -> SetUpError:
    at = stages[-1] if stages else ""
    if at == "no module command":
        return SetUpError("software.modules", "this node has no module command", output, code)
    if at.startswith("module "):
        return SetUpError("software.modules", f"{at} does not load", output, code or 1)
    why = f"the snippet failed with exit code {code}" if code else "the snippet ended its shell with exit"
    return SetUpError("software.setup", why, output, code or 1)


def with_secrets(spec: RunSpec, site: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the site's environment with the values of the run's secrets, and no others that a start exports.

    site: what ``environment`` returned. inherited: the environment of this process. Raises SetUpError for one that is
    missing.
    """
    env = without_exported(site)
    for name, value in spec.env.items():
        if value == FROM_ENVIRONMENT:
            secret = exported_secret(name, inherited) or site.get(name)
            if secret is None:
                why = f"{name} is a secret, which no file has: it must be in the environment of what starts the run"
                raise SetUpError("workload.env", f"{why}: export {name}=...")
            env[name] = secret
    return env


def container_binds(spec: RunSpec, places: Places) -> tuple[str, ...]:
    """Return the values of ``--bind`` for the container: the user's, and the directories that every run needs.

    Targets of links are bound as well as the links.
    """
    if spec.container is None:
        return ()
    needed = [places.start, places.run, places.working(spec), INSTRUMENT.parent]
    if not is_module(spec):
        needed.append(Path(spec.script).parent)
    given = [bind for bind in spec.container["binds"] if ":" in bind]
    needed += [Path(bind) for bind in spec.container["binds"] if ":" not in bind]
    wanted = dict.fromkeys(path for each in needed for path in (Path(os.path.abspath(each)), each.resolve()))
    outer = [path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted)]
    return (*map(str, outer), *given)
