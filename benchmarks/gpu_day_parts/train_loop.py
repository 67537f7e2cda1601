"""The training that two_ranks and loops start, with the instrument and without: train_loop.py KIND DEVICE BATCHES

One pass over an endless loader. result.<rank>.json then has the losses, and the seconds of the steps after the first
FIRST batches by one pair of events. On a CPU, what only CUDA has is left out.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler

FIRST = 12  # batches: with start-up and compilation
SKIPPED = 3  # the batch with infinite gradients
PAUSE_S = 8.0  # of rank 1, longer than it takes until the flight record is written
LISTED = "nvidia-smi --query-compute-apps=pid --format=csv,noheader"


class Loop:
    """A model and its optimizer. steps: of the optimizer so far. ahead: those that the device has not finished."""

    def __init__(self, kind: str, device: torch.device) -> None:
        self.kind, self.device, self.on_gpu = kind, device, device.type == "cuda"
        self.width, self.batch = (512, 64) if self.on_gpu else (16, 4)
        self._whole = kind == "whole_graph"
        self.losses: list[Tensor] = []
        self.steps = self.ahead = 0
        self._ends: list[Any] = []
        self._ballast = torch.randn(4096, 4096, device=device) if self.on_gpu and kind in ("ahead", "pause") else None
        net = nn.Sequential(*[nn.Linear(self.width, self.width) for _ in range(8)]).to(device)
        self._model: Any = net
        if kind == "fsdp2":
            for module in (*net, net):
                fully_shard(module, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
        elif kind == "reduce_overhead" and self.on_gpu:
            self._model = torch.compile(net, mode="reduce-overhead")
        elif kind not in ("reduce_overhead", "whole_graph"):
            self._model = DistributedDataParallel(net)
        self._optimizer = torch.optim.AdamW(net.parameters(), 1e-4, capturable=self._whole and self.on_gpu)
        self._optimizer.register_step_post_hook(self._count)
        self._scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=kind == "scaler")

    def batches(self, loader: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the loader's batches on the device."""
        if self.kind != "side_stream" or not self.on_gpu:
            yield from (x.to(self.device, non_blocking=True) for x in loader)
            return
        side, drawn = torch.cuda.Stream(), iter(loader)
        while True:
            with torch.cuda.stream(side):
                x = next(drawn).to(self.device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
            yield x

    def step(self, x: Tensor) -> None:
        """Train on a batch."""
        ends = self.kind != "no_sync" or len(self.losses) % 4 == 3
        with contextlib.nullcontext() if ends else self._model.no_sync():
            self.losses.append(self._gradients(x).detach().clone())
        if ends:
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._optimizer.zero_grad()

    def captured(self) -> Callable[[Tensor], None]:
        """Return a step that replays a CUDA graph: of forward and backward pass, or of the optimizer's step, too."""
        fixed = torch.ones(self.batch, self.width, device=self.device)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(12):  # as torch's notes on DDP in CUDA graphs want it
                self._gradients(fixed)
                if self._whole:
                    self._optimizer.step()
                self._optimizer.zero_grad()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = self._gradients(fixed)
            if self._whole:
                self._optimizer.step()

        def step(x: Tensor) -> None:
            fixed.copy_(x)
            graph.replay()
            self.losses.append(loss.detach().clone())
            if not self._whole:
                self._optimizer.step()

        return step

    def _gradients(self, x: Tensor) -> Tensor:
        if self._ballast is not None:
            self._ballast @ self._ballast
        dtype = torch.float16 if self.on_gpu else torch.bfloat16
        with torch.autocast(self.device.type, dtype, enabled=self.kind == "scaler"):
            loss: Tensor = (self._model(x).float() - x).square().mean()
        is_infinite = self.kind == "scaler" and len(self.losses) == SKIPPED
        self._scaler.scale(loss * float("inf") if is_infinite else loss).backward()
        return loss

    def _count(self, *_: object) -> None:
        self.steps += 1
        if self._ballast is not None:
            self._ends = [*(end for end in self._ends if not end.query()), torch.cuda.Event()]
            self._ends[-1].record()
            self.ahead = len(self._ends)


def gpu_processes() -> int:
    """Return how many of this process and its children nvidia-smi lists."""
    listed = subprocess.run(LISTED, shell=True, capture_output=True, text=True, check=False, timeout=30).stdout.split()
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return len({str(pid) for pid in own}.intersection(listed))


def main(kind: str, device_type: str, batches: int) -> None:
    """Train. The result is written when Python ends: the instrument may end the loop."""
    on_gpu, device = device_type == "cuda", torch.device(device_type, 0)
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    is_graph = on_gpu and kind in ("graph", "whole_graph")
    with torch.cuda.stream(torch.cuda.Stream()) if is_graph else contextlib.nullcontext():
        loop = Loop(kind, device)
    step = loop.captured() if is_graph else loop.step
    workers = {"num_workers": 2, "multiprocessing_context": kind} if kind in ("fork", "forkserver") else {}
    rows = torch.randn(4096, loop.width)
    endless = RandomSampler(rows, replacement=True, num_samples=1 << 40)  # type: ignore[arg-type]
    loader: Any = DataLoader(rows, loop.batch, sampler=endless, pin_memory=on_gpu, **workers)  # type: ignore[arg-type]
    marks: list[tuple[int, Any]] = []
    result: dict[str, Any] = {"gpu_processes": 0}

    def write() -> None:
        result.update(losses=torch.stack(loop.losses).tolist(), ahead=loop.ahead)
        Path(f"result.{os.environ['RANK']}.json").write_text(json.dumps(result))

    def mark() -> None:
        marks.append((loop.steps, torch.cuda.Event(enable_timing=True) if on_gpu else time.perf_counter()))
        if on_gpu:
            marks[-1][1].record()

    atexit.register(write)
    for number, x in enumerate(loop.batches(loader), 1):
        if kind == "pause" and os.environ["RANK"] == "1" and number == FIRST:
            time.sleep(PAUSE_S)
        step(x)
        if number == FIRST:
            mark()
            result["gpu_processes"] = gpu_processes() if on_gpu else 0
        if number == batches:
            mark()
            break
    if on_gpu:
        torch.cuda.synchronize()
    (result["first"], begin), (result["steps"], end) = marks
    result["span_s"] = begin.elapsed_time(end) / 1000 if on_gpu else end - begin
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
