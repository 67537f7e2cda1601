"""The parts that the four workloads share: plain PyTorch, Python 3.9 and torch 2.4, or newer.

In this order: the process group under any launcher; the image sets; loaders; augmentation on the device; DDP;
precision; learning rate; checkpoints and their resumption; the end at a signal; the training loop; options.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def save(content: Any, file: Path) -> None:
    """torch.save to a temporary file, then rename: a reader always finds the old content or the new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


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

    def say(self, *lines: str) -> None:
        """Print on rank 0 only."""
        if self.is_first:
            print(*lines, sep="\n", flush=True)


@contextlib.contextmanager
def process_group(backend: str = "auto", cores: str = "launcher") -> Iterator[World]:
    """Join the group that the launcher describes and destroy it at the end; without a launcher there is none.

    backend: nccl, gloo, or auto, which is nccl with a GPU and gloo without.
    cores: see ``bind``.
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


SYSTEM = Path("/sys/devices/system/cpu")


def bind(choice: str) -> None:
    """Bind this process, and all that it starts from now on, to its choice of cores.

    launcher  nothing: torchrun's ranks share all cores of their node's task, Slurm may bind each rank that it starts
    own       this rank's share of the cores that the launcher gave all ranks of the node together, as torchrun does
    first     the first rank's share, for every rank of the node: as if they had the cores of one
    Call this before the first computation: threads that have started keep their cores.
    """
    if choice == "launcher":
        return
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    place = int(os.environ.get("LOCAL_RANK", "0")) if choice == "own" else 0
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit(f"--cores {choice}: this system cannot bind a process to cores; use --cores launcher")
    os.sched_setaffinity(0, share(os.sched_getaffinity(0), place, ranks, core_of))


def share(cpus: Collection[int], place: int, ranks: int, core: Callable[[int], int]) -> list[int]:
    """Return the share of the rank at this place (from 0) among the ranks of its node: neighbouring whole cores.

    core: a number that the hardware threads of one core have in common.
    """
    of_core: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        of_core.setdefault(core(cpu), []).append(cpu)
    in_order = sorted(of_core)
    if len(in_order) < ranks:
        raise SystemExit(
            f"--cores: {ranks} ranks on this node, but this process has {len(in_order)} cores to share among them: the "
            "launcher has bound it already (use --cores launcher), or the job needs more --cpus-per-task"
        )
    mine = in_order[place * len(in_order) // ranks : (place + 1) * len(in_order) // ranks]
    return sorted(cpu for each in mine for cpu in of_core[each])


def core_of(cpu: int) -> int:
    """Return the first hardware thread of a CPU's core; the CPU itself if the system does not tell."""
    try:
        siblings = (SYSTEM / f"cpu{cpu}/topology/thread_siblings_list").read_text()
        return int(re.split("[,-]", siblings)[0])
    except (OSError, ValueError):
        return cpu


@dataclass(frozen=True)
class ImageSet:
    """Images (n x channels x height x width) and labels (n, int64) of both splits.

    mean, std: of the training images per channel, in the units of the stored pixels.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: Sequence[float]
    std: Sequence[float]
    classes: int


def digits(directory: Path) -> ImageSet:
    """Return scikit-learn's bundled digits, 8 x 8 pixels of 0..1, as prepare_images.py wrote them."""
    file = directory / "digits.pt"
    if not file.exists():
        raise SystemExit(
            f"{file} is missing: write it with python workflow/workloads/prepare_images.py digits {directory}"
        )
    splits: dict[str, Tensor] = torch.load(file, weights_only=True)
    return ImageSet(**splits, mean=[0.305], std=[0.376], classes=10)


def mnist(directory: Path) -> ImageSet:
    """Return MNIST, 28 x 28 pixels of 0..255, from IDX files in <directory>/MNIST/raw, as torchvision keeps them."""
    from torchvision import datasets

    train, test = _both(datasets.MNIST, directory, "mnist")
    return ImageSet(
        train.data.unsqueeze(1), train.targets, test.data.unsqueeze(1), test.targets, [33.32], [78.57], classes=10
    )


