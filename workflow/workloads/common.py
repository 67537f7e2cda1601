"""The parts that the five workloads share: plain PyTorch, Python 3.9 and torch 2.4, or newer.

In this order: the process group; the image sets; loaders; augmentation on the device; DDP; precision; checkpoints;
the training loop; options.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
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


@dataclass(frozen=True)
class World:
    """The rank, world size and device of this process."""

    rank: int
    size: int
    device: torch.device

    def say(self, *lines: str) -> None:
        """Print on rank 0 only."""
        if self.rank == 0:
            print(*lines, sep="\n", flush=True)


@contextlib.contextmanager
def process_group(backend: str = "auto") -> Iterator[World]:
    """Join the group that torchrun's variables describe and destroy it at the end; without them there is none.

    backend: nccl, gloo, or auto, which is nccl with a GPU and gloo without.
    After an exception the group is not destroyed, because that could wait for ranks that never reach it.
    """
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before NCCL starts, or every process takes GPU 0
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "nccl" and device.type != "cuda":
        raise SystemExit("--backend nccl needs a GPU, and torch sees none: use --backend gloo, or auto")
    if "RANK" not in os.environ:
        yield World(0, 1, device)
        return
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    # A rank that refuses its arguments now would close connections that others are still making (Gloo).
    dist.barrier()
    yield World(dist.get_rank(), dist.get_world_size(), device)
    dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 1:  # Slurm may show each task its own GPU only (--gpus-per-task)
        return torch.device("cuda", 0)
    if local_rank >= count:
        raise SystemExit(f"local rank {local_rank} has no GPU: {count} are visible; start at most {count} processes")
    return torch.device("cuda", local_rank)


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


def digits(directory: Path) -> ImageSet:
    """Return scikit-learn's bundled digits, 8 x 8 pixels of 0..1, as prepare_images.py wrote them."""
    file = directory / "digits.pt"
    if not file.exists():
        raise SystemExit(
            f"{file} is missing: write it with python workflow/workloads/prepare_images.py digits {directory}"
        )
    splits: dict[str, Tensor] = torch.load(file, weights_only=True)
    return ImageSet(**splits, mean=[0.305], std=[0.376])


def mnist(directory: Path) -> ImageSet:
    """Return MNIST, 28 x 28 pixels of 0..255, from IDX files in <directory>/MNIST/raw, as torchvision keeps them."""
    from torchvision import datasets

    train, test = _both(datasets.MNIST, directory, "mnist")
    return ImageSet(train.data.unsqueeze(1), train.targets, test.data.unsqueeze(1), test.targets, [33.32], [78.57])


def cifar100(directory: Path) -> ImageSet:
    """Return CIFAR-100, 3 x 32 x 32 pixels of 0..255, from torchvision's <directory>/cifar-100-python."""
    from torchvision import datasets

    train, test = _both(datasets.CIFAR100, directory, "cifar100")
    images = [torch.from_numpy(split.data).permute(0, 3, 1, 2) for split in (train, test)]
    labels = [torch.tensor(split.targets) for split in (train, test)]
    return ImageSet(images[0], labels[0], images[1], labels[1], [129.30, 124.07, 112.43], [68.17, 65.39, 70.42])


def _both(kind: Any, directory: Path, name: str) -> tuple[Any, Any]:
    try:
        return kind(str(directory), train=True), kind(str(directory), train=False)
    except RuntimeError as error:  # torchvision's "Dataset not found or corrupted"
        raise SystemExit(
            f"{kind.__name__} is not in {directory}, or damaged: fetch it with\n"
            f"    python workflow/workloads/prepare_images.py {name} {directory}\n"
            "in one process, before the training starts"
        ) from error


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


def begin_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Shuffle for this epoch, and seed the loader's workers, dropout and augmentation, which differ between ranks."""
    shards: Any = loader.sampler
    shards.set_epoch(epoch)
    seed = 1_000_003 * shards.seed + 10_007 * (shards.rank + 1) + epoch
    generator: Any = loader.generator
    generator.manual_seed(seed)
    torch.manual_seed(seed)


