"""instrument.py without the ladder: the directory that the ranks agree on, and the summary."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ddp_ladder.common.files import read_json
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.steps import Steps, matrix_of
from ddp_ladder_instrument import own_run
from ddp_ladder_instrument.table import StepTable
from instrument_support import INSTRUMENT, NEWEST, TORCHRUN, environment, python_named, run_plainly, script
from patience import outputs_of

TRAIN = """
    import os, sys
    for name, given in {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS"}.items():
        os.environ.setdefault(name, os.environ.get(given, ""))
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    dist.init_process_group("gloo", init_method=os.environ.get("MEET", "env://"), rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(1280, 64))
    sampler = DistributedSampler(data)
    os.chdir("/")
    for (x,) in DataLoader(data, int(sys.argv[1]), sampler=sampler):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    print("trained")
    if len(sys.argv) > 2:
        raise RuntimeError("at the end")
"""


def ends_in(directory: Path) -> list[RankEnd]:
    """Return what two ranks left."""
    return [RankEnd.from_json(read_json(directory / f"ranks/rank{rank}.json")) for rank in (0, 1)]


@pytest.mark.parametrize("torch", ["newest", "oldest"])
def test_torchrun_leaves_a_record_of_each_rank_and_one_summary(tmp_path: Path, torch: str) -> None:
    """All ranks write where rank 0 does, here after a run that died early."""
    (tmp_path / "own" / "ranks").mkdir(parents=True)
    (tmp_path / "own" / "ranks" / "rank0of2.claim").touch()
    tasks = {"newest": "2", "oldest": "1"}[torch]  # of srun, each of which starts a torchrun of its own
    env, train = {"DDP_LADDER_DIRECTORY": "own", "SLURM_STEP_NUM_TASKS": tasks}, script(tmp_path, TRAIN)
    done = run_plainly(tmp_path, INSTRUMENT, train, "8", launcher=TORCHRUN, env=env, python=python_named(torch))
    assert (done.code, done.out.count("trained")) == (0, 2), done.err
    directory = tmp_path / "own-2"
    assert [path.name for path in (tmp_path / "own" / "ranks").iterdir()] == ["rank0of2.claim"]
    assert {path.name for path in (directory / "ranks").glob("rank*.*")} == {
        f"rank{rank}{end}" for rank in (0, 1) for end in (".csv", ".json", ".log", ".steps", "of2.claim")
    }
    assert done.err.count("ddp-ladder: rank 0 of 2") == 1
    assert ("processes      2 of 1 torchrun, in a job step of 2 tasks" in done.err) == (tasks == "2")
    told = r"throughput +([\d,]+) samples/s if all ranks are alike: ([\d,]+) of rank 0 x 2"
    rate, of_rank = re.findall(told, done.err)[0]
    assert int(rate.replace(",", "")) == pytest.approx(2 * int(of_rank.replace(",", "")), abs=2)
    for words in ("60 steps after 20 of warm-up", "data wait", "not hidden", "GB on the host", str(directory)):
        assert words in done.err
    steps = [Steps.of(matrix_of((directory / f"ranks/rank{rank}.steps").read_bytes())) for rank in (0, 1)]
    assert [(each.count, each.samples.sum()) for each in steps] == [(80, 640), (80, 640)]


def of_two_tasks(directory: Path, training: str, meet: str = "") -> list[str]:
    """Train in two tasks of a job step, without variables of torch; return what each printed as errors."""
    words = [NEWEST, INSTRUMENT, script(directory, training), "8"]
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    envs = [environment(**slurm, MEET=meet, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in ("0", "1")]
    tasks = [subprocess.Popen(words, cwd=directory, env=env, stderr=subprocess.PIPE, text=True) for env in envs]
    errors = [outputs_of(task)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], errors
    assert [error.count("ddp-ladder: rank 0 of 2") for error in errors] == [1, 0]
    return errors


def test_srun_without_variables_of_torch(tmp_path: Path) -> None:
    """Srun starts each rank itself."""
    of_two_tasks(tmp_path, TRAIN, meet=f"file://{tmp_path}/store")
    assert {end.job.id for end in ends_in(tmp_path / "ddp-ladder-4711-3")} == {"4711"}


ALONE = """
    import torch
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""
WITHOUT_TORCH = """
    import os
    with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
        file.write('{"samples": 4, "seconds": 0.1}\\n' * 40)
"""


@pytest.mark.parametrize("training", [ALONE, WITHOUT_TORCH])
def test_tasks_of_srun_without_a_process_group_leave_a_record_each(tmp_path: Path, training: str) -> None:
    errors = of_two_tasks(tmp_path, training)
    if training == ALONE:
        assert re.search(r"throughput +[\d,.]+ steps/s, of unknown samples: .* workload.samples_per_step", errors[0])
    assert "processes      2 that do not talk to each other: rank 0 made no process group" in errors[0]
    ends = ends_in(tmp_path / "ddp-ladder-4711-3")
    assert [(end.rank, end.local_rank, end.steps.count) for end in ends] == [(0, 0, 40), (1, 1, 40)]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("counted", ["400 samples/s if all ranks are alike: 100 of rank 0 x 4", "4,000 tokens/s if all"]),
        ("guessed", ["(samples: guessed)", "a guess: a batch may have 1 or 64; in the ladder, workload.samples"]),
    ],
)
def test_the_throughput_of_four_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str, said: list[str]
) -> None:
    table = StepTable()
    for _ in range(4):
        table.add(10, 0, 0.1, 0.0, 0.0, 0.0, 1, 1, 1, 0.0)
    record = {
        **dict.fromkeys(("exception", "ddp", "not_measured", "batches")),
        "loader": {"shards": None, "tokens_per_sample": 10, "unclear_sizes": [1, 64]},
        "world_size": 4,
        "backend": "gloo",
        "exit_code": 0,
        "source": source,
        "device": {"name": "cpu", "kind": "cpu"},
        "fingerprint": {"slow_settings": []},
        "peak_memory_bytes": {},
        "startup_s": {"total": None},
    }
    settings = own_run.own_run_settings({"DDP_LADDER_DIRECTORY": str(tmp_path)})
    own_run.print_summary(record, table, settings)
    text = capsys.readouterr().err
    assert all(words in text for words in said), text


