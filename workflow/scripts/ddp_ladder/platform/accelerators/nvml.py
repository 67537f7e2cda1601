"""The NVIDIA GPUs of a run, through NVML (nvidia-ml-py). Without the package or the driver there is a note and no GPU.

The calls take about a millisecond per GPU. GPUs of AMD are not sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddp_ladder.platform.accelerators.accelerator import NO_REASON, Gpus, MonitoredGpu, Value

REASONS = {
    0x2: "application_clocks", 0x4: "power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost", 0x20: "thermal",
    0x40: "thermal", 0x80: "hw_power_brake", 0x100: "display_clocks", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip
"""Names of nvmlClocksEventReason*; that a GPU is idle (0x1) is none. thermal: by the driver, or by the hardware."""


MIG = "MIG-"
"""A UUID that begins so is of a slice of a GPU. CUDA shows a process one, the first that is named."""


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
    if (first := (chosen or "").partition(",")[0].strip()).startswith(MIG):
        return Gpus([NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(first), 0)])
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
    if sliced := [place for place in places if _is_sliced(nvml, answering[place][0])]:
        names = ", ".join(answering[place][1] for place in sliced)
        return Gpus(notes=(*notes, f"NVML: {names}: in MIG mode, and CUDA_VISIBLE_DEVICES names no slice of it"))
    gpus = [NvidiaGpu(nvml, answering[place][0], index) for index, place in enumerate(places)]
    if not gpus:
        value = "not set" if chosen is None else repr(chosen)
        notes.append(f"NVML: {len(answering)} GPUs are seen; CUDA_VISIBLE_DEVICES is {value}")
    return Gpus(gpus, tuple(notes))


def _is_sliced(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # a GPU without MIG
        return False


class NvidiaGpu:
    """A GPU, or a slice of one (MIG), as SampledGpu describes it.

    A slice has memory of its own. Its clock and its temperature are those of its GPU; power, energy and use of that one
    are also of the other slices, which says nothing of this one.
    """

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
        self._is_slice = uuid.startswith(MIG)
        self._nvml, self._handle = nvml, handle
        self._whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if self._is_slice else handle
        self._first_mj: float | None = None  # of energy, when it was opened
        self._lacks: set[str] = set()  # what it does not report at all: no error later
        self.errors: dict[str, str] = {}
        self.read()
        memory_bytes = self._answer("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
        limit_w = None
        if not self._is_slice:
            limit_w = self._answer("power limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)
        self._lacks, self.errors = {*self.errors}, {}
        self.about = MonitoredGpu(index=index, name=name, uuid=uuid, memory_bytes=memory_bytes, power_limit_w=limit_w)

    def read(self) -> dict[str, Value]:
        nvml, handle, whole = self._nvml, self._handle, self._whole
        calls: dict[str, Callable[[], Value]] = {
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(whole, nvml.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM),
            "throttle_reasons": lambda: reasons(self._reasons()),
        }
        if not self._is_slice:
            calls |= {
                "busy_fraction": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                "energy_j": self._energy_j,
            }
        answers = {name: self._answer(name, call) for name, call in calls.items()}
        return {name: value for name, value in answers.items() if value is not None}

    def _reasons(self) -> int:
        try:
            bits = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._whole)
        except self._nvml.NVMLError_FunctionNotFound:  # its name before driver 535
            bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._whole)
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