def cifar10(directory: Path) -> ImageSet:
    """Return CIFAR-10, 3 x 32 x 32 pixels of 0..255, from torchvision's <directory>/cifar-10-batches-py."""
    from torchvision import datasets

    train, test = _both(datasets.CIFAR10, directory, "cifar10")
    return _cifar(train, test, [125.31, 122.95, 113.87], [62.99, 62.09, 66.70], classes=10)


def cifar100(directory: Path) -> ImageSet:
    """Return CIFAR-100, 3 x 32 x 32 pixels of 0..255, from torchvision's <directory>/cifar-100-python."""
    from torchvision import datasets

    train, test = _both(datasets.CIFAR100, directory, "cifar100")
    return _cifar(train, test, [129.30, 124.07, 112.43], [68.17, 65.39, 70.42], classes=100)


def _both(kind: Any, directory: Path, name: str) -> tuple[Any, Any]:
    try:
        return kind(str(directory), train=True), kind(str(directory), train=False)
    except RuntimeError as error:  # torchvision's "Dataset not found or corrupted"
        raise SystemExit(
            f"{kind.__name__} is not in {directory}, or damaged: fetch it with\n"
            f"    python workflow/workloads/prepare_images.py {name} {directory}\n"
            "in one process, before the training starts"
        ) from error


def _cifar(train: Any, test: Any, mean: Sequence[float], std: Sequence[float], classes: int) -> ImageSet:
    images = [torch.from_numpy(split.data).permute(0, 3, 1, 2) for split in (train, test)]
    labels = [torch.tensor(split.targets) for split in (train, test)]
    return ImageSet(images[0], labels[0], images[1], labels[1], mean, std, classes)


READERS: dict[str, Callable[[Path], ImageSet]] = {
    "digits": digits,
    "mnist": mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
}


Batch = Any
"""(inputs, labels), both tensors with one row per sample."""


class WholeBatches(Dataset[Any]):
    """A dataset that returns a whole batch at a time, through ``__getitems__``.

    device: where the batches are; a batch on the GPU needs no copy.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device


class Resident(WholeBatches):
    """Inputs and labels as two tensors, on the training device or in host memory.

    A batch is one indexing of each, instead of one Python call per sample and a copy to join them.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, device: torch.device) -> None:
        super().__init__(device)
        self.inputs = inputs.to(device)
        self.labels = labels.to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        where = torch.tensor(indices).to(self.device, non_blocking=True)
        return self.inputs[where], self.labels[where]


def as_it_is(batch: Batch) -> Batch:
    """Return the batch; as ``collate_fn``, because whole batches need no joining."""
    return batch


class Shards(DistributedSampler[Any]):
    """DistributedSampler that can begin its next pass in the middle, where a checkpoint was written.

    Every rank gets the same number of samples: up to world size - 1 of them occur twice in an epoch.
    """

    def __init__(self, dataset: Dataset[Any], world: World, seed: int) -> None:
        super().__init__(dataset, num_replicas=world.size, rank=world.rank, seed=seed)
        self.done = 0

    def __iter__(self) -> Iterator[Any]:
        indices = list(super().__iter__())
        done, self.done = self.done, 0
        return iter(indices[done:])


def begin_epoch(loader: DataLoader[Any], epoch: int, done: int) -> None:
    """Shuffle for this epoch, and skip the ``done`` samples that this rank has already used.

    The loader has its own generator, for its workers: an epoch draws the same numbers whatever came before it.
    """
    shards: Any = loader.sampler
    shards.set_epoch(epoch)
    shards.done = done
    generator: Any = loader.generator
    generator.manual_seed(rank_seed(shards.seed, shards.rank) + epoch)


def rank_seed(seed: int, rank: int) -> int:
    """Return a seed that differs between ranks, for dropout and augmentation."""
    return 1_000_003 * seed + 10_007 * (rank + 1)


def train_loader(dataset: Dataset[Any], batch_size: int, world: World, seed: int, workers: int) -> DataLoader[Any]:
    """Return a loader of this rank's share, shuffled in each epoch. ``batch_size`` is that of one rank."""
    return _loader(dataset, batch_size, Shards(dataset, world, seed), world, workers)


