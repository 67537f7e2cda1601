"""The training loop: epochs, steps and evaluation."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from common.augment import Prepare
from common.console import progress, say
from common.distributed import World, total
from common.interrupt import INTERRUPTED, stop_request
from common.loaders import Batch, begin_epoch
from common.parallel import agree_on_buffers, bare, without_sync
from common.precision import Precision
from common.training import Checkpoint, Training

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


def never(history: list[float]) -> bool:
    """Return False; as ``enough`` of ``fit``, it trains all epochs."""
    return False


def fit(
    training: Training,
    recipe: Recipe,
    loader: DataLoader[Any],
    world: World,
    epochs: int,
    checkpoint: Checkpoint | None,
    after_epoch: Callable[[Epoch], None],
    enough: Callable[[list[float]], bool] = never,
) -> int:
    """Train for ``epochs`` epochs, or until ``enough(history)``; save after each. Returns the exit code.

    after_epoch: evaluates, prints, and adds to training.history if ``enough`` needs it.
    """
    if checkpoint and checkpoint.to_resume():
        settle_buckets(training, recipe, loader)
        checkpoint.resume()
        say(world, f"resuming from {checkpoint.file}: {training.epoch} epochs are done")
    with stop_request(world, can_save=checkpoint is not None) as stop:
        while training.epoch < epochs and not enough(training.history):
            left = len(loader.dataset) - training.samples_done * world.size  # type: ignore[arg-type]
            begin_s = now(world.device)
            samples = train_epoch(training, recipe, loader, world, stop)
            if checkpoint and samples is None:
                checkpoint.save()
                say(world, f"stopped by a signal: saved {checkpoint.file}, continue with --resume")
                return INTERRUPTED
            after_epoch(Epoch(training.epoch, now(world.device) - begin_s, min(left, (samples or 0) * world.size)))
            if checkpoint:
                checkpoint.save()
    return 0


def settle_buckets(training: Training, recipe: Recipe, loader: DataLoader[Any]) -> None:
    """Run a backward pass and drop its results, before the state of a checkpoint is loaded.

    DDP rebuilds its buckets after the first one. With three or more ranks, the layout decides the order in which the
    ranks' gradients are added, and so their last bits. A resumed run has to begin with the final layout.
    """
    begin_epoch(loader, 0, 0)
    batch = next(iter(loader))
    _backward(training, recipe, batch, len(batch[1]))
    training.optimizer.zero_grad()


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
    for batches in progress(world, steps, steps_per_epoch(loader, recipe.accumulate), f"epoch {training.epoch + 1}"):
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
