"""How job.sh starts the training: under torchrun, as a task of srun, or all processes by itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.launch import python_command, script_argv, torchrun
from ddp_ladder.plan import RunSpec
from ddp_ladder.shell_text import Lines, command_line

# No configured value can hold a NUL, so between two of them stands the name of a shell variable and nothing else.
# MASTER_ADDR and MASTER_PORT are names that the configuration may not set.
_VARIABLES = "job_id MASTER_ADDR MASTER_PORT is_host own_address".split()
_JOB, _HEAD, _PORT, _IS_HOST, _ADDRESS = (f"\0{name}\0" for name in _VARIABLES)


def launch(spec: RunSpec, binds: Sequence[str]) -> Lines:
    """What becomes torchrun, the one process of a task of srun, or the script alone. binds: for the container."""
    if spec.launcher == "python":
        return ["# The script alone: no launcher, no process group.", "exec " + command_line(_training(spec, binds))]
    if spec.launcher == "torchrun":
        return _launch_torchrun(spec, binds)
    return [
        "# Slurm says which process this is, and the script reads it where torchrun would have put it.",
        'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"',
        *_told(spec, group_rank='"$SLURM_NODEID"'),
        "exec " + command_line(_training(spec, binds)),
    ]


def _launch_torchrun(spec: RunSpec, binds: Sequence[str]) -> Lines:
    lines = ["# torchrun starts a process per GPU and tells each its rank."]
    is_host = "true"
    if spec.nodes > 1:
        is_host = _IS_HOST
        lines += [
            "# is_host: the first node serves the rendezvous; to let them find out by themselves takes name look-ups.",
            'is_host=false; if [ "$SLURM_NODEID" -eq 0 ]; then is_host=true; fi',
        ]
    return [*lines, "exec " + command_line(_training(spec, binds, is_host))]


def launch_all(spec: RunSpec, binds: Sequence[str]) -> Lines:
    """Every process of this machine, where neither torchrun nor srun starts them."""
    return [
        "# One process per GPU. One that fails ends the script, and the script ends the others.",
        *_told(spec, group_rank="0"),
        "processes=()",
        "trap 'kill \"${processes[@]}\" 2>/dev/null || true' EXIT",
        f"for local_rank in {' '.join(map(str, range(spec.gpus_per_node)))}; do",
        'RANK="$local_rank" LOCAL_RANK="$local_rank" ' + command_line(_training(spec, binds)) + " &",
        'processes+=("$!")',
        "done",
        'for process in "${processes[@]}"; do wait "$process"; done',
    ]


def _told(spec: RunSpec, group_rank: str) -> Lines:
    """What a process is told that torchrun does not start, besides its own rank."""
    return [f"export WORLD_SIZE={spec.world_size} LOCAL_WORLD_SIZE={spec.gpus_per_node} GROUP_RANK={group_rank}"]


def _training(spec: RunSpec, binds: Sequence[str], is_host: str = "true") -> list[list[str]]:
    """The command that trains, in groups of words that belong on a line."""
    *container, python = python_command(spec, binds)
    groups = [list(container), [python]] if container else [[python]]
    if spec.launcher == "torchrun":
        module, name, *options = torchrun(
            spec, f"{_JOB}.{spec.name.replace('/', '.')}", f"{_HEAD}:{_PORT}", is_host, _ADDRESS
        )
        groups[-1] += [module, name]
        groups += [[option] for option in options]
    return [*groups, list(script_argv(spec))]