def test_loader(dataset: Dataset[Any], batch_size: int, world: World, workers: int) -> DataLoader[Any]:
    """Return a loader of every ``size``-th sample: exactly one rank sees each. DistributedSampler would add padding."""
    size: int = len(dataset)  # type: ignore[arg-type]
    return _loader(dataset, batch_size, range(world.rank, size, world.size), world, workers)


def _loader(dataset: Dataset[Any], batch_size: int, sampler: Any, world: World, workers: int) -> DataLoader[Any]:
    on_device = isinstance(dataset, WholeBatches) and dataset.device.type == "cuda"
    return DataLoader(
        dataset,
        batch_size,
        sampler=sampler,
        # Workers are new in each epoch: old ones would continue with random states that no checkpoint has.
        num_workers=workers,
        generator=torch.Generator(),
        collate_fn=as_it_is if isinstance(dataset, WholeBatches) else None,
        # Pinned memory lets the copy to the GPU overlap with computing.
        pin_memory=world.device.type == "cuda" and not on_device,
    )


Prepare = Callable[[Tensor], Tensor]
"""Function from the loader's batch (n x c x h x w, any type, on the host or the device) to the model's input."""


def preparation(
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
    memory_format: torch.memory_format = torch.contiguous_format,
    change: Prepare | None = None,
) -> Prepare:
    """Return a function that moves images to the device, changes them there (crop, flip) and normalises each channel.

    mean, std: per channel, in the units of the stored pixels (0..255 for uint8).
    """
    shape = (1, -1, 1, 1)
    shift = torch.tensor(mean, device=device).view(shape)
    scale = 1 / torch.tensor(std, device=device).view(shape)

    def prepare(images: Tensor) -> Tensor:
        images = images.to(device, non_blocking=True)
        if change is not None:
            images = change(images)
        return ((images.float() - shift) * scale).contiguous(memory_format=memory_format)

    return prepare


def crop_and_flip(images: Tensor, padding: int = 4) -> Tensor:
    """Shift each image by up to ``padding`` pixels in each direction, filled with black; mirror it with chance 1/2.

    This equals torchvision's RandomCrop and RandomHorizontalFlip on each image; one gather does both for the batch.
    """
    count, channels, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding,) * 4)
    top, left = torch.randint(0, 2 * padding + 1, (2, count, 1, 1), device=device)
    mirrored = torch.rand(count, 1, 1, device=device) < 0.5
    rows = torch.arange(height, device=device).view(1, height, 1)
    columns = torch.arange(width, device=device).view(1, 1, width)
    columns = torch.where(mirrored, width - 1 - columns, columns)
    pixel = (rows + top) * padded.size(3) + columns + left
    pixels = pixel.view(count, 1, height * width).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixels).view(images.shape)


def distribute(model: nn.Module, world: World, bucket_cap_mb: float | None, gradient_as_bucket_view: bool) -> nn.Module:
    """Wrap the model in DDP, which averages gradients over the ranks; return it unchanged without a process group.

    Call net.compile() before: torch.compile then detects DDP around the model and makes one graph for each bucket of
    gradients, so that one bucket is sent while the next is computed.

    bucket_cap_mb: gradients are sent in buckets of about this size, each as soon as it is full; None: torch's 25.
    Larger ones suit networks of high latency, smaller ones start earlier.
    gradient_as_bucket_view: gradients are views of the buckets, which saves a copy and its memory.
    """
    if not dist.is_initialized():
        return model
    return DistributedDataParallel(
        model,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        bucket_cap_mb=bucket_cap_mb,
        gradient_as_bucket_view=gradient_as_bucket_view,
    )


def bare(model: nn.Module) -> nn.Module:
    """Return the model without its DDP or DataParallel wrapper."""
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        inner: nn.Module = model.module
        return inner
    return model


