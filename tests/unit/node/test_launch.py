from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.node.launch import (
    INSTRUMENT,
    THREAD_VARIABLES,
    Places,
    node_environment,
    processes,
    python_command,
    script_argv,
)
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.launchers.launcher import Rendezvous
from ddp_ladder.platform.launchers.torchrun import TORCHRUN
from make_records import make_spec

MEET = Rendezvous("job7.1.default.weak", "10.0.0.1", 20_123)
PLACES = Places(Path("/project"), Path("/project/results/runs/default/weak/1x2/r1"))
SCRIPT = (str(INSTRUMENT), "workflow/workloads/mnist.py", "--batch-size", "64")


def torchrun_line(node_rank: int, shape: tuple[int, int]) -> tuple[str, ...]:
    return (
        str(TORCHRUN),
        str(PLACES.run / f"nodes/failed{node_rank}.json"),
        "-m",
        "torch.distributed.run",
        f"--nnodes={shape[0]}",
        f"--node-rank={node_rank}",
        f"--nproc-per-node={shape[1]}",
        "--max-restarts=0",
        "--rdzv-backend=static",
        "--rdzv-id=job7.1.default.weak",
        "--rdzv-conf=timeout=300",
        "--master-addr=10.0.0.1",
        "--master-port=20123",
        "--",
        *SCRIPT,
    )


def test_torchrun_on_one_node_and_on_two() -> None:
    (process,) = processes(make_spec("1x2"), PLACES, 0, MEET)
    assert process.argv == (sys.executable, *torchrun_line(0, (1, 2)))
    assert process.env == {"PET_LOG_DIR": str(PLACES.run / "nodes/torchrun0")}
    assert processes(make_spec("1x2", env={"PET_TEE": "3"}), PLACES, 0, MEET)[0].env == {}  # torchrun's logs stay
    for node_rank in (0, 1):
        (process,) = processes(make_spec("2x1", python="/opt/python"), PLACES, node_rank, MEET)
        assert process.argv == ("/opt/python", *torchrun_line(node_rank, (2, 1)))


