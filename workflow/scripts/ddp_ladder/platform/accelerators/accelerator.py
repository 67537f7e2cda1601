"""What an accelerator is to the workflow: its names, the GPUs of a node, and what samples them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from ddp_ladder_instrument.contract import WARMUP_STEPS
from pydantic import Field

from ddp_ladder.common.model import Model
from ddp_ladder.common.process import run_bounded

WITHIN_S = 20.0  # for the driver's program, which needs seconds where no daemon keeps the driver loaded
LONGEST_ERROR = 500  # characters of a program's words
NO_REASON = "none"  # for a lower clock

Value = float | str | None


class NodeGpu(Model):
    """A GPU as the driver's program shows it. Null: not known."""

    index: int
    uuid: str
    name: str
    driver: str
    power_limit_w: float | None
    memory_used_mib: float | None


class MonitoredGpu(Model):
    """A GPU that the run may use. Null: the driver does not report it."""

    index: Annotated[int, Field(ge=0)]  # the i of the columns gpu<i>_...: its place among the GPUs that the run may use
    name: Annotated[str, Field(min_length=1)]
    uuid: Annotated[str, Field(min_length=1)]
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    power_limit_w: float | None = None  # the limit that is enforced now


class SampledGpu(Protocol):
    """A GPU that is sampled."""

    about: MonitoredGpu
    errors: dict[str, str]  # why later samples lack what the first one had, by column

    def read(self) -> dict[str, Value]:
        """Return its columns without gpu<i>_; a value that it does not report is left out."""


@dataclass
class Gpus:
    """The GPUs of a run."""

    sampled: Sequence[SampledGpu] = ()
    notes: tuple[str, ...] = ()  # what is not sampled, and why

    def sample(self) -> dict[str, Value]:
        return {f"gpu{k}_{name}": value for k, gpu in enumerate(self.sampled) for name, value in gpu.read().items()}

    @property
    def errors(self) -> list[str]:
        """Why values are missing."""
        return [f"GPU {k}: {what}: {why}" for k, gpu in enumerate(self.sampled) for what, why in gpu.errors.items()]


class Accelerator:
    """What ranks train on, one for each. A subclass says what differs; this one is a GPU of which nothing is known."""

    name: str  # of torch.device, and of ``node.device``
    is_for: str  # whose it is: the rest of a sentence that begins with its name
    title: str  # what torch is built for, in messages
    is_gpu = True
    backend: str  # of torch.distributed, unless the settings name another one
    warmup_steps = WARMUP_STEPS  # unless measure.warmup_steps is set
    clock = "device events"  # what times a step
    visible_variable: str | None = None  # limits the devices that a process sees
    program: str | None = None  # of the driver; lists the GPUs of a node
    # Commands whose answers describe a node, by the name of the file that keeps them.
    commands: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def described(self, answers: Mapping[str, str]) -> str | None:
        """Return number, model and driver of a node's GPUs. answers: to ``commands``, as far as there are any."""
        return None

    def gpus(self, within_s: float = WITHIN_S) -> tuple[NodeGpu, ...]:
        """Return the GPUs of this node; none without the driver's program. Raises OSError, with its words."""
        return ()

    def visible_gpus(self, value: str | None, uuids: Sequence[str]) -> list[int]:
        """Return the places of the GPUs that a value of ``visible_variable`` leaves to a process, in its order.

        uuids: of all GPUs. None is all of them.
        """
        return list(range(len(uuids)))

    def monitor(self, environment: Mapping[str, str]) -> Gpus:
        """Return the GPUs that a process with this environment may use, to be sampled."""
        return Gpus(notes=(f"GPUs: not sampled, nothing here reads those of device {self.name}",))


def answer(command: Sequence[str], within_s: float) -> str:
    """Return what the driver's program prints. Raises OSError with its words if it fails."""
    try:
        code, printed = run_bounded(command, within_s)
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {within_s:g} s") from None
    if code != 0:
        raise OSError(printed.strip()[:LONGEST_ERROR] or f"{command[0].rpartition('/')[2]} ended with {code}")
    return printed
