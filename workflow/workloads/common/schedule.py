"""Learning rate: scaled with the global batch, warmed up, decayed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

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
