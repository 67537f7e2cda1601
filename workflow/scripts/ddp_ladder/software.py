"""Software of the site: the environment that its modules and its setup make for the training, and for nothing else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ddp_ladder.launch import INSTRUMENT, Places, is_module
from ddp_ladder.plan import RunSpec

# What the workflow's own Python goes by, which a Python of another version would stumble over.
OF_THE_WORKFLOW = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT")
OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")
MESSAGE_LINES = 20
WITHIN_S = 180.0  # for the doctor; a run's own limit is its job's

# argv, environment, descriptor for output and errors, descriptor to be passed on; returns the exit code.
Runner = Callable[[Sequence[str], Mapping[str, str], int, int], int]

# A batch job's shell may have no `module`: sbatch starts no login shell.
MODULE_COMMAND = r"""
for ddp_ladder_file in "${LMOD_PKG:+$LMOD_PKG/init/bash}" "${MODULESHOME:+$MODULESHOME/init/bash}" \
  /etc/profile.d/{lmod,modules,z00_lmod}.sh /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do
  if ! declare -F module >/dev/null && [[ -r $ddp_ladder_file ]]; then
    # shellcheck source=/dev/null
    . "$ddp_ladder_file"
  fi
done
""".strip()

# Arguments: a file descriptor, the setup snippet, the modules. On the descriptor it says what it is at, so that a
# failure can be told with its key, and at last the environment; each ends with NUL.
#   LOADEDMODULES   the modules of before version 4 report success when they fail. A name that is in there under another
#                   (an alias, a default version) is one that was not in there before.
#   unload          a module that the user's shell had loaded would be left as it is, without its PYTHONPATH, which was
#                   taken away. The last one first, as others may need the first.
_SHELL = r"""
ddp_ladder_descriptor=$1 ddp_ladder_setup=$2
shift 2
ddp_ladder_modules=("$@")
set --
ddp_ladder_say() { printf '%s\0' "$1" >&"$ddp_ladder_descriptor"; }

MODULE_COMMAND
if ((${#ddp_ladder_modules[@]})) && ! declare -F module >/dev/null; then
  ddp_ladder_say 'no module command'
  exit 1
fi
for ((ddp_ladder_k = ${#ddp_ladder_modules[@]} - 1; ddp_ladder_k >= 0; ddp_ladder_k--)); do
  if [[ :${LOADEDMODULES-}: == *:"${ddp_ladder_modules[ddp_ladder_k]}"[:/]* ]]; then
    module unload "${ddp_ladder_modules[ddp_ladder_k]}"
  fi
done
for ddp_ladder_module in "${ddp_ladder_modules[@]}"; do
  ddp_ladder_say "module $ddp_ladder_module"
  ddp_ladder_before=${LOADEDMODULES-}
  module load "$ddp_ladder_module" || exit 1
  if [[ ${LOADEDMODULES-} == "$ddp_ladder_before" && :${LOADEDMODULES-}: != *:"$ddp_ladder_module"[:/.-]* ]]; then
    exit 1
  fi
done

ddp_ladder_say setup
set -e
eval "$ddp_ladder_setup"$'\n\n:'
set +e
ddp_ladder_say environment
/usr/bin/env -0 >&"$ddp_ladder_descriptor"
""".replace("MODULE_COMMAND", MODULE_COMMAND)


class SetUpError(Exception):
    """A node could not be set up as the site's settings say.

    what: one line that begins with the setting's key; the exception's text goes on with what was printed.
    exit_code: negative when a signal ended the shell.
    """

    def __init__(self, key: str, why: str, output: str = "", exit_code: int = 1) -> None:
        self.what = f"{key}: {why}"
        super().__init__("\n".join([self.what, *output.strip().splitlines()[-MESSAGE_LINES:]]))
        self.exit_code = exit_code


def run_shell(argv: Sequence[str], env: Mapping[str, str], output: int, result: int) -> int:
    """Run to the end, for at most WITHIN_S. Raises SetUpError after that."""
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
    spec: RunSpec, base_env: Mapping[str, str], run: Runner = run_shell, log: BinaryIO | None = None
) -> dict[str, str]:
    """The environment for what a run starts on a node: ``base_env``, the modules, the setup snippet.

    log: gets what modules and snippet print. Raises SetUpError, also when a signal ends the shell.
    """
    env = dict(base_env)
    if spec.python is not None or spec.container is not None:
        env = {key: value for key, value in env.items() if key not in OF_THE_WORKFLOW}
    if not spec.modules and not spec.setup.strip():
        return env
    code, printed, told = _run(spec, env, run)
    if log is not None:
        with contextlib.suppress(OSError):  # a full disk; where something fails, the error quotes what was printed
            log.write(printed)
    said = [os.fsdecode(part) for part in told.split(b"\0")[:-1]]
    if code != 0 or "environment" not in said:
        raise _error(said, printed.decode(errors="replace"), code)
    made = dict(part.split("=", 1) for part in said[said.index("environment") + 1 :])
    of_the_shell = {key: env[key] for key in OF_THE_SHELL if key in env}
    return {key: value for key, value in made.items() if key not in OF_THE_SHELL} | of_the_shell


def _run(spec: RunSpec, env: Mapping[str, str], run: Runner) -> tuple[int, bytes, bytes]:
    """Exit code of the shell, what it printed, and what it told on the descriptor."""
    # Files, not pipes: what the snippet leaves running would hold a pipe open.
    with _temporary_file() as output, _temporary_file() as result:
        descriptor = result.fileno()
        argv = ["bash", "--noprofile", "--norc", "-c", _SHELL, "bash", str(descriptor), spec.setup, *spec.modules]
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


def _error(said: Sequence[str], output: str, code: int) -> SetUpError:
    at = said[-1] if said else ""
    if at == "no module command":
        return SetUpError("software.modules", "this node has no module command", output, code)
    if at.startswith("module "):
        return SetUpError("software.modules", f"{at} does not load", output, code or 1)
    why = f"the snippet failed with exit code {code}" if code else "the snippet ended its shell with exit"
    return SetUpError("software.setup", why, output, code or 1)


def container_binds(spec: RunSpec, places: Places) -> tuple[str, ...]:
    """What ``--bind`` shows inside the container: the user's, and the directories that every run needs.

    Links are followed too: inside, what a link leads to must be there as well as the link.
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
