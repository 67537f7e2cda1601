"""job.sh: a run as a batch script that needs neither Snakemake nor ddp-ladder.

Its text is workflow/templates/job.sh.j2. The launch lines come from ``launch``, so that the script and the measured run
stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.common.files import RunDirectory, write_atomically
from ddp_ladder.job_script.sbatch_header import sbatch_options
from ddp_ladder.job_script.shell_text import command_line, render, variable
from ddp_ladder.node.launch import (
    END_OF_OPTIONS,
    INTERFACE_VARIABLES,
    THREAD_VARIABLES,
    Places,
    is_module,
    python_command,
    python_path,
    script_argv,
    torchrun,
    training_environment,
)
from ddp_ladder.node.network import PORTS
from ddp_ladder.node.software import WORKFLOW_VARIABLES, container_binds
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT
from ddp_ladder.slurm.job_step import NO_JOB_OF_SLURM, step_variables, task_variables

# MASTER_ADDR and MASTER_PORT are names that the configuration may not set.
_VARIABLES = "job_id MASTER_ADDR MASTER_PORT SLURM_NODEID".split()
_JOB, _HEAD, _PORT, _NODE_RANK = map(variable, _VARIABLES)


def write_job_script(job: ScaleJob, spec: RunSpec, directory: RunDirectory) -> Path:
    """Write job.sh into the run's directory; the working directory is the project. Return its path."""
    places = Places.here(directory.path)
    write_atomically(directory.job_script, job_script(job, spec, places, container_binds(spec, places)), mode=0o777)
    return directory.job_script


def job_script(job: ScaleJob, spec: RunSpec, places: Places, binds: Sequence[str] = ()) -> str:
    """Return the text of job.sh: for sbatch, and with one node also for bash without Slurm.

    binds: directories to bind into the container, if there is one.
    """
    per_node = tasks_per_node(spec)
    return render(
        "job.sh.j2",
        run=spec,
        project=str(places.start),
        sbatch_options=_sbatch_options(job, spec, places),
        early_ends=_early_ends(spec),
        tasks_per_node=per_node,
        cpus_per_task=job.cpus // per_node,
        of_the_workflow=WORKFLOW_VARIABLES,
        thread_variables=THREAD_VARIABLES,
        environment=_environment(spec, places),
        secrets=[name for name, value in spec.env.items() if value == FROM_ENVIRONMENT],
        nccl_warnings=spec.backend == "nccl" and "NCCL_DEBUG" not in spec.env,
        module_path=_module_path(spec, places),
        ports=PORTS,
        interface_exports=_interface_exports(spec),
        directory=_working(spec, places) if spec.directory is not None else None,
        directory_is_own=places.is_own(spec),
        training=command_line(_training(spec, places, binds)),
        no_job_of_slurm=NO_JOB_OF_SLURM,
        step_variables=step_variables(spec, variable("simulated"), [variable("HOSTNAME")]),
        task_variables=" ".join(f"{name}={value}" for name, value in task_variables("$k", "$k", 0).items()),
    )


def _sbatch_options(job: ScaleJob, spec: RunSpec, places: Places) -> list[str]:
    per_node = tasks_per_node(spec)
    inside = places.run.is_relative_to(places.start)  # then the line stays right if the project is moved
    directory = places.run.relative_to(places.start) if inside else places.run
    log = f"{directory}/job-".replace("%", "%%") + "%j.log"
    asked: dict[str, str | int | None] = {
        "job-name": spec.name.replace("/", "-"),
        "nodes": spec.nodes,
        "ntasks-per-node": per_node,
        "gres": job.gres,
        "cpus-per-task": job.cpus // per_node,
        "mem": None if job.memory_mb is None else f"{job.memory_mb}M",
        "time": job.runtime_min,
    }
    return sbatch_options(asked, job.slurm, {"chdir": str(places.start), "output": log})


def tasks_per_node(spec: RunSpec) -> int:
    """Return 1 for torchrun, which starts the node's processes; with launcher srun each process is a task."""
    return spec.gpus_per_node if spec.launcher == "srun" else 1


def _early_ends(spec: RunSpec) -> list[str]:
    """Return the limits after which the measured run was ended; job.sh has none of them."""
    ends = [f"{spec.max_steps} steps"] if spec.max_steps is not None else []
    return [*ends, f"{spec.max_seconds:g} seconds"] if spec.max_seconds is not None else ends


def _environment(spec: RunSpec, places: Places) -> dict[str, str]:
    env = training_environment(spec, places)
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = python_path(spec, places, env["PYTHONPATH"])
    return {name: value for name, value in env.items() if value != FROM_ENVIRONMENT}


def _module_path(spec: RunSpec, places: Places) -> str | None:
    """Return the search path of the module; None if none is needed, or the configuration sets PYTHONPATH itself."""
    if spec.directory is None or not is_module(spec) or "PYTHONPATH" in spec.env:
        return None
    return str(places.start)


def _interface_exports(spec: RunSpec) -> str:
    """Return the line that exports own_interface to the back ends, without variables that the configuration sets."""
    names = [name for name in INTERFACE_VARIABLES if name not in spec.env]
    return " ".join(["export", *(f'{name}="$own_interface"' for name in names)]) if names else ""


def _working(spec: RunSpec, places: Places) -> str:
    """Return the measured run's working directory; if that is its own, a new one beside it for each start."""
    working = places.working(spec)
    if not places.is_own(spec):
        return str(working)
    return str(places.own.with_name(f"{places.own.name}-{_JOB}") / working.relative_to(places.own))


def _training(spec: RunSpec, places: Places, binds: Sequence[str]) -> list[list[str]]:
    """Return the command that trains, in groups of words, one group a line."""
    *container, python = python_command(spec, places, binds, _working(spec, places))
    groups = [list(container), [python]] if container else [[python]]
    script = list(script_argv(spec, places))
    if spec.launcher == "torchrun":
        node_rank = "0" if spec.nodes == 1 else _NODE_RANK
        module, name, *options = torchrun(spec, f"{_JOB}.{spec.name.replace('/', '.')}", node_rank, _HEAD, _PORT)
        groups[-1] += [module, name]
        groups += [[option] for option in options]
        script = ["-m", END_OF_OPTIONS, *script[1:]] if is_module(spec) else [END_OF_OPTIONS, *script]
    return [*groups, script]