def train_loader(dataset: Dataset[Any], batch_size: int, world: World, seed: int, workers: int) -> DataLoader[Any]:
    """Return a loader of this rank's share, shuffled in each epoch. ``batch_size`` is that of one rank.

    Every rank gets the same number of samples: up to world size - 1 of them occur twice in an epoch.
    """
    shards: Any = DistributedSampler(dataset, num_replicas=world.size, rank=world.rank, seed=seed)
    return _loader(dataset, batch_size, shards, world, workers)


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
    memory_format: torch.memory_format = torch.channels_last,
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


def distribute(net: nn.Module, world: World, compiled: bool = False) -> nn.Module:
    """Wrap the network in DDP, which averages gradients over the ranks; without a process group it stays unwrapped.

    compiled: torch.compile detects DDP around the network and makes one graph for each bucket of gradients, so that
    one bucket is sent while the next is computed.
    """
    if compiled:
        net.compile()
    if not dist.is_initialized():
        return net
    on_gpu = world.device.type == "cuda"
    # Gradients that are views of DDP's buckets save a copy and its memory.
    return DistributedDataParallel(net, device_ids=[world.device] if on_gpu else None, gradient_as_bucket_view=True)


def bare(model: nn.Module) -> nn.Module:
    """Return the model without its DDP or DataParallel wrapper."""
    inner: nn.Module = getattr(model, "module", model)
    return inner


def agree_on_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers, such as BatchNorm's running averages, to all ranks.

    Each rank updates its own from its own batches. DDP synchronises them only before the next forward pass, which is
    too late for an evaluation or a checkpoint.
    """
    if dist.is_initialized():
        for buffer in bare(model).buffers():
            dist.broadcast(buffer, 0)


AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The arithmetic of a training: ``with precision.autocast(): loss = ...``, then use ``precision.scaler``.

    fp32  plain, also for convolutions, which cuDNN otherwise computes in TF32
    bf16  mixed precision with bfloat16: the range of float32, so gradients need no scaling
    fp16  mixed precision with float16: small gradients would become 0, so the loss is scaled up

    The scaler exists for all of them, and does nothing if it is not needed.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True  # batches have a constant shape: cuDNN searches its fastest kernels once
        self._device_type = device.type
        self._dtype = AUTOCAST[name]
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        """Return the context for the forward pass and the loss; the backward pass needs none."""
        return torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None)


def warmed_up_cosine(optimizer: Optimizer, warmup_steps: int, steps: int) -> LambdaLR:
    """Return a scheduler that ramps the rate up while it falls along half a cosine.

    Without the ramp, large global batches diverge in the first epochs (Goyal et al. 2017).
    """

    def factor(done: int) -> float:
        ramp = min(1.0, (done + 1) / (warmup_steps + 1))
        return ramp * 0.5 * (1 + math.cos(math.pi * min(1.0, done / steps)))

    return LambdaLR(optimizer, factor)


@dataclass
class Training:
    """A model in training, and its progress."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None = None  # None: a constant rate
    epoch: int = 0  # complete ones


GO_ON = 75  # exit code of a training that has saved its state, and has more to do


def state_parts(training: Training, precision: Precision) -> dict[str, Any]:
    """Return everything that has a state, by its name in the checkpoint."""
    parts: dict[str, Any] = {"model": bare(training.model), "optimizer": training.optimizer}
    parts["scaler"] = precision.scaler
    if training.scheduler:
        parts["scheduler"] = training.scheduler
    return parts


def save_checkpoint(directory: Path, training: Training, precision: Precision, world: World) -> None:
    """Write <directory>/checkpoint.pt on rank 0; all ranks have to call this, and return once it is written."""
    agree_on_buffers(training.model)
    if world.rank == 0:
        content = {name: part.state_dict() for name, part in state_parts(training, precision).items()}
        save({**content, "epoch": training.epoch}, directory / "checkpoint.pt")
    if dist.is_initialized():
        dist.barrier()


def load_checkpoint(directory: Path, training: Training, precision: Precision) -> None:
    """Go on from <directory>/checkpoint.pt, on every rank, if there is one."""
    file = directory / "checkpoint.pt"
    if not file.exists():
        return
    content = torch.load(file, map_location="cpu", weights_only=True)
    for name, part in state_parts(training, precision).items():
        part.load_state_dict(content[name])
    training.epoch = content["epoch"]


