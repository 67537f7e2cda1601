"""job.sh: a run as a batch script that anyone can read and submit, without Snakemake and without ddp-ladder. Pure.

It is written for whoever has to say why a job does not run: every part says why it is there. What the processes are
started with comes from ``launch``, so that the script and the measured run cannot drift apart.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.launch import (
    INTERFACE_VARIABLES,
    THREAD_VARIABLES,
    python_command,
    script_argv,
    torchrun,
    training_environment,
)
from ddp_ladder.network import PORTS
from ddp_ladder.nodes import LOCAL_SITE
from ddp_ladder.plan import RunSpec, ScaleJob
from ddp_ladder.software import MODULE_COMMAND, OF_THE_WORKFLOW

# No configured value can hold a NUL, so between two of them stands the name of a shell variable and nothing else.
# MASTER_ADDR and MASTER_PORT are names that the configuration may not set.
_VARIABLES = "job_id MASTER_ADDR MASTER_PORT is_host own_address".split()
_JOB, _HEAD, _PORT, _IS_HOST, _ADDRESS = (f"\0{name}\0" for name in _VARIABLES)

Lines = list[str]


@dataclass(frozen=True)
class Place:
    """Where a run belongs. directory: the run's, relative to the project where it is inside."""

    project: Path
    directory: Path
    binds: tuple[str, ...] = ()  # for the container


def job_script(site: str, job: ScaleJob, spec: RunSpec, place: Place) -> str:
    """The text of job.sh; for the local site a script for plain bash."""
    if site == LOCAL_SITE:
        return _join(_local_header(spec, place), _early_end(spec), *_here(spec, place))
    header = (_slurm_header(job, spec, place), _early_end(spec), _guard())
    if spec.nodes == 1 and spec.launcher == "torchrun":
        return _join(*header, *_software(spec), _environment(spec), *_meeting(spec), _launch(spec, place))
    return _join(*header, *_in_steps(job, spec, place))


def _in_steps(job: ScaleJob, spec: RunSpec, place: Place) -> Iterable[Lines]:
    """What is left to srun, because there are several nodes or several tasks on one."""
    yield ["export job_id", "set -e"]
    yield from _meeting(spec)
    tasks = "node" if spec.launcher == "torchrun" else "GPU"
    yield [f"# From here to the closing brace: what srun starts, once per {tasks}.", "on_each() {"]
    yield from _software(spec)
    yield _environment(spec)
    if spec.nodes > 1:
        yield ["# The interface that this node talks to the others on.", "find_interface", *_interface_exports(spec)]
    yield _launch(spec, place)
    yield ["}", "export -f on_each" + (" find_interface fail" if spec.nodes > 1 else "")]
    yield _srun(job, spec)


def _here(spec: RunSpec, place: Place) -> Iterable[Lines]:
    """On the local site, without Slurm."""
    if spec.nodes > 1:
        message = (
            f"{spec.name} has {spec.nodes} nodes, and a site without Slurm has one: "
            "put a file of config/sites in place of config/cluster.yaml and run: snakemake eject"
        )
        yield [f"echo {_plain(message)} >&2", "exit 1"]
        return
    yield from _software(spec)
    yield _environment(spec)
    yield ["# Tells this start from others on the machine.", "job_id=$$"]
    yield from _meeting(spec)
    if spec.interface == "auto":
        is_mac = 'if [ "$(uname)" = Darwin ]; then own_interface=lo0; fi'
        yield ["# On macOS the loopback has another name.", is_mac, *_interface_exports(spec)]
    yield _launch(spec, place) if spec.launcher == "torchrun" else _launch_all(spec, place)


# Asking Slurm


def sbatch_options(job: ScaleJob, spec: RunSpec, place: Place) -> list[str]:
    """Options of sbatch, one each; what is null in the configuration is not asked for."""
    slurm = job.slurm
    per_node = tasks_per_node(spec)
    log = str(place.directory / "job-%j.log").replace("%", "%%").replace("%%j.log", "%j.log")
    asked: Mapping[str, str | int | None] = {
        "job-name": spec.name.replace("/", "-"),
        "nodes": spec.nodes,
        "ntasks-per-node": per_node,
        "gres": job.gres,
        "cpus-per-task": job.cpus // per_node,
        "mem": None if job.memory_mb is None else f"{job.memory_mb}M",
        "time": job.runtime_min,
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "nodelist": slurm.nodelist,
        "exclude": slurm.exclude,
        "chdir": str(place.project),
        "output": log,
    }
    return [f"--{name}={_plain(str(value))}" for name, value in asked.items() if value is not None] + [
        *slurm.extra,
        "--no-requeue",
    ]


