from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.node.launch import Places, processes, python_command
from ddp_ladder.platform.launchers import Rendezvous
from ddp_ladder.run.agent import ranks_descend
from make_records import make_spec

MEET = Rendezvous("job7.1.default.weak", "10.0.0.1", 20_123)
PLACES = Places(Path("/project"), Path("/project/results/runs/default/weak/1x2/r1"))


def engine_words(engine: str, **keys: Any) -> tuple[str, ...]:
    """The command of a container, without the shell that passes the environment on."""
    container = {"image": "image", "engine": engine, **keys}
    spec = make_spec("1x2", device="cuda", python="python", container=container)
    words = python_command(spec, PLACES, ("/project", "/a:/b:ro"))
    return words[4:] if words[0] == "bash" else words


def test_each_engine_gets_its_own_words() -> None:  # fmt: skip
    """enroot: doc/cmd/start.md and doc/image-format.md of NVIDIA/enroot; its mounts as args.c of NVIDIA/pyxis has them.
    podman-hpc: etc/modules.d/gpu.yaml and nccl.yaml of NERSC/podman-hpc. shifter: src/shifter.c of NERSC/shifter, which
    refuses volumes on the site's own file systems. edf: container-engine/run.md of CSCS's documentation.
    Read in 2026-11."""
    bound = ("--bind", "/project", "--bind", "/a:/b:ro")
    assert engine_words("singularity", gpus="rocm") == ("singularity", "exec", "--rocm", *bound, "image", "python")
    assert engine_words("apptainer", gpus=None) == ("apptainer", "exec", *bound, "image", "python")
    mounts = ("--mount=/project:/project:none:x-create=auto,rbind", "--mount=/a:/b:none:x-create=auto,rbind,ro")
    begun = ("--rw", "image", "env", "--chdir", "/project", "python")
    assert engine_words("enroot", args=["--rw"]) == (*mounts, *begun)
    host = ("--rm", "--network=host", "--ipc=host", "--pid=host")
    inside = ("--volume=/project:/project", "--volume=/a:/b:ro", "--workdir=/project")
    assert engine_words("podman-hpc", args=["--nccl"]) == (*host, "--gpu", *inside, "--nccl", "image", "python")
    assert engine_words("podman-hpc", gpus=None) == (*host, *inside, "image", "python")
    of_shifter = ("--image=image", "--module=gpu", "--volume=/a:/b:ro", "--workdir=/project", "--env=A=1")
    assert engine_words("shifter", args=["--env=A=1"]) == ("shifter", *of_shifter, "python")
    asked = ("--environment=image", "--container-writable")
    assert engine_words("edf", args=[asked[1]]) == ("/project", "2", *asked, "python")


# As `enroot start` and `podman run`: of the environment only what --env names, and a directory of its own.
STUB = """#!/bin/bash
shift
kept=() directory=/
while [[ $1 == --* ]]; do
    case $1 in
    --env=*) name=${1#--env=} && kept+=("$name=${!name}") ;;
    --workdir=*) directory=${1#--workdir=} ;;
    esac
    shift
done
shift
cd "$directory" && exec env --ignore-environment PATH=/of/the/image:/usr/bin:/bin "${kept[@]}" "$@"
"""
SEEN = "import os; print(os.getcwd(), os.environ['A'], os.environ['PATH'][:13], 'LD_LIBRARY_PATH' in os.environ)"


@pytest.mark.parametrize("engine", ["enroot", "podman-hpc"])
def test_environment_and_directory_reach_the_script_with_a_stub_of_the_engine(engine: str, tmp_path: Path) -> None:
    (tmp_path / engine).write_text(STUB)
    (tmp_path / engine).chmod(0o755)
    spec = make_spec(launcher="python", python=sys.executable, container={"image": "image", "engine": engine})
    (process,) = processes(spec, Places(tmp_path, tmp_path / "run"), 0, MEET, command=("-c", SEEN))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "A": "it's $B\n2", "LD_LIBRARY_PATH": "/of/the/host"}
    done = subprocess.run(process.argv, env=env, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout == f"{tmp_path} it's $B\n2 /of/the/image False\n", done.stderr


# As srun of a job step: its task has variables of its own, and starts where the image says.
SRUN = """#!/bin/bash
printf '%s\\n' "${!SLURM_@}" >>seen
while [[ $1 == --* ]]; do
    echo "$1" >>seen
    shift
done
export SLURM_PROCID=0 SLURM_NTASKS=1
taskset --pid --cpu-list "0-$(($(nproc --all) - 1))" $$ >>seen.cores
cd / && exec "$@"
"""
SEEN_IN_STEP = "import os; print(os.getcwd(), os.environ['SLURM_PROCID'], os.environ['SLURM_NTASKS'], os.environ['A'], \
len(os.sched_getaffinity(0)))"


def test_a_step_of_the_container_engine_has_the_cores_and_the_variables_of_the_outer_one(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    container = {"image": "./my edf.toml", "engine": "edf", "args": ["--x"]}
    spec = make_spec(launcher="python", python=sys.executable, container=container)
    (process,) = processes(spec, Places(tmp_path, tmp_path / "run"), 0, MEET, command=("-c", SEEN_IN_STEP))
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {"PATH": path, "A": "it's $B\n2", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "42"}
    argv = ("taskset", "--cpu-list", "0", *process.argv)

    def started(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env={**env, **more}, capture_output=True, text=True, check=False, cwd=tmp_path)

    done = started(SLURMD_NODENAME="node1")
    assert done.stdout == f"{tmp_path} 3 8 it's $B\n2 1\n", done.stderr
    own = ["--overlap", "--nodes=1", "--ntasks=1", "--nodelist=node1", "--mpi=none", "--cpu-bind=none"]
    assert (tmp_path / "seen").read_text().splitlines() == ["SLURM_JOB_ID", *own, "--environment=./my edf.toml", "--x"]
    assert "no job of Slurm" in started().stderr
    assert not ranks_descend(spec)
    assert ranks_descend(spec.replace(container=None))