def without_sync(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return a context for all but the last backward pass of an accumulated step: gradients are then sent only once."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def agree_on_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers, such as BatchNorm's running averages, to all ranks.

    Each rank updates its own from its own batches. DDP synchronises them only before the next forward pass, which is
    too late for an evaluation or a checkpoint.
    """
    if dist.is_initialized():
        for buffer in bare(model).buffers():
            dist.broadcast(buffer, 0)


PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The arithmetic of a training: ``with precision.autocast(): loss = ...``, then use ``precision.scaler``.

    fp32  plain, also for convolutions, which cuDNN otherwise computes in TF32
    tf32  float32 in memory, 10 bits of mantissa in the tensor cores (Ampere and newer)
    bf16  mixed precision with bfloat16: the range of float32, so gradients need no scaling
    fp16  mixed precision with float16: small gradients would become 0, so the loss is scaled up

    The scaler exists for all of them, and does nothing if it is not needed.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        tf32 = name == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True  # batches have a constant shape: cuDNN searches its fastest kernels once
        self._device_type = device.type
        self._dtype = _AUTOCAST.get(name)
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context for the forward pass and the loss; the backward pass needs none."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device_type, dtype=self._dtype)


RULES = ("none", "linear", "sqrt")
Factor = Callable[[int], float]
"""Function of the number of optimizer steps done that returns the factor of the learning rate."""


@dataclass(frozen=True)
class Rate:
    """The learning rate of a run, and the fraction of it at which the warm-up begins: the unscaled rate."""

    lr: float
    warmup_from: float


def scaled(lr: float, rule: str, global_batch: int, reference_batch: int) -> Rate:
    """Return the rate for this global batch, from the rate that was chosen for the reference batch.

    linear  Goyal et al. 2017, for SGD: k times the batch, k times the rate
    sqrt    for adaptive optimizers: the noise of the gradient falls with the square root of the batch
    """
    ratio = global_batch / reference_batch
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
    return Rate(lr * factor, min(1.0, 1 / factor))


def cosine(steps: int) -> Factor:
    """Return a factor that falls from 1 to 0 along half a cosine."""
    return lambda done: 0.5 * (1 + math.cos(math.pi * min(1.0, done / max(1, steps))))


def staircase(steps_per_epoch: int, gamma: float) -> Factor:
    """Return a factor that is multiplied by gamma after every epoch."""
    return lambda done: gamma ** (done // steps_per_epoch)


def constant(done: int) -> float:
    """Return 1: a constant rate."""
    return 1.0


def scheduler(optimizer: Optimizer, decay: Factor, warmup_steps: int, warmup_from: float) -> LambdaLR:
    """Return a scheduler with this decay; over the first steps it ramps up from ``warmup_from`` times the rate.

    Without the ramp, large global batches diverge in the first epochs (Goyal et al. 2017).
    """

    def factor(done: int) -> float:
        if done >= warmup_steps:
            return decay(done)
        return decay(done) * (warmup_from + (1 - warmup_from) * done / warmup_steps)

    return LambdaLR(optimizer, factor)


@dataclass
class Training:
    """A model in training, and its progress."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    epoch: int = 0  # complete ones
    samples_done: int = 0  # of this rank, in the current epoch
    history: list[float] = field(default_factory=list)  # accuracy after each epoch


class Checkpoint:
    """``checkpoint.pt`` in a directory, written after each epoch and when a signal stops the run.

    scaler: GradScaler, whose scale adapts during the training.
    facts: settings that must be equal in a resumed run, such as seed, batch and number of ranks.
    """

    def __init__(
        self,
        directory: Path,
        training: Training,
        scaler: torch.amp.GradScaler,
        world: World,
        facts: Mapping[str, Any],
        resume: bool,
    ) -> None:
        self.file = directory / "checkpoint.pt"
        self._training = training
        self._parts: dict[str, Any] = {
            "model": bare(training.model),
            "optimizer": training.optimizer,
            "scheduler": training.scheduler,
            "scaler": scaler,
        }
        self._world = world
        self._facts = dict(facts)
        self._resume = resume

    def save(self) -> None:
        """Write it on rank 0; all ranks have to call this, and return once it is written."""
        training = self._training
        agree_on_buffers(training.model)
        random_states = [_random_state(self._world.device)]
        if dist.is_initialized():
            random_states *= self._world.size
            dist.all_gather_object(random_states, random_states[0])
        if self._world.is_first:
            content = {name: part.state_dict() for name, part in self._parts.items()}
            progress = {
                "epoch": training.epoch,
                "samples_done": training.samples_done,
                "history": training.history,
            }
            save({**content, **progress, "random_states": random_states, "facts": self._facts}, self.file)
        if dist.is_initialized():
            dist.barrier()

    def to_resume(self) -> bool:
        """Return True if there is a checkpoint and the run must resume from it."""
        return self._resume and self.file.exists()

    def resume(self) -> None:
        """Load its state; raise SystemExit if it belongs to a run with other settings."""
        training = self._training
        content = torch.load(self.file, map_location="cpu", weights_only=True)
        self._check(content["facts"])
        for name, part in self._parts.items():
            part.load_state_dict(content[name])
        training.epoch = content["epoch"]
        training.samples_done = content["samples_done"]
        training.history = content["history"]
        _set_random_state(content["random_states"][self._world.rank], self._world.device)

    def _check(self, found: Mapping[str, Any]) -> None:
        names = sorted({*found, *self._facts})
        different = [name for name in names if found.get(name) != self._facts.get(name)]
        if different:
            lines = [f"    {name}: {found.get(name)} there, {self._facts.get(name)} now" for name in different]
            raise SystemExit(
                "\n".join(
                    [f"{self.file} belongs to another run:", *lines, "Use the same, or another --checkpoint-dir."]
                )
            )


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


INTERRUPTED = 75
"""Exit code of a run that saved its state and can be resumed: EX_TEMPFAIL of sysexits.h, "try again"."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Record of the signals, and agreement of the ranks on when to stop.

    A signal may reach one rank earlier than another, or only one of them, but a step needs all ranks. So after each
    step they sum up who has received one. The sum is read after the next step, so that no rank waits for it.
    """

    def __init__(self, world: World) -> None:
        self.stopped = False
        self._signalled = False
        self._alone = world.size == 1
        self._sum = torch.zeros(1)
        self._pending: Any = None
        # The sum is one number on the host, so Gloo is enough and the GPU does not wait.
        self._group: Any = None if self._alone else dist.new_group(backend="gloo")

    def note(self, signum: int, frame: object) -> None:
        """Handle the signal."""
        self._signalled = True

    def agreed(self) -> bool:
        """Return True if all ranks must stop now. Every rank has to call this after every step."""
        if self._alone:
            self.stopped = self._signalled
            return self.stopped
        self.stopped = self._answer()
        self._sum = torch.tensor([float(self._signalled)])
        self._pending = dist.all_reduce(self._sum, group=self._group, async_op=True)
        return self.stopped

    def finish(self) -> None:
        """Wait for the pending sum."""
        self._answer()

    def _answer(self) -> bool:
        if self._pending is None:
            return False
        self._pending.wait()
        self._pending = None
        return bool(self._sum.item() > 0)


@contextlib.contextmanager
def stop_request(world: World, can_save: bool) -> Iterator[Callable[[], bool]]:
    """Handle the signals, and yield ``stop()``, which every rank has to call after every step.

    can_save: if False, because there is no place for checkpoints, signals keep their default and it returns False.
    """
    if not can_save:
        yield lambda: False
        return
    request = StopRequest(world)
    before = {signum: signal.signal(signum, request.note) for signum in SIGNALS}
    try:
        yield request.agreed
        request.finish()
    finally:
        if not request.stopped:  # else another signal, which several senders may give, must not end it as it saves
            for signum, handler in before.items():
                signal.signal(signum, handler)


Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of logits and labels that returns the mean loss over the batch."""


@dataclass(frozen=True)
class Recipe:
    """The computation of a step."""

    prepare: Prepare
    loss: Loss
    precision: Precision
    accumulate: int = 1  # batches per optimizer step
    max_steps: int | None = None  # end the epoch after this many steps


@dataclass(frozen=True)
class Epoch:
    """A finished epoch."""

    number: int  # from 1
    seconds: float
    samples: int  # of all ranks, without the sampler's padding

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds


def fit(
    training: Training,
    recipe: Recipe,
    loader: DataLoader[Any],
    world: World,
    epochs: int,
    checkpoint: Checkpoint | None,
    after_epoch: Callable[[Epoch], None],
    enough: Callable[[list[float]], bool] = lambda history: False,
) -> int:
    """Train for ``epochs`` epochs, or until ``enough(history)``; save after each. Returns the exit code.

    after_epoch: evaluates, prints, and adds to training.history if ``enough`` needs it.
    """
    if checkpoint and checkpoint.to_resume():
        checkpoint.resume()
        world.say(f"resuming from {checkpoint.file}: {training.epoch} epochs are done")
    with stop_request(world, can_save=checkpoint is not None) as stop:
        while training.epoch < epochs and not enough(training.history):
            left = len(loader.dataset) - training.samples_done * world.size  # type: ignore[arg-type]
            begin_s = now(world.device)
            samples = train_epoch(training, recipe, loader, world, stop)
            if checkpoint and samples is None:
                checkpoint.save()
                world.say(f"stopped by a signal: saved {checkpoint.file}, continue with --resume")
                return INTERRUPTED
            after_epoch(Epoch(training.epoch, now(world.device) - begin_s, min(left, (samples or 0) * world.size)))
            if checkpoint:
                checkpoint.save()
    return 0


def now(device: torch.device) -> float:
    """Synchronise with the device and return the clock, in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def train_epoch(
    training: Training, recipe: Recipe, loader: DataLoader[Any], world: World, stop: Callable[[], bool]
) -> int | None:
    """Train on this rank's share of the training set.

    Returns the number of samples, padding included; None if a signal stopped the ranks before the end.
    """
    training.model.train()
    begin_epoch(loader, training.epoch, training.samples_done)
    steps = itertools.islice(in_groups(loader, recipe.accumulate), recipe.max_steps)
    trained = 0
    for batches in steps:
        train_step(training, recipe, batches)
        trained += sum(len(labels) for _, labels in batches)
        if stop():
            training.samples_done += trained
            return None
    training.epoch += 1
    training.samples_done = 0
    return trained


def steps_per_epoch(loader: DataLoader[Any], accumulate: int) -> int:
    """Return the number of optimizer steps of one epoch."""
    return -(-len(loader) // accumulate)


def in_groups(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Yield lists of ``size`` batches; the last one may be shorter."""
    remaining = iter(batches)
    while group := list(itertools.islice(remaining, size)):
        yield group


def train_step(training: Training, recipe: Recipe, batches: list[Batch]) -> None:
    """Make one optimizer step with the gradient of all these batches together, over all ranks."""
    training.optimizer.zero_grad()
    samples = sum(len(labels) for _, labels in batches)
    for batch in batches[:-1]:
        with without_sync(training.model):
            _backward(training, recipe, batch, samples)
    _backward(training, recipe, batches[-1], samples)
    scaler = recipe.precision.scaler
    scale = scaler.get_scale()
    scaler.step(training.optimizer)
    scaler.update()
    # fp16: if the gradients overflow, GradScaler skips the step and lowers the scale. The schedule skips it too.
    if scaler.get_scale() >= scale:
        training.scheduler.step()


def _backward(training: Training, recipe: Recipe, batch: Batch, samples: int) -> None:
    inputs = recipe.prepare(batch[0])
    labels = batch[1].to(inputs.device, non_blocking=True)
    with recipe.precision.autocast():
        # Weight each batch by its share of the step: the last one of an epoch may be smaller.
        loss = recipe.loss(training.model(inputs), labels) * (len(labels) / samples)
    recipe.precision.scaler.scale(loss).backward()


@dataclass(frozen=True)
class Score:
    """The result of an evaluation over all ranks."""

    loss: float  # mean cross-entropy
    accuracy: float  # 0..1
    samples: int


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader[Any], prepare: Prepare, precision: Precision, device: torch.device
) -> Score:
    """Evaluate every sample once, each on one rank, without DDP because ranks may have unequal shares."""
    agree_on_buffers(model)
    model = bare(model)
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, right, samples
    for inputs, labels in loader:
        labels = labels.to(device, non_blocking=True)
        with precision.autocast():
            logits = model(prepare(inputs))
        sums[0] += F.cross_entropy(logits.double(), labels, reduction="sum")
        sums[1] += (logits.argmax(dim=1) == labels).sum()
        sums[2] += len(labels)
    loss, right, samples = total(sums).tolist()
    return Score(loss / samples, right / samples, int(samples))


# A resumed run may change these: they affect places and speed, not what is trained.
FREE = ("data_dir", "checkpoint_dir", "resume", "workers", "data_on", "cores", "save_model")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every workload has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=1, help="of parameters, shuffling and dropout (default: %(default)s)")
    made.add_argument(
        "--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl with a GPU, else gloo"
    )
    made.add_argument(
        "--cores",
        choices=("launcher", "own", "first"),
        default="launcher",
        help="of this process: as the launcher bound it; its own share of those that all ranks of a node have under "
        "torchrun; or the first rank's share, for every rank (default: %(default)s)",
    )
    _add_speed(made)
    _add_learning_rate(made)
    group = made.add_argument_group("checkpoints")
    group.add_argument(
        "--checkpoint-dir", type=Path, help="save after each epoch; on SIGTERM or SIGUSR1 save and exit with code 75"
    )
    group.add_argument("--resume", action="store_true", help="continue from the checkpoint, if there is one")
    return made


def _add_speed(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("arithmetic and communication")
    group.add_argument("--precision", choices=PRECISIONS, default="fp32", help="default: %(default)s")
    group.add_argument("--compile", action="store_true", help="torch.compile the model")
    group.add_argument("--accumulate", type=positive, default=1, metavar="N", help="batches per optimizer step")
    group.add_argument(
        "--bucket-cap-mb",
        type=float,
        metavar="MB",
        help="DDP's gradient buckets (default: torch's 25; compiled: 1 or more)",
    )
    group.add_argument(
        "--gradient-as-bucket-view", action=argparse.BooleanOptionalAction, default=True, help="saves DDP a copy"
    )


def _add_learning_rate(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("learning rate")
    group.add_argument("--lr-rule", choices=RULES, default="none", help="how it follows the global batch")
    group.add_argument(
        "--lr-batch",
        type=positive,
        default=256,
        metavar="N",
        help="global batch it was chosen for (default: %(default)s)",
    )
    group.add_argument("--warmup-epochs", type=float, default=0.0, metavar="E", help="ramp up, from the unscaled rate")


def add_images(made: argparse.ArgumentParser, resident: bool = True) -> None:
    """Add the options that the workloads on images share.

    resident: the images fit into memory and can stay on the device.
    """
    group = made.add_argument_group("images")
    group.add_argument("--channels-last", action=argparse.BooleanOptionalAction, default=True, help="memory layout")
    group.add_argument("--workers", type=int, default=0, help="loader processes per rank (default: %(default)s)")
    if resident:
        group.add_argument(
            "--data-on",
            choices=["device", "host"],
            default="device",
            help="keep all images on the device that trains, or copy each batch there (default: %(default)s)",
        )


def data_device(args: argparse.Namespace, device: torch.device) -> torch.device:
    """Return the device where --data-on keeps the images, for a rank that trains on ``device``."""
    if args.data_on == "host":
        return torch.device("cpu")
    if args.workers:
        raise SystemExit("--workers: images that stay on the device need no loader processes; add --data-on host")
    return device


def memory_format(args: argparse.Namespace) -> torch.memory_format:
    """Return the memory format that --channels-last sets."""
    return torch.channels_last if args.channels_last else torch.contiguous_format


def checkpoint(args: argparse.Namespace, world: World, training: Training, precision: Precision) -> Checkpoint | None:
    """Return the checkpoint that --checkpoint-dir and --resume set; None without --checkpoint-dir."""
    if args.checkpoint_dir is None:
        if args.resume:
            raise SystemExit("--resume needs --checkpoint-dir, where the checkpoint is")
        return None
    return Checkpoint(args.checkpoint_dir, training, precision.scaler, world, facts(args, world), args.resume)


def positive(text: str) -> int:
    """Return the whole number in ``text``, which must be above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def facts(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Return the facts that must be equal in a checkpoint and in the run that resumes it."""
    return {"world_size": world.size, **{key: value for key, value in vars(args).items() if key not in FREE}}
