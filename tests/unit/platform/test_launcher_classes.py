from __future__ import annotations

import sys
from pathlib import Path

from ddp_ladder.node.launch import INSTRUMENT, Places, processes
from ddp_ladder.platform.launchers import Rendezvous
from make_records import make_spec

MEET = Rendezvous("job7.1.default.weak", "10.0.0.1", 20_123)
PLACES = Places(Path("/project"), Path("/project/results/runs/default/weak/1x2/r1"))
SCRIPT = (str(INSTRUMENT), "workflow/workloads/mnist.py", "--batch-size", "64")


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
    torchrun = make_spec("2x2", launcher="torchrun")
    assert "SLURM_PROCID" not in processes(torchrun, PLACES, 0, MEET, (), ("laptop", "laptop"))[0].env
