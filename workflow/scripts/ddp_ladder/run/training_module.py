"""A module as training script (``-m package.module``), looked for as the run does, before any job."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT

from ddp_ladder.common.files import SCRIPTS
from ddp_ladder.common.formats import signal_of
from ddp_ladder.common.messages import Problem, Severity
from ddp_ladder.node.launch import Places, is_module, python_command, python_path, training_environment
from ddp_ladder.node.software import WITHIN_S, SetUpError, environment
from ddp_ladder.plan.plan import Plan, RunSpec

FINDER = SCRIPTS / "ddp_ladder/node/module_finder.py"


def module_problem(plan: Plan, config: Path, on_nodes: bool) -> tuple[Severity, Problem] | None:
    """Return the problem of a module that the training's Python does not find; a note where this machine cannot tell.

    on_nodes: whether the training runs on other machines, which may have the module.
    """
    spec, where = plan.runs[0], f"{config}: workload.script"
    if not is_module(spec):
        return None
    if spec.container is not None:
        look = "the first run shows whether its image has it"
        return "note", Problem(where, "a module in a container", spec.script, next=look)
    try:
        missing, searched = _look(spec, Places.here(Path(plan.results) / "runs" / spec.name))
    except (SetUpError, OSError) as error:
        what = "this machine cannot look for the module as a run does"
        return "note", Problem(where, what, str(error).splitlines()[0], next="see the training's Python")
    if not missing:
        return None
    add = "name in workload.env the directory that holds the package, env: {PYTHONPATH: DIRECTORY}, install it for the "
    add += "training's Python, or correct the name"
    return "warning" if on_nodes else "error", Problem(
        where,
        "the training's Python finds no such module" + (" on this machine" if on_nodes else ""),
        f"{spec.script}, in {searched} and among its packages",
        next=f"{add}; it must be seen by the nodes" if on_nodes else add,
    )


def _look(spec: RunSpec, places: Places) -> tuple[bool, str]:
    """Return whether the module is missing, and where it was searched. Raises SetUpError and OSError."""
    own = {name: value for name, value in training_environment(spec, places).items() if value != FROM_ENVIRONMENT}
    env, working = {**environment(spec, os.environ), **own}, str(places.working(spec))
    if path := python_path(spec, places, env.get("PYTHONPATH", "")):
        env["PYTHONPATH"] = path
    (python,) = python_command(spec, places, ())
    argv = [shutil.which(python, path=env.get("PATH")) or python, "-c", FINDER.read_text(), spec.script[3:], working]
    searched = dict.fromkeys(filter(None, (working, *path.split(os.pathsep))))
    return _answer(argv, env) == "missing", ", ".join(searched)


def _answer(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return ``missing`` or ``found``. Raises OSError, and SetUpError if this Python says neither."""
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=WITHIN_S
        )
    except subprocess.TimeoutExpired:
        why = f"{argv[0]} did not say within {WITHIN_S:.0f} s whether it finds the module"
        raise SetUpError("software.python", why) from None
    said = done.stdout.splitlines()[-1:]
    if said in (["missing"], ["found"]):
        return said[0]
    code, last = done.returncode, "".join(f": {line}" for line in done.stderr.splitlines()[-1:])
    ended = f"was ended by {signal_of(code)}" if code < 0 else f"ended with exit code {code}"
    raise SetUpError("software.python", f"{argv[0]} {ended} when it looked for the module{last}")