class TimeWarning:
    """SIGUSR1, which tells that the job's time is nearly up (sbatch --signal=USR1@300 and a trap, or ddp-ladder)."""

    def __init__(self) -> None:
        self._came = False
        signal.signal(signal.SIGUSR1, self._note)

    def _note(self, *_: object) -> None:
        self._came = True

    def came(self, device: torch.device) -> bool:
        """Return whether a rank got it. All ranks have to call this: one that ended alone would leave the others."""
        came = torch.tensor(float(self._came), device=device)
        if dist.is_initialized():
            dist.all_reduce(came, dist.ReduceOp.MAX)
        return bool(came)


Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of logits and labels that returns the mean loss over the batch."""


@dataclass(frozen=True)
class Recipe:
    """The computation of a step."""

    prepare: Prepare
    loss: Loss
    precision: Precision
    accumulate: int = 1  # batches per optimizer step


def fit(
    training: Training,
    recipe: Recipe,
    train: DataLoader[Any],
    test: DataLoader[Any],
    world: World,
    args: argparse.Namespace,
    prepare_test: Prepare | None = None,
) -> int:
    """Train for --epochs epochs; evaluate, print and save after each. Returns the exit code.

    prepare_test: of the held-out batches, if it is not that of the recipe.
    """
    if args.checkpoint_dir is not None:
        warning = TimeWarning()
        load_checkpoint(args.checkpoint_dir, training, recipe.precision)
        if training.epoch:
            world.say(f"goes on after epoch {training.epoch}")
    while training.epoch < args.epochs:
        begin_s = now(world.device)
        train_epoch(training, recipe, train)
        samples_per_s = len(train.dataset) / (now(world.device) - begin_s)  # type: ignore[arg-type]
        score = evaluate(training.model, test, prepare_test or recipe.prepare, recipe.precision, world.device)
        world.say(
            f"epoch {training.epoch:3d}  {samples_per_s:,.1f} samples/s  loss {score.loss:.4f}  "
            f"held-out accuracy {100 * score.accuracy:.2f} %"
        )
        if args.checkpoint_dir is not None:
            save_checkpoint(args.checkpoint_dir, training, recipe.precision, world)
            if warning.came(world.device) and training.epoch < args.epochs:
                return GO_ON
    return 0


def now(device: torch.device) -> float:
    """Synchronise with the device and return the clock, in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def train_epoch(training: Training, recipe: Recipe, loader: DataLoader[Any]) -> None:
    """Train on this rank's share of the training set."""
    training.model.train()
    begin_epoch(loader, training.epoch)
    for batches in in_groups(loader, recipe.accumulate):
        train_step(training, recipe, batches)
    training.epoch += 1


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
    model, scaler = training.model, recipe.precision.scaler
    for index, (inputs, labels) in enumerate(batches, 1):
        inputs = recipe.prepare(inputs)
        labels = labels.to(inputs.device, non_blocking=True)
        # Only the last backward pass of an accumulated step sends gradients.
        waits = index < len(batches) and isinstance(model, DistributedDataParallel)
        with model.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
            with recipe.precision.autocast():
                # Weight each batch by its share of the step: the last one of an epoch may be smaller.
                loss = recipe.loss(model(inputs), labels) * (len(labels) / samples)
            scaler.scale(loss).backward()
    scale = scaler.get_scale()
    scaler.step(training.optimizer)
    scaler.update()
    # fp16: if the gradients overflow, GradScaler skips the step and lowers the scale. The schedule skips it too.
    if training.scheduler and scaler.get_scale() >= scale:
        training.scheduler.step()


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
        sums[2] += labels.numel()
    if dist.is_initialized():
        dist.all_reduce(sums)
    loss, right, samples = sums.tolist()
    return Score(loss / samples, right / samples, int(samples))


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every workload has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=1, help="of parameters, shuffling and dropout (default: %(default)s)")
    made.add_argument(
        "--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl with a GPU, else gloo"
    )
    made.add_argument("--precision", choices=AUTOCAST, default="fp32", help="default: %(default)s")
    made.add_argument("--compile", action="store_true", help="torch.compile the model")
    made.add_argument("--accumulate", type=positive, default=1, metavar="N", help="batches per optimizer step")
    made.add_argument(
        "--checkpoint-dir",
        type=Path,
        help="save there after each epoch, and go on from there; at SIGUSR1 end after the epoch, with exit code 75",
    )
    return made


def positive(text: str) -> int:
    """Return the whole number in ``text``, which must be above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number
