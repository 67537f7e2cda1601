"""The state in a checkpoint: a resumed run ends as if it had never been interrupted.

On CPUs the results are equal bit for bit. On a GPU two runs differ in the last bits anyway, by the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from common.distributed import World
from common.files import save
from common.parallel import agree_on_buffers, bare

NAME = "checkpoint.pt"


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
        self.file = directory / NAME
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
