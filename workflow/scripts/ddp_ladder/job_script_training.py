"""How job.sh starts the training: under torchrun, as a task of srun, or all processes by itself. Pure."""

from __future__ import annotations

from ddp_ladder.job_script_header import Place
from ddp_ladder.launch import END_OF_OPTIONS, is_module, python_command, script_argv, torchrun
from ddp_ladder.plan import RunSpec
from ddp_ladder.shell_text import Lines, command_line, variable

# MASTER_ADDR and MASTER_PORT are names that the configuration may not set.
_VARIABLES = "job_id MASTER_ADDR MASTER_PORT SLURM_NODEID".split()
_JOB, _HEAD, _PORT, _NODE_RANK = map(variable, _VARIABLES)


def launch(spec: RunSpec, place: Place) -> Lines:
    """What becomes torchrun, the one process of a task of srun, or the script alone."""
    start = _enter_directory(spec, place)
    if spec.launcher == "python":
        why = "# The script alone: no launcher, no process group."
        return [*start, why, "exec " + command_line(_training(spec, place))]
    if spec.launcher == "torchrun":
        return [
            *start,
            "# torchrun starts a process per GPU and tells each its rank, in the order of the job's nodes.",
            "exec " + command_line(_training(spec, place)),
        ]
    return [
        *start,
        "# Slurm says which process this is, and the script reads it where torchrun would have put it.",
        'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"',
        *_told(spec, group_rank='"$SLURM_NODEID"'),
        "exec " + command_line(_training(spec, place)),
    ]


def _enter_directory(spec: RunSpec, place: Place) -> Lines:
    """Make workload.directory and go there; a container's engine enters it by itself."""
    if spec.directory is None:
        return []
    working = _working(spec, place)
    why = "# The training starts here (workload.directory)"
    return [
        f"{why}: a directory of this start's own, without what another one left."
        if _is_own(spec, place)
        else f"{why}.",
        command_line([["mkdir", "-p", working]]),
        *([] if spec.container else [command_line([["cd", working]])]),
    ]


def _is_own(spec: RunSpec, place: Place) -> bool:
    return place.places.is_own(spec)


def _working(spec: RunSpec, place: Place) -> str:
    """The measured run's working directory; where that is its own, another one beside it for each start."""
    places = place.places
    working = places.working(spec)
    if not _is_own(spec, place):
        return str(working)
    return str(places.own.with_name(f"{places.own.name}-{_JOB}") / working.relative_to(places.own))


def by_itself(spec: RunSpec) -> Lines:
    """Every process of this machine, numbered as srun would, where there is no Slurm."""
    return [
        "# Without Slurm. One process that fails ends the script, and the script ends the others.",
        "processes=()",
        "trap 'kill \"${processes[@]}\" 2>/dev/null || true' EXIT",
        f"for k in {' '.join(map(str, range(spec.gpus_per_node)))}; do",
        "    SLURM_PROCID=$k SLURM_LOCALID=$k SLURM_NODEID=0 on_each &",
        '    processes+=("$!")',
        "done",
        'for process in "${processes[@]}"; do wait "$process"; done',
    ]


def _told(spec: RunSpec, group_rank: str) -> Lines:
    """What a process is told that torchrun does not start, besides its own rank."""
    return [f"export WORLD_SIZE={spec.world_size} LOCAL_WORLD_SIZE={spec.gpus_per_node} GROUP_RANK={group_rank}"]


def _training(spec: RunSpec, place: Place) -> list[list[str]]:
    """The command that trains, in groups of words that belong on a line."""
    *container, python = python_command(spec, place.places, place.binds, _working(spec, place))
    groups = [list(container), [python]] if container else [[python]]
    script = list(script_argv(spec, place.places))
    if spec.launcher == "torchrun":
        node_rank = "0" if spec.nodes == 1 else _NODE_RANK
        module, name, *options = torchrun(spec, f"{_JOB}.{spec.name.replace('/', '.')}", node_rank, _HEAD, _PORT)
        groups[-1] += [module, name]
        groups += [[option] for option in options]
        script = ["-m", END_OF_OPTIONS, *script[1:]] if is_module(spec) else [END_OF_OPTIONS, *script]
    return [*groups, script]
