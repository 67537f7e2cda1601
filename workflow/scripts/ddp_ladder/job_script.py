"""job.sh: a run as a batch script that anyone can read and submit, without Snakemake and without ddp-ladder. Pure.

It is written for whoever has to say why a job does not run: every part says why it is there. What the processes are
started with comes from ``launch``, so that the script and the measured run cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddp_ladder.job_script_header import Place, early_end, guard, header, tasks_per_node
from ddp_ladder.job_script_meeting import interface_exports, meeting
from ddp_ladder.job_script_training import by_itself, launch
from ddp_ladder.launch import THREAD_VARIABLES, is_module, python_path, training_environment
from ddp_ladder.plan import RunSpec, ScaleJob
from ddp_ladder.shell_text import Lines, command_line, indented, joined, quote
from ddp_ladder.software import MODULE_COMMAND, OF_THE_WORKFLOW


def job_script(job: ScaleJob, spec: RunSpec, place: Place) -> str:
    """The text of job.sh: for sbatch, and for one node also for bash where there is no Slurm."""
    first = (header(job, spec, place), early_end(spec), guard(spec, place))
    if spec.launcher == "python":
        return joined(*first, *_software(spec), _environment(spec, place), launch(spec, place))
    if spec.nodes == 1 and spec.launcher == "torchrun":
        return joined(*first, *_software(spec), _environment(spec, place), *meeting(spec), launch(spec, place))
    return joined(*first, *_in_steps(job, spec, place))


def _in_steps(job: ScaleJob, spec: RunSpec, place: Place) -> Iterable[Lines]:
    """What is left to srun, because there are several nodes or several tasks on one."""
    yield ["export job_id", "set -e"]
    yield from meeting(spec)
    tasks = "node" if spec.launcher == "torchrun" else "GPU"
    yield [f"# From here to the closing brace: what srun starts, once per {tasks}.", "on_each() {"]
    yield from _software(spec)
    yield _environment(spec, place)
    if spec.nodes > 1:
        yield ["# The interface that this node talks to the others on.", "find_interface", *interface_exports(spec)]
    yield launch(spec, place)
    yield ["}", "export -f on_each" + (" find_interface fail" if spec.nodes > 1 else "")]
    if spec.nodes > 1:
        yield _srun(job, spec)
    else:
        steps = "\n".join(_srun(job, spec)).splitlines()
        yield ['if [ -n "$SLURM_JOB_ID" ]; then', *indented(steps), "else", *indented(by_itself(spec)), "fi"]


def _srun(job: ScaleJob, spec: RunSpec) -> Lines:
    per_node = tasks_per_node(spec)
    why = (
        "# One torchrun on each node, which starts a process per GPU."
        if spec.launcher == "torchrun"
        else "# One process per GPU. Each sees all GPUs of its node, as NCCL wants, and takes that of its LOCAL_RANK."
    )
    return [
        why,
        "# Counts in full: srun has no --cpus-per-task from sbatch since Slurm 22.05. kill-on-bad-exit: without the",
        "# process that failed the others would wait. mpi=none: torch brings its own communication.",
        command_line(
            [
                ["srun"],
                [f"--nodes={spec.nodes}"],
                [f"--ntasks={spec.nodes * per_node}"],
                [f"--ntasks-per-node={per_node}"],
                [f"--cpus-per-task={job.cpus // per_node}"],
                ["--distribution=block"],
                ["--kill-on-bad-exit=1"],
                ["--mpi=none"],
                ["bash", "-c", "on_each"],
            ]
        ),
    ]


def _software(spec: RunSpec) -> Iterable[Lines]:
    """The site's software. ``set -e`` comes after the modules: their own scripts are not written for it."""
    if spec.python is not None or spec.container is not None:
        yield [
            "# The training has a Python of its own: what the submitting shell set for another one would mislead it.",
            f"unset {' '.join(OF_THE_WORKFLOW)}",
        ]
    if spec.modules:
        yield ["# A job's shell is no login shell and may not know `module` yet.", MODULE_COMMAND]
        names = [quote(name) for name in spec.modules]
        yield [
            "# Anew, should the submitting shell have loaded them: what they set may have been taken away since.",
            f"module unload {' '.join(reversed(names))} >/dev/null 2>&1",
            "# Without one of them the training would start with something else, or not at all.",
            *(f"module load {name} || exit 1" for name in names),
        ]
    yield [
        "# The first command that fails ends the job. Neither -u nor pipefail: few modules and set-ups bear them.",
        "set -e",
    ]
    if spec.setup.strip():
        # An empty line after it: the snippet's last line may end with a backslash.
        yield [
            "# software.setup of cluster.yaml, as it is there.",
            spec.setup.rstrip("\n"),
            "",
            "# End of software.setup.",
        ]


def _environment(spec: RunSpec, place: Place) -> Lines:
    return [
        "# What every process is told: ours first, then network.env, workload.env and the variant's env.",
        "# OMP_NUM_THREADS is to hold for all that use threads.",
        f"unset {' '.join(THREAD_VARIABLES)}",
        *(f"export {name}={quote(value)}" for name, value in _training_environment(spec, place).items()),
        *_module_path(spec, place),
    ]


def _training_environment(spec: RunSpec, place: Place) -> dict[str, str]:
    env = training_environment(spec, place.places)
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = python_path(spec, place.places, env["PYTHONPATH"])
    return env


def _module_path(spec: RunSpec, place: Place) -> Lines:
    """Where the module is looked for, unless the configuration has a PYTHONPATH, which then says so itself."""
    if spec.directory is None or not is_module(spec) or "PYTHONPATH" in spec.env:
        return []
    return [
        "# The training starts in another directory, and its module is in this one.",
        f"export PYTHONPATH={quote(str(place.project))}${{PYTHONPATH:+:$PYTHONPATH}}",
    ]