def test_a_run_never_writes_where_another_one_has_begun(tmp_path: Path) -> None:
    """Also not one with more ranks, whose last ones find no claim of their own."""

    def directory(rank: int, size: int) -> str:
        given = {"DDP_LADDER_DIRECTORY": str(tmp_path / "own"), "RANK": str(rank), "WORLD_SIZE": str(size)}
        return own_run.own_run_settings(given).directory.name

    assert [directory(rank, 2) for rank in (0, 1)] == ["own", "own"]
    assert [directory(rank, 4) for rank in (3, 1, 2, 0)] == ["own-2"] * 4
    assert [directory(rank, 4) for rank in (1, 0, 2, 3)] == ["own-3"] * 4


def test_the_exit_code_is_the_scripts_whatever_becomes_of_the_summary(tmp_path: Path) -> None:
    train = script(tmp_path, "import sys\nprint('ran')\nsys.exit(int(sys.argv[1]))")
    done = run_plainly(tmp_path, INSTRUMENT, train, "7", env={"DDP_LADDER_DIRECTORY": "own"})
    assert (done.code, done.out) == (7, "ran\n")
    assert "ended with exit code 7" in done.err
    assert "not measured   steps: no optimizer of torch made a step" in done.err
    (tmp_path / "file").write_text("")
    done = run_plainly(tmp_path, INSTRUMENT, train, "0", env={"DDP_LADDER_DIRECTORY": "file"})
    assert (done.code, done.out) == (0, "ran\n")
    assert done.err.count("\n") == 1
    assert "cannot write the record" in done.err


JOINED = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(TensorDataset(torch.randn(400, 8)), 4))
    for (one,), (other,) in zip(batches, batches):
        model(torch.cat([one, other])).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_count_that_the_loop_leaves_open_is_told_with_its_doubt(tmp_path: Path) -> None:
    done = run_plainly(tmp_path, INSTRUMENT, script(tmp_path, JOINED), env={"DDP_LADDER_DIRECTORY": "own"})
    doubt = "the samples: batches are joined or left out, and the loop does not show which train; DDP_LADDER_WITNESS=1"
    assert f"doubtful       {doubt} does\n" in done.err, done.err
