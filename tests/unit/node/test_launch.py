from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.node.launch import THREAD_VARIABLES, Places, node_environment, processes, script_argv
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.launchers import Rendezvous
from make_records import make_spec

MEET = Rendezvous("job7.1.default.weak", "10.0.0.1", 20_123)
PLACES = Places(Path("/project"), Path("/project/results/runs/default/weak/1x2/r1"))
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
    container = {"image": "a.sif", "engine": "apptainer"}
    spec = make_spec("1x2", container=container, python="venv/bin/python", **ELSEWHERE)
    (process,) = processes(spec, PLACES, 0, MEET, ("/project",))
    inside = (f"{PLACES.run}/work", "a.sif", "venv/bin/python")
    assert process.argv[:8] == ("apptainer", "exec", "--bind", "/project", "--pwd", *inside)


WRAPPER = ("tools/record", "--to={run_dir}/%h", "--")


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "python"])
@pytest.mark.parametrize("per", ["rank", "node"])
def test_a_wrapper_stands_before_the_python_of_ranks_or_of_a_node(launcher: str, per: str) -> None:
    made = {"wrapper_template": WRAPPER, "wrapper": WRAPPER, "wrapper_per": per}
    spec = make_spec("1x2", launcher=launcher, python="/bin/python", container={"image": "a.sif"}, **made, **ELSEWHERE)
    words = ("/project/tools/record", f"--to={PLACES.run}/wrapper/%h", "--", "/bin/python")
    argvs = [process.argv for process in processes(spec, PLACES, 0, MEET)]
    inside = [argv[argv.index("a.sif") + 1 :] for argv in argvs]
    if launcher == "torchrun" and per == "rank":
        ranks = inside[0].index("--no-python")
        assert inside[0][0] == "/bin/python"
        assert inside[0][ranks + 1 : ranks + 6] == ("--", *words)
        assert inside[0][ranks + 6].endswith("instrument.py")
    else:
        starts = [words if per == "rank" or k == 0 else ("/bin/python",) for k in range(len(inside))]
        assert [argv[: len(start)] for argv, start in zip(inside, starts, strict=True)] == starts
        assert "--no-python" not in inside[0]
    assert all(argv.count("--to=" + words[1][5:]) <= 1 for argv in argvs)
    (probe, *_) = processes(spec, PLACES, 0, MEET, command=("probe.py",))
    assert words[0] not in probe.argv


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
    assert environment(make_spec(script=script), **given).get("PYTHONPATH") == given.get("PYTHONPATH")


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


def test_the_users_environment_wins_over_ours_and_ours_over_snakemakes() -> None:
    ours = environment(make_spec(threads_per_rank=2), CUDA_VISIBLE_DEVICES="2", **dict.fromkeys(THREAD_VARIABLES, "64"))
    assert (ours["OMP_NUM_THREADS"], ours["CUDA_VISIBLE_DEVICES"]) == ("2", "")  # a CPU site hides the GPUs
    assert not set(THREAD_VARIABLES) & set(ours)
    wanted = {"OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "6", "NCCL_SOCKET_IFNAME": "eth1"}
    wanted |= {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3"}
    spec = make_spec(env={**wanted, "DDP_LADDER_RUN": "/other"}, backend="nccl")
    env = environment(spec, MKL_NUM_THREADS="64", DDP_LADDER_RUN="/older")
    assert {key: env[key] for key in wanted} == wanted
    assert env["DDP_LADDER_RUN"] == "/results/run.json"  # what identifies the run stays
