"""What a training needs, looked for before any job: its data, which one process at a time prepares, and its module."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT

from ddp_ladder.common.files import SCRIPTS, filesystem, is_shared, nearest, write_json
from ddp_ladder.common.findings import Severity
from ddp_ladder.common.formats import signal_of
from ddp_ladder.common.messages import Problem, UserError, notify
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.node.launch import Places, is_module, python_command, python_path, training_environment
from ddp_ladder.node.software import WITHIN_S, SetUpError, container_binds, environment
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.run.nodes import local_job_id
from ddp_ladder.settings.keys import Experiment, Site
from ddp_ladder.slurm.lock import Lock, held

LOCK = ".prepare"
A_DAY_S = 86_400.0  # a download takes long


def data_problem(experiment: Experiment, on_nodes: bool) -> tuple[Severity, Problem] | None:
    """Return the problem with data that no ``prepare`` writes: an error if they are missing, a warning if they may be.

    on_nodes: whether the training runs on other machines, which have disks of their own.
    """
    wanted = experiment.workload.data_dir
    if wanted is None or experiment.workload.prepare is not None:
        return None
    try:
        os.stat(wanted)
        return None
    except OSError as error:
        parent = nearest(Path(wanted).absolute())
        found = f"{wanted}: {error.strerror}; {parent} is there"
    where = f"{experiment.file}: workload.data_dir"
    if on_nodes and not parent.is_relative_to(Path.cwd()) and not is_shared(filesystem(parent)):
        look = f"if only compute nodes have it, look there: srun --nodes=1 ls {wanted}; else correct the path"
        return "warning", Problem(where, "there is no such directory on this machine", found, next=look)
    return "error", Problem(
        where,
        "the training data are missing",
        found,
        next="correct the path, or name in `workload.prepare` the script that writes it; for a script that downloads "
        f"its data itself, make the directory: mkdir -p {wanted}",
    )


def prepare_data(spec: RunSpec, site: Site, command: Sequence[str], marker: Path) -> int:
    """Run ``command``, workload.prepare, with the software of the training; return its exit code.

    It starts where Snakemake was started, in the container if there is one; its output goes to standard output.
    marker: in the directory of the data, written after a good end. Of two starts on one directory the second one
    waits.

    Raises UserError if it cannot be started, and while a start on another machine prepares the same data.
    """
    data = marker.parent
    lock = Lock(data, LOCK, f"workload.data_dir {data}", "these data", A_DAY_S)
    with held(lock, local_job_id(), notify):
        code = _run(spec, site, command, data)
        if code == 0:
            write_json(marker, {"command": list(command)})
        return code


def prepare_argv(spec: RunSpec, command: Sequence[str], data: Path) -> tuple[str, ...]:
    """Return the argument list of workload.prepare: the Python of the training, in its container with its binds."""
    preparing = spec.replace(script=command[0], directory=None)
    places = Places.here(data)
    return (*python_command(preparing, places, container_binds(preparing, places)), *command)


def _run(spec: RunSpec, site: Site, command: Sequence[str], data: Path) -> int:
    argv = prepare_argv(spec, command, data)
    try:
        env = environment(spec, os.environ)
        parent = os.getpid()
        with subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM, parent),
        ) as process:
            return process.wait()
    except SetUpError as error:
        raise UserError(_not_started(site, str(error))) from None
    except OSError as error:
        key = "software.python" if spec.container is None else "software.container"
        raise UserError(_not_started(site, f"{key}: {argv[0]} cannot be started: {error.strerror}")) from None


def _not_started(site: Site, why: str) -> Problem:
    return Problem(
        str(site.file),
        why,
        allowed="workload.prepare runs where Snakemake runs, with the software of the training",
        next="correct the key; if only compute nodes have that software, climb there (`snakemake eject`, then "
        "sbatch climb.sh), or put the data there yourself and set workload.prepare: null",
    )


# --- A module as training script (``-m package.module``), looked for as the run does, before any job.


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