def test_srun_starts_one_process_per_gpu() -> None:
    spec = make_spec("2x2", launcher="srun")
    started = [process for node in (0, 1) for process in processes(spec, PLACES, node, MEET)]
    assert [process.argv for process in started] == [(sys.executable, *SCRIPT)] * 4
    common = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20123",
    }
    assert [process.env for process in started] == [
        {**common, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"},
        {**common, "RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0"},
        {**common, "RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1"},
        {**common, "RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1"},
    ]


def test_without_slurm_each_process_gets_the_variables_of_srun() -> None:
    """tests/slurm/test_launchers.py compares the whole of it with what a real srun tells."""
    spec = make_spec("2x2", launcher="srun")
    alone, variables = (
        [process.env for node in (0, 1) for process in processes(spec, PLACES, node, MEET, (), nodes)]
        for nodes in ((), ("laptop", "laptop"))
    )
    places = [tuple(env[f"SLURM_{name}"] for name in ("PROCID", "LOCALID", "NODEID")) for env in variables]
    assert places == [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")]
    assert {(env["SLURM_NTASKS"], env["SLURM_NNODES"]) for env in variables} == {("4", "2")}
    assert {env["SLURM_JOB_NODELIST"] for env in variables} == {"laptop,laptop"}
    assert len({env["SLURM_JOB_ID"] for env in variables}) == 1
    assert not {name for env in alone for name in env if name.startswith("SLURM_")}  # srun itself has told them
    torchrun = make_spec("2x2", launcher="torchrun")
    assert "SLURM_PROCID" not in processes(torchrun, PLACES, 0, MEET, (), ("laptop", "laptop"))[0].env


CONTAINER = {"image": "/images/a b.sif", "engine": "apptainer", "binds": [], "args": ["--env", "A=$(x)"]}


def test_torchrun_runs_inside_the_container() -> None:
    spec = make_spec("1x2", device="cuda", python="/opt/python", container=CONTAINER)
    (process,) = processes(spec, PLACES, 0, MEET, ("/project", "/a:/b:ro"))
    engine = ("apptainer", "exec", "--nv", "--bind", "/project", "--bind", "/a:/b:ro", "--env", "A=$(x)")
    assert process.argv == (*engine, "/images/a b.sif", "/opt/python", *torchrun_line(0, (1, 2)))


def engine_words(engine: str, **keys: Any) -> tuple[str, ...]:
    """The command of a container, without the shell that passes the environment on."""
    container = {"image": "image", "engine": engine, **keys}
    spec = make_spec("1x2", device="cuda", python="python", container=container)
    words = python_command(spec, PLACES, ("/project", "/a:/b:ro"))
    return words[4:] if words[0] == "bash" else words


def test_each_engine_gets_its_own_words() -> None:
    """enroot: doc/cmd/start.md and doc/image-format.md of NVIDIA/enroot; its mounts as args.c of NVIDIA/pyxis has them.
    podman-hpc: etc/modules.d/gpu.yaml and nccl.yaml of NERSC/podman-hpc. Read in 2026-11."""
    bound = ("--bind", "/project", "--bind", "/a:/b:ro")
    assert engine_words("singularity", gpus="rocm") == ("singularity", "exec", "--rocm", *bound, "image", "python")
    assert engine_words("apptainer", gpus=None) == ("apptainer", "exec", *bound, "image", "python")
    assert engine_words("enroot", args=["--rw"]) == (
        "--mount=/project:/project:none:x-create=auto,rbind", "--mount=/a:/b:none:x-create=auto,rbind,ro",
        "--rw", "image", "env", "--chdir", "/project", "python",
    )  # fmt: skip
    host = ("--rm", "--network=host", "--ipc=host", "--pid=host")
    inside = ("--volume=/project:/project", "--volume=/a:/b:ro", "--workdir=/project")
    assert engine_words("podman-hpc", args=["--nccl"]) == (*host, "--gpu", *inside, "--nccl", "image", "python")
    assert engine_words("podman-hpc", gpus=None) == (*host, *inside, "image", "python")


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


def test_torchrun_binds_ranks_near_their_gpus() -> None:
    (process,) = processes(make_spec("1x2", device="cuda", numa_binding="exclusive"), PLACES, 0, MEET)
    (place,) = [place for place, word in enumerate(process.argv) if word == "--numa-binding=exclusive"]
    assert process.argv[place - 1] == "--nproc-per-node=2"


ELSEWHERE: dict[str, Any] = {
    "directory": "results/runs/default/weak/1x2/r1/work",
    "data_dir": "data",
    "args_template": ("--data={data_dir}", "{run_dir}/checkpoint", "{start_dir}/conf.yaml", "notes.txt", "{lr}"),
    "lr": 0.1,
}


def test_in_another_directory_every_path_of_ours_is_absolute() -> None:
    spec = make_spec("1x2", script="code/train.py", python=".venv/bin/python", **ELSEWHERE)
    assert script_argv(spec, PLACES) == (
        "/project/code/train.py", "--data=/project/data", f"{PLACES.run}/checkpoint", "/project/conf.yaml",
        "notes.txt", "0.1",
    )  # fmt: skip
    (process,) = processes(spec, PLACES, 0, MEET)
    assert process.argv[0] == "/project/.venv/bin/python"
    by_name = make_spec("1x2", python="python3", **ELSEWHERE)
    assert processes(by_name, PLACES, 0, MEET)[0].argv[0] == "python3"
    assert PLACES.working(spec) == PLACES.run / "work"
    assert PLACES.is_own(spec)
    variables = {"TRACE": "{run_dir}/trace", "DATA": "{data_dir}", "NOTES": "notes.txt", "N": "{nodes} * 2"}
    env = environment(make_spec("1x2", env_template=variables, **ELSEWHERE))
    seen = {name: env[name] for name in variables}
    assert seen == {"TRACE": f"{PLACES.run}/trace", "DATA": "/project/data", "NOTES": "notes.txt", "N": "2"}
    assert not PLACES.is_own(make_spec(directory="/scratch"))
    assert not PLACES.is_own(make_spec())
    assert PLACES.working(make_spec()) == Path("/project")


def test_a_container_is_entered_in_the_working_directory() -> None:
    spec = make_spec(
        "1x2", container={**CONTAINER, "image": "a.sif", "args": []}, python="venv/bin/python", **ELSEWHERE
    )
    (process,) = processes(spec, PLACES, 0, MEET, ("/project",))
    inside = (f"{PLACES.run}/work", "a.sif", "venv/bin/python")
    assert process.argv[:7] == ("apptainer", "exec", "--bind", "/project", "--pwd", *inside[:2])
    assert process.argv[7] == inside[2]


@pytest.mark.parametrize(
    ("script", "given", "seen"),
    [
        ("train.py", {}, None),
        ("train.py", {"PYTHONPATH": "src::/lib"}, "/project/src:/lib"),
        ("-m package.train", {}, "/project"),
        ("-m package.train", {"PYTHONPATH": "src"}, "/project:/project/src"),
    ],
)
def test_python_finds_in_another_directory_what_it_found_before(
    script: str, given: dict[str, str], seen: str | None
) -> None:
    assert environment(make_spec(script=script, **ELSEWHERE), **given).get("PYTHONPATH") == seen
    here = environment(make_spec(script=script), **given)
    assert here.get("PYTHONPATH") == given.get("PYTHONPATH")


def environment(spec: RunSpec, **inherited: str) -> dict[str, str]:
    return node_environment(spec, PLACES, inherited, Path("/results/run.json"), "ib0", 1_800_000_000.25)


def test_the_whole_environment() -> None:
    assert environment(make_spec(device="cuda", threads_per_rank=8), HOME="/home/u") == {
        "HOME": "/home/u",
        "OMP_NUM_THREADS": "8",
        "PYTHONUNBUFFERED": "1",
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "NCCL_DEBUG": "WARN",
        "NCCL_DEBUG_FILE": f"{PLACES.run}/nodes/nccl.%h.%p.log",
        "DDP_LADDER_RUN": "/results/run.json",
        "DDP_LADDER_LAUNCHED_AT": "1800000000.25",
    }


def test_nccl_writes_its_warnings_to_a_file_for_each_process() -> None:
    spec = make_spec(device="cuda", backend="nccl")
    percent = node_environment(spec, Places(Path("/"), Path("/a%h/r1")), {}, Path("run.json"), "lo", 0.0)
    assert (percent["NCCL_DEBUG"], percent["NCCL_DEBUG_FILE"]) == ("WARN", "/a%%h/r1/nodes/nccl.%h.%p.log")
    assert not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & environment(make_spec(device="cuda", backend="gloo")).keys()


def test_the_users_environment_wins_over_ours_and_ours_over_snakemakes() -> None:
    ours = environment(make_spec(threads_per_rank=2), CUDA_VISIBLE_DEVICES="2", **dict.fromkeys(THREAD_VARIABLES, "64"))
    assert (ours["OMP_NUM_THREADS"], ours["CUDA_VISIBLE_DEVICES"]) == ("2", "")  # a CPU site hides the GPUs
    assert not set(THREAD_VARIABLES) & set(ours)
    wanted = {
        "OMP_NUM_THREADS": "5",
        "MKL_NUM_THREADS": "6",
        "NCCL_SOCKET_IFNAME": "eth1",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    spec = make_spec(env={**wanted, "DDP_LADDER_RUN": "/other"}, backend="nccl")
    env = environment(spec, MKL_NUM_THREADS="64", DDP_LADDER_RUN="/older")
    assert {key: env[key] for key in wanted} == wanted
    assert env["DDP_LADDER_RUN"] == "/results/run.json"  # what identifies the run stays


def test_the_plain_baseline_is_the_script_alone() -> None:
    spec = make_spec("1x1", variant="plain", launcher="python")
    (process,) = processes(spec, PLACES, 0, MEET)
    assert process.argv == (sys.executable, *SCRIPT)
    assert process.env == {}
    variables = node_environment(spec, PLACES, {"HOME": "/home/me"}, Path("/run.json"), "lo", 0.0)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & set(variables)
