"""job.sh, a run as a batch script that needs neither Snakemake nor ddp-ladder; climb.sh, the whole climb as one job;
production.sh, a link of a chain that submits the next one.

Their texts are workflow/templates/<name>.j2. The launch lines come from ``node.launch`` and the options
from ``slurm.allocation``, so that the script and the measured run stay the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from shlex import quote as quoted
from typing import Any

from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ddp_ladder.common.files import OWN, SCRIPTS, TEMPLATES, RunDirectory, profile, write_atomically
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.node import launch
from ddp_ladder.node.launch import PORTS, Places, is_module
from ddp_ladder.node.software import WORKFLOW_VARIABLES, container_binds
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.platform.engines import ENGINES
from ddp_ladder.platform.launchers import END_OF_OPTIONS, LAUNCHERS, NO_JOB_OF_SLURM, wrapped_ranks
from ddp_ladder.settings.load import CLUSTER, CONFIG, Sources
from ddp_ladder.settings.yaml import shown
from ddp_ladder.slurm.jobs import new_job_name
from ddp_ladder.slurm.query import OF_GPUS, sbatch_options, srun_options, widest

VENV, PRODUCTION_SCRIPT = ".venv", "production.sh"
WIDTH = 84  # of the lines of a command, without their indent
_VARIABLE = re.compile("\0([A-Za-z_][A-Za-z0-9_]*)\0")


# Text of shell scripts


def variable(name: str) -> str:
    """Return the mark of a shell variable in a word that is yet to be quoted."""
    return f"\0{name}\0"


def quote(word: str) -> str:
    """Quote a word for the shell, with its variables. Raises ValueError for a NUL, which no word can contain."""
    parts = _VARIABLE.split(word)
    if any("\0" in part for part in parts):
        raise ValueError(f"a NUL character in {word!r}")
    if len(parts) == 1:
        return quoted(word)
    inside = [f"${{{part}}}" if k % 2 else re.sub(r'([\\"$`])', r"\\\1", part) for k, part in enumerate(parts)]
    return f'"{"".join(inside)}"'


def quoted_option(option: str) -> str:
    """Quote the value of ``--name=value`` for the shell."""
    name, equals, value = option.partition("=")
    return f"{name}={quote(value)}" if equals else name


def command_line(groups: Sequence[Sequence[str]]) -> str:
    """Return a command of several lines. groups: the words of each line."""
    return " \\\n    ".join(" ".join(quote(word) for word in group) for group in groups)


@cache
def _templates() -> Environment:
    """Return the templates; each is compiled once, however many runs are exported."""
    environment = Environment(  # not HTML: only ``quote`` escapes
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quote"] = quote
    return environment


def render(template: str, **values: Any) -> str:
    """Fill in workflow/templates/<template>; its filter ``quote`` makes a value one word of shell."""
    return _templates().get_template(template).render(values)


# job.sh

# MASTER_ADDR and MASTER_PORT are names that the configuration may not set.
_JOB, _HEAD, _PORT, _NODE_RANK = map(variable, ("job_id", "MASTER_ADDR", "MASTER_PORT", "SLURM_NODEID"))


def write_job_script(job: ScaleJob, spec: RunSpec, directory: RunDirectory) -> Path:
    """Write job.sh into the run's directory; the working directory is the project. Return its path."""
    places = Places.here(directory.path)
    write_atomically(directory.job_script, job_script(job, spec, places, container_binds(spec, places)), mode=0o777)
    return directory.job_script


