"""The ladder on stand-ins for CUDA and NVML: what it records where only a GPU leads.

None of it is evidence of CUDA, as tests/stand_ins/README.md says. On a real GPU: tests/gpu.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_run import Here
from project_copy import ONE_STAGE, Checkout
from stand_in_gpus import A100, HOT, LOST, SLICED, STAND_INS, GpuValues, compiled, write_gpus

# Each step keeps the GPU busy for 25 ms, for which the host does not wait; of each sample it holds 80 MiB.
TRAIN = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)
batch = int(sys.argv[1])
data = TensorDataset(torch.randn(120 * batch, 64), torch.randn(120 * batch, 1))
loader = DataLoader(data, batch, sampler=DistributedSampler(data), pin_memory=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1)).to(device)
model = DistributedDataParallel(model, device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
held = torch.empty(80 * batch, 2**20, dtype=torch.uint8, device=device)
for inputs, targets in loader:
    inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.cuda._sleep(25_000_000)
    optimizer.step()
dist.destroy_process_group()
"""
# Forward and backward pass in a graph, 10 ms a step, and an eager optimizer. While the graph is captured, the heartbeat
# is written twice: in CUDA, an event that it asks for meanwhile would end the capture.
GRAPH = """
import os, threading, torch
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset

def looks():
    files = [*Path(os.environ["DDP_LADDER_HEARTBEATS"]).rglob("*")]
    return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)

def loss_of(weight, x, y):
    return (x @ weight - y).square().mean()

torch.manual_seed(0)
weight = torch.nn.Parameter(torch.zeros(8, 1, device="cuda"))
expected = torch.zeros(8, 1, requires_grad=True)
optimizer, graph = torch.optim.SGD([weight], lr=0.1), torch.cuda.CUDAGraph()
inputs, targets = torch.zeros(16, 8, device="cuda"), torch.zeros(16, 1, device="cuda")

def passes():
    loss_of(weight, inputs, targets).backward()
    torch.cuda._sleep(10_000_000)

for number, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(960, 8), torch.randn(960, 1)), 16)):
    inputs.copy_(x.to("cuda")), targets.copy_(y.to("cuda"))
    if number <= 20:
        optimizer.zero_grad()
    if number < 20:
        passes()
    elif number == 20:
        with torch.cuda.graph(graph):
            passes()
            for _ in range(2):
                before = looks()
                while looks() == before:
                    threading.Event().wait(0.05)
    if number >= 20:
        graph.replay()
    optimizer.step()
    (change,) = torch.autograd.grad(loss_of(expected, x, y), expected)
    expected = (expected - 0.1 * change).detach().requires_grad_()
assert torch.allclose(weight.detach().cpu(), expected.detach()), (weight, expected)
"""


MIB = 2**20


def show(gpus: list[GpuValues], directory: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Let torch and the driver's library have these GPUs. options: of the library's compiler."""
    compiled(directory, *options)
    write_gpus(directory / "gpus", gpus)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(directory))
    monkeypatch.setenv("STAND_IN_GPUS", str(directory / "gpus"))
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))


@pytest.fixture(scope="module")
def climbed(module_checkout: Callable[[], Checkout], tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, str]:
    """A ladder of one GPU and of two nodes with one each, and what it printed.

    A third GPU is lost, and the driver knows the older name of the throttle reasons alone.
    """
    checkout = module_checkout()
    workload = {"script": "loop.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": {"from": 8, "to": 16}, "lr": None}
    stages = ONE_STAGE | {"stage3": {"scales": ["2x1"], "runtime": 5}}
    checkout.configure(workload=workload, stages=stages, monitor={"every_s": 0.2}, preflight={"enabled": True})
    (checkout.path / "loop.py").write_text(TRAIN)
    checkout.site(node={"gpus": 1, "device": "cuda", "cpus": 2}, network={"transport": "ib"})
    gpus = [gpu | {"memory_total": 1024 * MIB} for gpu in (A100, LOST, HOT)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        older = "-DnvmlDeviceGetCurrentClocksEventReasons=nvmlDeviceGetCurrentClocksThrottleReasons"
        show(gpus, tmp_path_factory.mktemp("driver"), monkeypatch, older)
        done = checkout.climb("stage1", "stage3")
    assert done.returncode == 0, done.stdout
    return checkout, done.stdout


@pytest.fixture
def record(climbed: tuple[Checkout, str]) -> dict[str, Any]:
    return climbed[0].record("default/weak/2x1/r1")


def test_stand_in_of_events_on_a_gpu_that_is_behind_the_host(record: dict[str, Any]) -> None:
    assert record["timing"]["step_time_s_p5"] > 0.0249  # the host, which has other work to do here, may take longer
    assert record["step"]["timed_steps"] > 0


def test_stand_in_of_memory_that_a_larger_batch_does_not_fit(
    climbed: tuple[Checkout, str], record: dict[str, Any]
) -> None:
    assert "batch 16 per GPU: out of memory: CUDA out of memory" in climbed[1]
    assert record["spec"]["batch_per_gpu"] == 8
    for rank in record["ranks"]:
        assert 640 * MIB < rank["peak_memory_bytes"]["device"] < 642 * MIB
        assert rank["memory_limit_bytes"]["device"] == 1024 * MIB


def test_stand_in_of_gpus_that_are_known_by_uuid_and_one_that_is_lost(record: dict[str, Any]) -> None:
    assert [f"GPU-{rank['device']['id']}" for rank in record["ranks"]] == [A100["uuid"], HOT["uuid"]]
    gpus = [gpu for node in record["usage"]["nodes"] for gpu in node["gpus"]]
    assert [(gpu["rank"], gpu["power_w"], gpu["sm_clock_mhz"]) for gpu in gpus] == [(0, 360, 1410), (1, 360, 1065)]
    (found,) = (each for each in record["usage"]["findings"] if each["kind"] == "GPU throttled")
    assert found["measured"] == "throttled in 100 % of the samples (thermal, up to 55 C)"
    notes = {note.partition("NVML: ")[2] for note in record["usage"]["notes"]}
    assert notes == {"GPU 1 of the driver's: GPU is lost"}


def test_stand_in_of_transports_that_no_log_of_nccl_names(climbed: tuple[Checkout, str]) -> None:
    assert "NCCL uses no network that its log names between the nodes; wanted network.transport: ib" in climbed[1]


def test_stand_in_of_a_graph_on_a_slice_of_a_gpu(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is known by its slice, which is not sampled."""
    show([A100, SLICED], here.path, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(SLICED["mig.uuid"]))
    record = here.run(GRAPH, "1x1", device="cuda", warmup_steps=5, min_steps=10)
    assert record.failure is None
    assert record.timing
    assert (record.timing.step_time_s_p5 > 0.0099, record.ranks[0].steps) == (True, 60)
    assert record.ranks[0].device.id == SLICED["mig.uuid"]
    assert record.usage
    assert record.usage.nodes[0].gpus == ()
    assert "slices of GPUs (MIG) are not sampled" in record.usage.notes[0]
