"""The GPUs of a run as the monitor sees them, whatever library reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from ddp_ladder.monitor.models import MonitoredGpu
from ddp_ladder.monitor.rates import Rates

OPEN_WITHIN_S = 60.0  # a driver without persistence mode sets each GPU up again

Value = float | str | None


@dataclass(frozen=True)
class Reading:
    """What a GPU reports at one time; None: unknown.

    values: columns without gpu<i>_. counters: bytes that only grow, by the name of their rate's column without _per_s.
    energy_j: since the driver was loaded.
    """

    values: Mapping[str, Value]
    counters: dict[str, float | None] = field(default_factory=dict)
    energy_j: float | None = None


class Gpu(Protocol):
    """A GPU that can be read. errors: by what was asked, why it failed, other than for lack of support."""

    about: MonitoredGpu
    errors: dict[str, str]

    def read(self, slow: bool) -> Reading:
        """Read all values. slow: also those that take long; one GPU at a time is asked for them."""


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a run, and what of them cannot be sampled, and why."""

    each: Sequence[Gpu] = ()
    notes: tuple[str, ...] = ()


class GpuColumns:
    """The columns of all GPUs, sample after sample."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._rates = [Rates() for _ in gpus]
        self._first_j: dict[int, float] = {}
        self._turn = 0

    def sample(self, now_s: float) -> dict[str, Value]:
        """Read each GPU and return its columns. now_s: on the monotonic clock."""
        columns: dict[str, Value] = {}
        for index, gpu in enumerate(self._gpus):
            reading = gpu.read(slow=index == self._turn)
            values = dict(reading.values)
            if reading.energy_j is not None:
                values["energy_j"] = reading.energy_j - self._first_j.setdefault(index, reading.energy_j)
            for name, rate in self._rates[index].of(reading.counters, now_s).items():
                if values.get(f"{name}_per_s") is None:
                    values[f"{name}_per_s"] = rate
            columns.update({f"gpu{index}_{name}": value for name, value in values.items()})
        self._turn = (self._turn + 1) % max(1, len(self._gpus))
        return columns

    @property
    def errors(self) -> list[str]:
        """Why values are missing."""
        return [f"GPU {k}: {what}: {why}" for k, gpu in enumerate(self._gpus) for what, why in gpu.errors.items()]


def opened(open_gpus: Callable[[], Gpus], within_s: float = OPEN_WITHIN_S) -> Gpus:
    """Return what open_gpus does; no GPUs and a note if it takes too long: a driver may hang."""
    answers: SimpleQueue[Gpus] = SimpleQueue()
    threading.Thread(target=lambda: answers.put(open_gpus()), daemon=True).start()
    try:
        return answers.get(timeout=within_s)
    except Empty:
        return Gpus(notes=(f"GPUs: the driver did not answer within {within_s:g} s",))


def visible(value: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the places of the GPUs that CUDA_VISIBLE_DEVICES leaves to a process, in its order.

    uuids: of all GPUs. None is all of them. As in CUDA the first word that names none ends the list.
    """
    if value is None:
        return list(range(len(uuids)))
    places: list[int] = []
    for word in value.split(","):
        named = _named(word.strip(), uuids)
        if named is None or named in places:
            break
        places.append(named)
    return places


def _named(word: str, uuids: Sequence[str]) -> int | None:
    if word.isdigit():
        return int(word) if int(word) < len(uuids) else None
    found = [place for place, uuid in enumerate(uuids) if word and uuid.startswith(word)]
    return found[0] if len(found) == 1 else None