def job_script(job: ScaleJob, spec: RunSpec, places: Places, binds: Sequence[str] = ()) -> str:
    """Return the text of job.sh: for sbatch, and with one node also for bash without Slurm.

    binds: directories to bind into the container, if there is one.
    """
    launcher, container = LAUNCHERS[spec.launcher], spec.container
    # A new one for each start, beside the measured run's.
    of_wrapper = str(places.of_wrapper.with_name(f"{places.of_wrapper.name}-{_JOB}"))
    wrapper = launch.wrapper_argv(spec, places, of_wrapper)

    per_node = launcher.tasks_per_node(spec)
    options = _lines(srun_options(spec.nodes, per_node, job.cpus_per_task(per_node)))
    return render(
        "job.sh.j2",
        run=spec,
        launcher=launcher,
        project=str(places.start),
        sbatch_options=_sbatch_lines(job, spec, places),
        early_ends=_early_ends(spec),
        step_options=[" ".join(line) for line in options],
        of_gpus=OF_GPUS,
        no_job_of_slurm=NO_JOB_OF_SLURM,
        of_the_workflow=WORKFLOW_VARIABLES,
        thread_variables=launch.THREAD_VARIABLES,
        environment=_assignments(_environment(spec, places)),
        secrets=[name for name, value in spec.env.items() if value == FROM_ENVIRONMENT],
        nccl_warnings=spec.backend == "nccl" and "NCCL_DEBUG" not in spec.env,
        module_path=_module_path(spec, places),
        ports=PORTS,
        interface_exports=_interface_exports(spec),
        directory=_working(spec, places) if spec.directory is not None else None,
        directory_is_own=places.is_own(spec),
        hides_environment=container is not None and ENGINES[container.engine].hides_environment,
        training=command_line(_training(spec, places, binds, wrapper)),
        unwrapped=command_line(_training(spec, places, binds)) if _is_of_first_rank(spec) else None,
        of_wrapper=of_wrapper if spec.wrapper else None,
        step_variables=_assignments(launcher.step_variables(spec, variable("simulated"), [variable("HOSTNAME")])),
        task_variables=" ".join(f"{name}={value}" for name, value in launcher.task_variables("$k", "$k", 0).items()),
    )


def _sbatch_lines(job: ScaleJob, spec: RunSpec, places: Places) -> list[str]:
    inside = places.run.is_relative_to(places.start)  # then the line stays right if the project is moved
    directory = places.run.relative_to(places.start) if inside else places.run
    log = f"{directory}/job-".replace("%", "%%") + "%j.log"
    own = {"job-name": spec.name.replace("/", "-"), "chdir": str(places.start), "output": log}
    return _directives(sbatch_options(job, own, LAUNCHERS[spec.launcher].tasks_per_node(spec)))


def _directives(options: Sequence[str]) -> list[str]:
    """Return options as lines of #SBATCH. Raises UserError for a line end: what follows it would be shell."""
    for option in options:
        if "\n" in option:
            advice = "remove the line end, from the setting or from the directory's name"
            raise UserError(Problem("options of sbatch", "a line end inside an option", shown(option), next=advice))
    return list(map(quoted_option, options))


def _early_ends(spec: RunSpec) -> list[str]:
    """Return the limits after which the measured run was ended; job.sh has none of them."""
    ends = [f"{spec.max_steps} steps"] if spec.max_steps is not None else []
    return [*ends, f"{spec.max_seconds:g} seconds"] if spec.max_seconds is not None else ends


def _environment(spec: RunSpec, places: Places) -> dict[str, str]:
    env = launch.training_environment(spec, places)
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = launch.python_path(spec, places, env["PYTHONPATH"])
    return {name: value for name, value in env.items() if value != FROM_ENVIRONMENT}


def _module_path(spec: RunSpec, places: Places) -> str | None:
    """Return the search path of the module; None if none is needed, or the configuration sets PYTHONPATH itself."""
    is_needed = spec.directory is not None and is_module(spec) and "PYTHONPATH" not in spec.env
    return str(places.start) if is_needed else None


def _interface_exports(spec: RunSpec) -> str:
    """Return the line that exports own_interface to the back ends, without variables that the configuration sets."""
    names = [name for name in launch.INTERFACE_VARIABLES if name not in spec.env]
    return " ".join(["export", *(f'{name}="$own_interface"' for name in names)]) if names else ""


def _working(spec: RunSpec, places: Places) -> str:
    """Return the measured run's working directory; if that is its own, a new one beside it for each start."""
    working = places.working(spec)
    if not places.is_own(spec):
        return str(working)
    return str(places.own.with_name(f"{places.own.name}-{_JOB}") / working.relative_to(places.own))


def _is_of_first_rank(spec: RunSpec) -> bool:
    """Return True if only the first rank of each node has the wrapper."""
    return bool(spec.wrapper) and spec.wrapper_per == "node" and LAUNCHERS[spec.launcher].per == "GPU"


