"""The process group, under torchrun or srun. A plain ``python`` has none."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from common.cores import bind

FIRST_PORT, PORTS = 10_000, 20_000  # below the ports that systems give to outgoing connections


@dataclass(frozen=True)
class World:
    """The rank, world size, node count and device of this process."""

    rank: int
    size: int
    nodes: int
    gpus_per_node: int  # processes per node; without CUDA a "GPU" is one CPU process
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


@contextlib.contextmanager
def process_group(backend: str = "auto", cores: str = "launcher") -> Iterator[World]:
    """Join the group that the launcher describes and destroy it at the end; without a launcher there is none.

    backend: nccl, gloo, or auto, which is nccl with a GPU and gloo without.
    cores: one of ``cores.CHOICES``.
    After an exception the group is not destroyed, because that could wait for ranks that never reach it.
    """
    _name_ranks_as_torchrun_does()
    bind(cores)
    size, local_size = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before NCCL starts, or every process takes GPU 0
    backend = _backend(backend, device)
    if "RANK" not in os.environ:
        yield World(0, 1, 1, 1, device)
        return
    _join(backend, size, device)
    yield World(dist.get_rank(), size, -(-size // local_size), local_size, device)
    dist.destroy_process_group()


def _join(backend: str, size: int, device: torch.device) -> None:
    bound_to = device if backend == "nccl" else None
    if size == 1:  # a single rank needs no rendezvous: no address and no port
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=bound_to)
    else:
        dist.init_process_group(backend, device_id=bound_to)
        # A rank that refuses its arguments now would close connections that others are still making (Gloo).
        dist.barrier()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 1:  # Slurm may show each task its own GPU only (--gpus-per-task)
        return torch.device("cuda", 0)
    if local_rank >= count:
        raise SystemExit(f"local rank {local_rank} has no GPU: {count} are visible; start at most {count} processes")
    return torch.device("cuda", local_rank)


def _backend(wanted: str, device: torch.device) -> str:
    if wanted == "auto":
        return "nccl" if device.type == "cuda" else "gloo"
    if wanted == "nccl" and device.type != "cuda":
        raise SystemExit("--backend nccl needs a GPU, and torch sees none: use --backend gloo, or auto")
    return wanted


def _name_ranks_as_torchrun_does() -> None:
    """Directly under srun, set torchrun's variables from Slurm's.

    Only srun sets SLURM_STEP_NUM_TASKS. The batch script itself also has SLURM_PROCID and SLURM_NTASKS, but there a
    plain ``python`` is one process.
    """
    env = os.environ
    if "RANK" in env or "SLURM_STEP_NUM_TASKS" not in env:
        return
    env["RANK"] = env["SLURM_PROCID"]
    env["WORLD_SIZE"] = env["SLURM_STEP_NUM_TASKS"]
    env["LOCAL_RANK"] = env["SLURM_LOCALID"]
    env["LOCAL_WORLD_SIZE"] = re.split(r"\D", env["SLURM_STEP_TASKS_PER_NODE"])[0]  # "4(x2)"
    env.setdefault("MASTER_ADDR", first_host(env["SLURM_STEP_NODELIST"]))
    env.setdefault("MASTER_PORT", str(step_port(int(env["SLURM_JOB_ID"]), int(env["SLURM_STEP_ID"]))))


def first_host(nodelist: str) -> str:
    """Return the first name of a Slurm node list: ``gn01`` of ``gn[01-04,07],login``. Containers have no scontrol."""
    first = re.split(r",(?![^\[]*\])", nodelist)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def step_port(job_id: int, step_id: int) -> int:
    """Return a port that is unlikely to be used by another job step or another job on the node."""
    return FIRST_PORT + (31 * job_id + step_id) % PORTS


def total(values: torch.Tensor) -> torch.Tensor:
    """Sum over all ranks, in place, and return the values."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values
