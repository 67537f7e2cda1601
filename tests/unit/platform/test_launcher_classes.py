from __future__ import annotations

import sys
from pathlib import Path

from ddp_ladder.node.launch import INSTRUMENT, Places, node_environment, processes
from ddp_ladder.platform.launchers import LAUNCHERS, TORCHRUN, Rendezvous
from make_records import make_spec

MEET = Rendezvous("job7.1.default.weak", "10.0.0.1", 20_123)
PLACES = Places(Path("/project"), Path("/project/results/runs/default/weak/1x2/r1"))
SCRIPT = (str(INSTRUMENT), "workflow/workloads/mnist.py", "--batch-size", "64")


def torchrun_line(node_rank: int, shape: tuple[int, int]) -> tuple[str, ...]:
    nodes, gpus = shape
    options = (
        f"-m torch.distributed.run --nnodes={nodes} --node-rank={node_rank} --nproc-per-node={gpus} --max-restarts=0 "
        "--rdzv-backend=static --rdzv-id=job7.1.default.weak --rdzv-conf=timeout=300 --master-addr=10.0.0.1 "
        "--master-port=20123 --"
    )
    return (str(TORCHRUN), str(PLACES.run / f"nodes/failed{node_rank}.json"), *options.split(), *SCRIPT)


def test_torchrun_on_one_node_and_on_two() -> None:
    (process,) = processes(make_spec("1x2"), PLACES, 0, MEET)
    assert process.argv == (sys.executable, *torchrun_line(0, (1, 2)))
    assert process.env == {"PET_LOG_DIR": str(PLACES.run / "nodes/torchrun0")}
    assert processes(make_spec("1x2", env={"PET_TEE": "3"}), PLACES, 0, MEET)[0].env == {}  # torchrun's logs stay
    for node_rank in (0, 1):
        (process,) = processes(make_spec("2x1", python="/opt/python"), PLACES, node_rank, MEET)
        assert process.argv == ("/opt/python", *torchrun_line(node_rank, (2, 1)))


def test_torchrun_waits_longer_for_more_nodes() -> None:
    (process,) = processes(make_spec("1024x4"), PLACES, 0, MEET)
    assert "--rdzv-conf=timeout=556" in process.argv


def test_srun_starts_one_process_per_gpu() -> None:
    spec = make_spec("2x2", launcher="srun")
    started = [process for node in (0, 1) for process in processes(spec, PLACES, node, MEET)]
    assert [process.argv for process in started] == [(sys.executable, *SCRIPT)] * 4
    common = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20123"}
    for process, (rank, local, node) in zip(started, ("000", "110", "201", "311"), strict=True):
        assert process.env == {**common, "RANK": rank, "LOCAL_RANK": local, "GROUP_RANK": node}


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
    mpirun = make_spec("2x2", launcher="mpirun")
    of_mpi = [process.env for process in processes(mpirun, PLACES, 1, MEET, (), ("a", "b"))]
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE")]
    assert [[env[name] for name in names] for env in of_mpi] == [["2", "0", "4"], ["3", "1", "4"]]
    assert not any("SLURM_JOB_ID" in env for env in of_mpi)
    torchrun = make_spec("2x2", launcher="torchrun")
    assert "SLURM_PROCID" not in processes(torchrun, PLACES, 0, MEET, (), ("laptop", "laptop"))[0].env


def test_torchrun_runs_inside_the_container() -> None:
    container = {"image": "/images/a b.sif", "args": ["--env", "A=$(x)"]}
    spec = make_spec("1x2", device="cuda", python="/opt/python", container=container)
    (process,) = processes(spec, PLACES, 0, MEET, ("/project", "/a:/b:ro"))
    engine = ("apptainer", "exec", "--nv", "--bind", "/project", "--bind", "/a:/b:ro", "--env", "A=$(x)")
    assert process.argv == (*engine, "/images/a b.sif", "/opt/python", *torchrun_line(0, (1, 2)))


def test_torchrun_binds_ranks_near_their_gpus() -> None:
    (process,) = processes(make_spec("1x2", device="cuda", numa_binding="exclusive"), PLACES, 0, MEET)
    (place,) = [place for place, word in enumerate(process.argv) if word == "--numa-binding=exclusive"]
    assert process.argv[place - 1] == "--nproc-per-node=2"


def test_the_plain_baseline_is_the_script_alone() -> None:
    spec = make_spec("1x1", variant="plain", launcher="python")
    (process,) = processes(spec, PLACES, 0, MEET)
    assert process.argv == (sys.executable, *SCRIPT)
    assert process.env == {}
    variables = node_environment(spec, PLACES, {"HOME": "/home/me"}, Path("/run.json"), "lo", 0.0)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & set(variables)


def test_mpirun_starts_the_agents_through_daemons_with_the_jobs_options() -> None:
    def srun(tasks_per_node: int) -> list[str]:
        counts = ["--nodes=2", f"--ntasks={2 * tasks_per_node}", f"--ntasks-per-node={tasks_per_node}"]
        return ["srun", "--job-name=run-x", "--nodelist=a,b", *counts, "--cpus-per-task=8", "--gres=gpu:2"]

    spec = make_spec("2x2", launcher="mpirun")
    words = LAUNCHERS["mpirun"].step(srun, ["agent.py", "--run", "a b"], spec, "42", ["a", "b"])
    allocation = ["SLURM_JOBID=42", "SLURM_NODELIST=a,b", "SLURM_TASKS_PER_NODE=2(x2)"]
    daemons = ["--mca", "plm_slurm_args", "--cpus-per-task=8 --gres=gpu:2"]
    assert words[:8] == ["env", *allocation, "mpirun", *daemons]
    assert words[-4:] == ["bash", "agent.py", "--run", "a b"]