def _training(spec: RunSpec, places: Places, binds: Sequence[str], wrapper: Sequence[str] = ()) -> list[list[str]]:
    """Return the command that trains, in groups of words, one group a line."""
    *container, python = launch.python_command(spec, places, binds, _working(spec, places))
    shell = 4 if container[:2] == ["bash", "-c"] else 0  # words of the shell that starts the engine
    node_rank, rdzv_id = "0" if spec.nodes == 1 else _NODE_RANK, f"{_JOB}.{spec.name.replace('/', '.')}"
    words = LAUNCHERS[spec.launcher].words(spec, rdzv_id, node_rank, _HEAD, _PORT)
    outer = [] if words and spec.wrapper_per == "rank" else _lines(wrapper)
    groups = [group for group in (container[:shell], container[shell:], *outer, [python]) if group]
    script = list(launch.script_argv(spec, places))
    if words:
        module, name, *options = words
        groups[-1] += [module, name]
        groups += _lines(options)
        end = wrapped_ranks(spec, wrapper, python)
        is_plain_module = is_module(spec) and end == (END_OF_OPTIONS,)
        script = ["-m", END_OF_OPTIONS, *script[1:]] if is_plain_module else [*end, *script]
    return [*groups, *_lines(script)]


def _assignments(variables: Mapping[str, str]) -> list[str]:
    return [" ".join(line) for line in _lines([quoted_option(f"{n}={value}") for n, value in variables.items()])]


def _lines(options: Sequence[str]) -> list[list[str]]:
    lines: list[list[str]] = []
    for option in options:
        if lines and len(" ".join([*lines[-1], option])) <= WIDTH:
            lines[-1].append(option)
        else:
            lines.append([option])
    return lines


# climb.sh


def climb_script(plan: Plan, sources: Sources, secrets: Sequence[str], project: Path, python: Path) -> str:
    """Return the text of climb.sh. It asks for the nodes of the largest scale, for the sum of all time limits.

    secrets: variables that the submitting shell has to have. project: where Snakemake is started. python: the
    workflow's Python here.
    """
    own = {"job-name": "ddp-ladder", "chdir": str(project), "output": f"{plan.results}/climb-%j.log"}
    return render(
        "climb.sh.j2",
        sbatch_options=_directives(sbatch_options(widest(plan.jobs), own)),
        options=[*_snakefile(project), *_settings(sources)],
        **_environment_of(secrets, python),
    )


def _environment_of(secrets: Sequence[str], python: Path) -> dict[str, Any]:
    return {"venv": VENV, "bin": str(python.parent), "secrets": secrets}


# production.sh


def production_script(plan: Plan, sources: Sources, secrets: Sequence[str], project: Path, python: Path) -> str:
    """Return the text of production.sh: a job that is one link of the chain, and submits the next one.

    plan: of the chain. The rest is as in climb_script.
    """
    (job,) = plan.jobs
    own = Path(plan.results, PRODUCTION_SCRIPT)
    name = new_job_name(project / plan.results, str(job.scale))  # by which other starts find its links in the queue
    log = f"{plan.results}/logs/".replace("%", "%%") + "%j.log"
    return render(
        "production.sh.j2",
        name=name,
        sbatch_options=_directives(sbatch_options(job, {"job-name": name, "chdir": str(project), "output": log})),
        command=[str(SCRIPTS / "production.py"), *sources.options, "--link-of", str(own)],
        **_environment_of(secrets, python),
    )


def _snakefile(project: Path) -> list[str]:
    """Return the options of Snakemake that find the workflow and its profile from the project."""
    elsewhere = [] if project.samefile(OWN) else ["--snakefile", str(OWN / "Snakefile")]
    return [*elsewhere, "--profile", profile("allocation")]


def _settings(sources: Sources) -> list[str]:
    config = [] if sources.config == CONFIG else [f"experiment={sources.config}"]
    config += [] if sources.cluster == CLUSTER else [f"cluster={sources.cluster}"]
    config += [f"{key}={json.dumps(value)}" for key, value in sources.overrides.items()]
    return ["--config", *config] if config else []