def tasks_per_node(spec: RunSpec) -> int:
    """torchrun is one task that starts the node's processes; with launcher srun each process is a task."""
    return 1 if spec.launcher == "torchrun" else spec.gpus_per_node


def _slurm_header(job: ScaleJob, spec: RunSpec, place: Place) -> Lines:
    return [
        "#!/bin/bash",
        f"# The run {spec.name} as a job of its own, with nothing of Snakemake or ddp-ladder:",
        "#     sbatch job.sh",
        "# ddp-ladder writes this file again when it repeats the run: to change something, edit a copy.",
        "#",
        "# chdir: the paths below are relative to it. no-requeue: a second start would write over what the first one",
        "# wrote.",
        *(f"#SBATCH {option}" for option in sbatch_options(job, spec, place)),
    ]


def _early_end(spec: RunSpec) -> Lines:
    ends = [f"{spec.max_steps} steps"] if spec.max_steps is not None else []
    ends += [f"{spec.max_seconds:g} seconds"] if spec.max_seconds is not None else []
    if not ends:
        return []
    return [
        f"# The measured run was ended after {' or '.join(ends)}. This one trains to its end: it may take more time.",
    ]


def _guard() -> Lines:
    return ["job_id=${SLURM_JOB_ID:?this script is for Slurm: sbatch job.sh}"]


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
        _command(
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


# Without Slurm


def _local_header(spec: RunSpec, place: Place) -> Lines:
    return [
        "#!/bin/bash",
        f"# The run {spec.name} on this machine, with nothing of Snakemake or ddp-ladder:",
        "#     bash job.sh",
        "# ddp-ladder writes this file again when it repeats the run: to change something, edit a copy.",
        "",
        "# The paths below are relative to it.",
        f"cd {_plain(str(place.project))} || exit",
    ]


def _launch_all(spec: RunSpec, place: Place) -> Lines:
    return [
        "# One process per GPU. One that fails ends the script, and the script ends the others.",
        *_told(spec, group_rank="0"),
        "processes=()",
        "trap 'kill \"${processes[@]}\" 2>/dev/null || true' EXIT",
        f"for local_rank in {' '.join(map(str, range(spec.gpus_per_node)))}; do",
        'RANK="$local_rank" LOCAL_RANK="$local_rank" ' + _command(_training(spec, place)) + " &",
        'processes+=("$!")',
        "done",
        'for process in "${processes[@]}"; do wait "$process"; done',
    ]


# The node


def _software(spec: RunSpec) -> Iterable[Lines]:
    """The site's software. ``set -e`` comes after the modules: their own scripts are not written for it."""
    if spec.python is not None or spec.container is not None:
        yield [
            "# The training has a Python of its own: what the submitting shell set for another one would mislead it.",
            f"unset {' '.join(OF_THE_WORKFLOW)}",
        ]
    if spec.modules:
        yield ["# A job's shell is no login shell and may not know `module` yet.", MODULE_COMMAND]
        names = [_plain(name) for name in spec.modules]
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


def _environment(spec: RunSpec) -> Lines:
    return [
        "# What every process is told: ours first, then network.env, workload.env and the variant's env.",
        "# OMP_NUM_THREADS is to hold for all that use threads.",
        f"unset {' '.join(THREAD_VARIABLES)}",
        *(f"export {name}={_plain(value)}" for name, value in training_environment(spec).items()),
    ]


def _interface_exports(spec: RunSpec) -> Lines:
    names = [name for name in INTERFACE_VARIABLES if name not in spec.env]
    return ["export " + " ".join(f'{name}="$own_interface"' for name in names)] if names else []


# Where the processes meet


def _meeting(spec: RunSpec) -> Iterable[Lines]:
    if spec.nodes > 1 or spec.interface != "auto":
        yield ["fail() {", '    echo "$(hostname): $*" >&2', "    exit 1", "}"]
    if spec.nodes == 1:
        yield [
            "# The processes meet on this node.",
            *_find_interface(spec),
            *_interface_exports(spec),
        ]
    else:
        yield from _find_on_several(spec)
    yield [
        "# Where the processes meet. Another job on the same node has another port, all of them below the range that",
        "# outgoing connections take theirs from.",
        'export MASTER_ADDR="$own_address"',
        f'export MASTER_PORT="$(({PORTS.start} + job_id % {len(PORTS)}))"',
    ]


def _find_on_several(spec: RunSpec) -> Iterable[Lines]:
    if not isinstance(spec.interface, str) or spec.interface == "auto":
        yield [
            "# The second node's address tells the first node which of its interfaces leads to the others.",
            'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            'read -r second_address _ < <(getent ahostsv4 "${nodes[1]}") || fail "${nodes[1]} has no IPv4 address"',
            "export second_address",
        ]
    yield [
        "# The interface of the node that runs this, and its address there.",
        "find_interface() {",
        *_indented(_find_interface(spec)),
        "}",
    ]
    yield [
        "# This script runs on the first node of the job. Its name may stand for another network, or for the loopback,",
        "# so the others get the address that it has on the training's own interface.",
        "find_interface",
        'case $own_address in 127.*) fail "$own_interface is the loopback, which no other node reaches" ;; esac',
    ]


def _find_interface(spec: RunSpec) -> Lines:
    """Lines that set own_interface and own_address."""
    if isinstance(spec.interface, str):
        return (
            _automatic(spec) if spec.interface == "auto" else [f"own_interface={_plain(spec.interface)}", *_address()]
        )
    named = {node: name for node, name in spec.interface.items() if name != "auto"}
    return [
        "# network.interface of cluster.yaml.",
        "case $(hostname -s) in",
        *_indented(f"{_plain(node)}) own_interface={_plain(name)} ;;" for node, name in named.items()),
        "    *) own_interface=auto ;;",
        "esac",
        'if [ "$own_interface" = auto ]; then',
        *_indented(_automatic(spec)),
        "else",
        *_indented(_address()),
        "fi",
    ]


def _address() -> Lines:
    return [
        'read -r _ _ _ own_address _ < <(ip -o -4 address show dev "$own_interface") ||',
        '    fail "no IPv4 address on the interface $own_interface"',
        "own_address=${own_address%/*}",
    ]


def _automatic(spec: RunSpec) -> Lines:
    if spec.nodes == 1:
        return ["# The loopback: there is no other node.", "own_interface=lo own_address=127.0.0.1"]
    return [
        "# auto: the interface of the route to the first node, and on the first that to the second.",
        "peer=$MASTER_ADDR",
        'if [ "$SLURM_NODEID" -eq 0 ]; then peer=$second_address; fi',
        'route=$(ip -o -4 route get "$peer")',
        "own_interface=${route#* dev } own_interface=${own_interface%% *}",
        "own_address=${route#* src } own_address=${own_address%% *}",
    ]


# The training


def _launch(spec: RunSpec, place: Place) -> Lines:
    if spec.launcher == "torchrun":
        return _launch_torchrun(spec, place)
    return [
        "# Slurm says which process this is, and the script reads it where torchrun would have put it.",
        'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"',
        *_told(spec, group_rank='"$SLURM_NODEID"'),
        "exec " + _command(_training(spec, place)),
    ]


def _told(spec: RunSpec, group_rank: str) -> Lines:
    """What a process is told that torchrun does not start, besides its own rank."""
    return [f"export WORLD_SIZE={spec.world_size} LOCAL_WORLD_SIZE={spec.gpus_per_node} GROUP_RANK={group_rank}"]


def _launch_torchrun(spec: RunSpec, place: Place) -> Lines:
    lines = ["# torchrun starts a process per GPU and tells each its rank."]
    is_host = "true"
    if spec.nodes > 1:
        is_host = _IS_HOST
        lines += [
            "# is_host: the first node serves the rendezvous; to let them find out by themselves takes name look-ups.",
            'is_host=false; if [ "$SLURM_NODEID" -eq 0 ]; then is_host=true; fi',
        ]
    return [*lines, "exec " + _command(_training(spec, place, is_host))]


def _training(spec: RunSpec, place: Place, is_host: str = "true") -> list[list[str]]:
    """The command that trains, in groups of words that belong on a line."""
    *container, python = python_command(spec, place.binds)
    groups = [list(container), [python]] if container else [[python]]
    if spec.launcher == "torchrun":
        module, name, *options = torchrun(
            spec, f"{_JOB}.{spec.name.replace('/', '.')}", f"{_HEAD}:{_PORT}", is_host, _ADDRESS
        )
        groups[-1] += [module, name]
        groups += [[option] for option in options]
    return [*groups, list(script_argv(spec))]


# Shell text


def _command(groups: Sequence[Sequence[str]]) -> str:
    return " \\\n    ".join(" ".join(_word(word) for word in group) for group in groups)


def _word(text: str) -> str:
    """Quoted for the shell, with the variables that stand between NULs."""
    parts = text.split("\0")
    if len(parts) == 1:
        return _plain(text)
    quoted = [f"${{{part}}}" if k % 2 else re.sub(r'([\\"$`])', r"\\\1", part) for k, part in enumerate(parts)]
    return f'"{"".join(quoted)}"'


def _indented(lines: Iterable[str]) -> Lines:
    return [f"    {line}" for line in lines]


def _plain(text: str) -> str:
    return shlex.quote(text)


def _join(*sections: Iterable[str]) -> str:
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text) + "\n"
