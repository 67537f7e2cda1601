"""Where the scripts find their rank: torchrun, srun, or nobody; and the parts without a process group."""

from __future__ import annotations

import pytest
import torch
from rank_support import on_ranks

import common


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gn01", "gn01"),
        ("gn[01-04,07]", "gn01"),
        ("gn[03,07-09],login", "gn03"),
        ("login,gn[01-04]", "login"),
        ("rack[2-3]n[05-08]", "rack2n05"),
        ("gpu-[1-2]-ib", "gpu-1-ib"),
    ],
)
def test_first_host_of_a_node_list(nodelist: str, first: str) -> None:
    assert common.first_host(nodelist) == first


def test_ports_are_below_those_of_outgoing_connections_and_differ_between_steps() -> None:
    ports = [common.step_port(4_123_456, step) for step in range(30)] + [common.step_port(4_123_457, 0)]
    assert len(set(ports)) == len(ports)
    assert all(10_000 <= port < 30_000 for port in ports)


SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gn[01-02]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *SRUN):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_srun_is_read_in_torchruns_words(environment: pytest.MonkeyPatch) -> None:
    for name, value in SRUN.items():
        environment.setenv(name, value)
    common._name_ranks_as_torchrun_does()
    env = common.os.environ
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("5", "8", "1", "4")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("gn01", str(common.step_port(77, 2)))


def test_torchrun_inside_srun_is_what_counts(environment: pytest.MonkeyPatch) -> None:
    for name, value in {**SRUN, "RANK": "3", "MASTER_ADDR": "head"}.items():
        environment.setenv(name, value)
    common._name_ranks_as_torchrun_does()
    assert (common.os.environ["RANK"], common.os.environ["MASTER_ADDR"]) == ("3", "head")


def test_a_batch_script_is_one_process(environment: pytest.MonkeyPatch) -> None:
    """sbatch sets these too, for the one process that the script is."""
    for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID"):
        environment.setenv(name, "0")
    environment.setenv("SLURM_NTASKS", "8")
    common._name_ranks_as_torchrun_does()
    assert "RANK" not in common.os.environ


def four_ranks_on_two_nodes() -> tuple[int, int, str]:
    common.os.environ["LOCAL_WORLD_SIZE"] = "2"
    with common.process_group("gloo") as world:
        assert common.total(torch.ones(1)).item() == 4
        return world.nodes, world.gpus_per_node, torch.distributed.get_backend()


def test_nodes_and_gpus_per_node() -> None:
    assert on_ranks(4, four_ranks_on_two_nodes) == [(2, 2, "gloo")] * 4


def test_python_alone_has_no_process_group(environment: pytest.MonkeyPatch) -> None:
    with common.process_group() as world:
        assert not torch.distributed.is_initialized()
        assert (world.rank, world.size, world.nodes, world.gpus_per_node) == (0, 1, 1, 1)
        assert common.total(torch.ones(1)).item() == 1
        model = torch.nn.Linear(2, 2)
        assert common.distribute(model, world, None, True) is model


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(SystemExit, match="--backend gloo"), common.process_group("nccl"):
        pass


@pytest.mark.parametrize(
    ("rule", "lr", "start"), [("none", 0.1, 1.0), ("linear", 0.8, 0.125), ("sqrt", 0.282843, 0.353553)]
)
def test_rate_follows_the_global_batch(rule: str, lr: float, start: float) -> None:
    rate = common.scaled(0.1, rule, global_batch=2048, reference_batch=256)
    assert (rate.lr, rate.warmup_from) == (pytest.approx(lr, rel=1e-5), pytest.approx(start, rel=1e-5))


def test_a_smaller_batch_needs_no_warm_up() -> None:
    assert common.scaled(0.1, "linear", 64, 256).warmup_from == 1.0


def rates(decay: common.Factor, warmup_steps: int, warmup_from: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = common.scheduler(optimizer, decay, warmup_steps, warmup_from)
    found = []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def test_warm_up_begins_at_the_unscaled_rate_and_ends_at_the_scaled_one() -> None:
    assert rates(common.constant, 4, 0.25, 6) == pytest.approx([0.25, 0.4375, 0.625, 0.8125, 1, 1])


def test_decays() -> None:
    assert rates(common.staircase(2, 0.5), 0, 1.0, 5) == [1, 1, 0.5, 0.5, 0.25]
    assert rates(common.cosine(4), 0, 1.0, 5) == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_precisions(name: str, dtype: torch.dtype) -> None:
    chosen = common.Precision(name, torch.device("cpu"))
    with chosen.autocast():
        assert torch.nn.Linear(4, 4)(torch.randn(2, 4)).dtype == dtype
    assert chosen.scaler.is_enabled() == (name == "fp16")
    assert torch.get_float32_matmul_precision() == ("high" if name == "tf32" else "highest")
    assert torch.backends.cudnn.allow_tf32 == (name == "tf32")
    common.Precision("fp32", torch.device("cpu"))
