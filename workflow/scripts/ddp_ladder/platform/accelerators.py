"""The accelerators: a class for each, with its names, the GPUs of a node, and what samples them.

A new one is a class here, and its place in ``ACCELERATORS``; in the training process, what the module ``accelerator``
of the instrument asks. NVIDIA's GPUs are shown by nvidia-smi and sampled through NVML (nvidia-ml-py), whose calls take
about a millisecond per GPU; without the package or the driver there is a note and no GPU. GPUs of AMD, which torch
calls cuda, too, are neither shown nor sampled.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

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


@dataclass
class Gpus:
    """The GPUs of a run."""

    sampled: Sequence[NvidiaGpu] = ()
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


REASONS = {
    0x2: "application_clocks", 0x4: "power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost", 0x20: "thermal",
    0x40: "thermal", 0x80: "hw_power_brake", 0x100: "display_clocks", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip
"""Names of nvmlClocksEventReason*; that a GPU is idle (0x1) is none. thermal: by the driver, or by the hardware."""


MIG = "MIG-"
"""A UUID that begins so is of a slice of a GPU."""


def visible_gpus(value: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the places of the GPUs that CUDA_VISIBLE_DEVICES leaves to a process, in its order.

    uuids: of all GPUs. None is all of them. As in CUDA the first word that names none ends the list.
    """
    if value is None:
        return list(range(len(uuids)))
    places: list[int] = []
    for word in map(str.strip, value.split(",")):
        by_index = word.isdigit()
        named = [k for k, uuid in enumerate(uuids) if (word == str(k) if by_index else word and uuid.startswith(word))]
        if len(named) != 1 or named[0] in places:
            break
        places += named
    return places


def open_nvidia(environment: Mapping[str, str]) -> Gpus:
    """Return the NVIDIA GPUs that a process with this environment may use."""
    try:
        import pynvml as nvml
    except ImportError as error:
        return Gpus(notes=(f"NVML: {error}; pip install nvidia-ml-py",))
    try:
        nvml.nvmlInit()
        return _gpus(nvml, environment.get("CUDA_VISIBLE_DEVICES"))
    except nvml.NVMLError as error:
        return Gpus(notes=(f"NVML: {error} (GPUs of AMD are not sampled)",))


def _gpus(nvml: Any, chosen: str | None) -> Gpus:
    if MIG in (chosen or ""):
        return Gpus(notes=("NVML: slices of GPUs (MIG) are not sampled",))
    answering: list[tuple[Any, str]] = []  # handle and UUID
    notes: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            answering.append((handle, nvml.nvmlDeviceGetUUID(handle)))
        except nvml.NVMLError_NoPermission:  # a cgroup keeps it for other jobs, also from CUDA
            continue
        except nvml.NVMLError as error:  # the others of its node still answer
            notes.append(f"NVML: GPU {index} of the driver's: {error}")
    places = visible_gpus(chosen, [uuid for *_, uuid in answering])
    gpus = [NvidiaGpu(nvml, answering[place][0], index) for index, place in enumerate(places)]
    if not gpus:
        value = "not set" if chosen is None else repr(chosen)
        notes.append(f"NVML: {len(answering)} GPUs are seen; CUDA_VISIBLE_DEVICES is {value}")
    return Gpus(gpus, tuple(notes))


class NvidiaGpu:
    """A GPU that is sampled. errors: why later samples lack what the first one had, by column."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
        self._nvml, self._handle = nvml, handle
        self._first_mj: float | None = None  # of energy, when it was opened
        self._lacks: set[str] = set()  # what it does not report at all: no error later
        self.errors: dict[str, str] = {}
        self.read()
        memory_bytes = self._answer("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
        limit_w = self._answer("power limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)
        self._lacks, self.errors = {*self.errors}, {}
        self.about = MonitoredGpu(index=index, name=name, uuid=uuid, memory_bytes=memory_bytes, power_limit_w=limit_w)

    def read(self) -> dict[str, Value]:
        """Return its columns without gpu<i>_; a value that it does not report is left out."""
        nvml, handle = self._nvml, self._handle
        calls: dict[str, Callable[[], Value]] = {
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "throttle_reasons": lambda: reasons(self._reasons()),
            "busy_fraction": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "energy_j": self._energy_j,
        }
        answers = {name: self._answer(name, call) for name, call in calls.items()}
        return {name: value for name, value in answers.items() if value is not None}

    def _reasons(self) -> int:
        try:
            bits = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except self._nvml.NVMLError_FunctionNotFound:  # its name before driver 535
            bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        return int(bits)

    def _energy_j(self) -> float:
        energy_mj = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        self._first_mj = energy_mj if self._first_mj is None else self._first_mj
        return float(energy_mj - self._first_mj) / 1000

    def _answer(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._nvml.NVMLError as error:
            if what not in self._lacks:
                self.errors.setdefault(what, str(error))
            return None


def reasons(bits: int) -> str:
    """Return the names of the reasons for a lower clock, joined by +, or ``none``."""
    return "+".join(dict.fromkeys(name for bit, name in REASONS.items() if bits & bit)) or NO_REASON


QUERY = ("--query-gpu=uuid,name,driver_version,power.limit,memory.used", "--format=csv,noheader,nounits")


class Cuda(Accelerator):
    """GPUs that torch reaches through CUDA or ROCm."""

    name = "cuda"
    is_for = "for NVIDIA and AMD GPUs"
    title = "CUDA"
    backend = "nccl"
    clock = "CUDA events"
    visible_variable = "CUDA_VISIBLE_DEVICES"
    program = "nvidia-smi"

    def gpus(self, within_s: float = WITHIN_S) -> tuple[NodeGpu, ...]:
        command = shutil.which(self.program)
        printed = "" if command is None else answer((command, *QUERY), within_s)
        rows = [line.split(", ") for line in printed.splitlines() if line.count(", ") == 4]
        return tuple(
            NodeGpu(
                index=index,
                uuid=uuid,
                name=name,
                driver=driver,
                power_limit_w=_number(limit),
                memory_used_mib=_number(used),
            )
            for index, (uuid, name, driver, limit, used) in enumerate(rows)
        )

    def visible_gpus(self, value: str | None, uuids: Sequence[str]) -> list[int]:
        """With MIG, whose devices are parts of GPUs, all."""
        return visible_gpus(None if MIG in (value or "") else value, uuids)

    def monitor(self, environment: Mapping[str, str]) -> Gpus:
        return open_nvidia(environment)


def _number(text: str) -> float | None:
    """Return a figure; None for one that is not known (``[N/A]``, ``[Unknown Error]``)."""
    return None if text.startswith("[") else float(text)


class Cpu(Accelerator):
    """CPUs. What the settings call a GPU is one process."""

    name = "cpu"
    is_for = "without GPUs (the backend is then Gloo)"
    title = "CPUs"
    is_gpu = False
    backend = "gloo"
    warmup_steps = 10
    clock = "the host's clock"

    def monitor(self, environment: Mapping[str, str]) -> Gpus:
        return Gpus(notes=("GPUs: not sampled, the run trains on CPUs",))


ACCELERATORS: dict[str, Accelerator] = {kind.name: kind for kind in (Cuda(), Cpu())}


def is_gpu(kind: str) -> bool:
    """Return True if a torch device of this kind is a GPU; False also for one that is none of ours."""
    return kind in ACCELERATORS and ACCELERATORS[kind].is_gpu
