"""The NVIDIA GPUs of a run, through NVML (nvidia-ml-py). Without the package or the driver there is a note and no GPU.

The calls take about a millisecond per GPU. nvmlDeviceGetPcieThroughput counts for 20 ms, so where GPM does not have its
figures, only one GPU at a time is asked. GPUs of AMD are not sampled.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from ddp_ladder.nodes.files import NO_REASON, MonitoredGpu

OPEN_WITHIN_S = 60.0  # a driver without persistence mode sets each GPU up again
SHORTEST_S = 0.1  # between two samples of a rate: counters of CPU time have steps of 10 ms
REASONS = {
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",  # by the driver
    0x40: "thermal",  # by the hardware
    0x80: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Names of nvmlClocksEventReason*; that a GPU is idle (0x1) is none."""

MIB = 1 << 20
GPM = {
    "sm_active_fraction": (2, 0.01),  # SM_UTIL; figures of percent
    "tensor_active_fraction": (5, 0.01),  # ANY_TENSOR_UTIL
    "dram_active_fraction": (10, 0.01),  # DRAM_BW_UTIL
    "pcie_sent_bytes_per_s": (20, MIB),
    "pcie_received_bytes_per_s": (21, MIB),
}
"""Column, metric and its unit."""
NVLINK = {"nvlink_sent_bytes": 138, "nvlink_received_bytes": 139}  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, KiB
ALL_LINKS = 0xFFFFFFFF

Value = float | str | None


class Rates:
    """Rates per second of counters that only grow, from one sample to the next. Unknown values are None."""

    def __init__(self) -> None:
        self._last: Mapping[str, float | None] = {}
        self._last_s: float | None = None

    def of(self, counters: Mapping[str, float | None], now_s: float) -> dict[str, float | None]:
        """Return the rate of each counter since the call before, its name with _per_s.

        now_s: on the monotonic clock. A rate is None in the first call, after less than SHORTEST_S, if the counter is
        not known now or was not then, and if it was set back.
        """
        elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s
        rates: dict[str, float | None] = {}
        for name, now in counters.items():
            before = self._last.get(name)
            known = before is not None and now is not None and elapsed_s >= SHORTEST_S and now >= before
            rates[f"{name}_per_s"] = (now - before) / elapsed_s if known else None  # type: ignore[operator]
        self._last, self._last_s = counters, now_s
        return rates


class Gpu(Protocol):
    """A GPU that can be read. errors: by what was asked, why it failed, other than for lack of support."""

    about: MonitoredGpu
    errors: dict[str, str]

    def read(self, now_s: float, slow: bool) -> Mapping[str, Value]:
        """Return its columns without gpu<i>_. now_s: on the monotonic clock. slow: also those that take long."""


@dataclass
class Gpus:
    """The GPUs of a run, and what of them cannot be sampled, and why."""

    each: Sequence[Gpu] = ()
    notes: tuple[str, ...] = ()
    _turn: int = field(default=0, compare=False, repr=False)

    def sample(self, now_s: float) -> dict[str, Value]:
        """Read each GPU and return its columns; one GPU at a time is asked for what takes long."""
        columns: dict[str, Value] = {}
        for index, gpu in enumerate(self.each):
            values = gpu.read(now_s, slow=index == self._turn)
            columns.update({f"gpu{index}_{name}": value for name, value in values.items()})
        self._turn = (self._turn + 1) % max(1, len(self.each))
        return columns

    @property
    def errors(self) -> list[str]:
        """Why values are missing."""
        return [f"GPU {k}: {what}: {why}" for k, gpu in enumerate(self.each) for what, why in gpu.errors.items()]


def opened(open_gpus: Callable[[], Gpus], within_s: float = OPEN_WITHIN_S) -> Gpus:
    """Return what open_gpus does; no GPUs and a note if it takes too long: a driver may hang."""
    answers: SimpleQueue[Gpus] = SimpleQueue()
    threading.Thread(target=lambda: answers.put(open_gpus()), daemon=True).start()
    try:
        return answers.get(timeout=within_s)
    except Empty:
        return Gpus(notes=(f"GPUs: the driver did not answer within {within_s:g} s",))


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
    notes: list[str] = []
    if chosen is not None and chosen.startswith("MIG-"):
        handles = [nvml.nvmlDeviceGetHandleByUUID(word) for word in chosen.split(",")]
        notes.append("MIG: the figures of an instance, as far as NVML has them")
    else:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                found.append(nvml.nvmlDeviceGetHandleByIndex(index))
            except nvml.NVMLError_NoPermission:  # a cgroup keeps it for other jobs; CUDA does not count it either
                continue
        handles = [found[place] for place in _visible(chosen, [nvml.nvmlDeviceGetUUID(handle) for handle in found])]
        if not handles:
            seen = f"{len(found)} GPUs are seen"
            notes.append(f"NVML: {seen}; CUDA_VISIBLE_DEVICES is {'not set' if chosen is None else repr(chosen)}")
    gpus = [NvidiaGpu(nvml, handle, index) for index, handle in enumerate(handles)]
    lacks: dict[str, list[str]] = {}
    for gpu in gpus:
        gpu.read(math.inf, slow=True)  # so that the notes are complete; at no time, so that no rate counts from it
        if gpu.lacks:
            text = ", ".join(f"{what} ({why})" for what, why in gpu.lacks.items())
            lacks.setdefault(text, []).append(str(gpu.about.index))
    notes += [f"GPU {', '.join(indices)} does not report {text}" for text, indices in lacks.items()]
    return Gpus(gpus, tuple(notes))


def _visible(value: str | None, uuids: Sequence[str]) -> list[int]:
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


class NvidiaGpu:
    """A GPU. lacks: what it does not report, and why, by its short name."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml, self._handle = nvml, handle
        self.lacks: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self._rates = Rates()
        self._first_mj: float | None = None
        self._gpm = self._ask("GPM", Gpm, nvml, handle)
        supported = self._supported_reasons()
        known = {name for bit, name in REASONS.items() if supported & bit}
        for name in ("power_cap", "thermal", "hw_slowdown", "hw_power_brake"):
            if name not in known:
                self.lacks[f"throttle reason {name}"] = "Not Supported"
        self.about = self._about(index)

    def read(self, now_s: float, slow: bool) -> dict[str, Value]:
        """Read all values; slow: also the PCIe throughput, if GPM does not have it."""
        nvml, handle = self._nvml, self._handle
        use = self._ask("utilization", nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._ask("power", nvml.nvmlDeviceGetPowerUsage, handle)
        energy_mj = self._ask("energy", nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        gpm = (self._gpm and self._ask("GPM", self._gpm.read)) or {}
        values = {
            "busy_fraction": use and use.gpu / 100,
            "memory_used_bytes": memory and memory.used,
            "memory_busy_fraction": use and use.memory / 100,
            "power_w": power_mw and power_mw / 1000,
            "temperature_c": self._ask("temperature", self._temperature),
            "sm_clock_mhz": self._ask("SM clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("memory clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "throttle_reasons": reasons(self._ask("throttle reasons", self._reasons)),
            **self._rates.of(self._ask("NVLink", self._nvlink) or {}, now_s),
            **gpm,
        }
        if energy_mj is not None:
            self._first_mj = energy_mj if self._first_mj is None else self._first_mj
            values["energy_j"] = (energy_mj - self._first_mj) / 1000
        if slow and "pcie_sent_bytes_per_s" not in gpm:
            values["pcie_sent_bytes_per_s"] = self._pcie(nvml.NVML_PCIE_UTIL_TX_BYTES)
            values["pcie_received_bytes_per_s"] = self._pcie(nvml.NVML_PCIE_UTIL_RX_BYTES)
        return values

    def _ask(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer; None if there is none. What is not supported, or not permitted, is not asked again."""
        if what in self.lacks:
            return None
        nvml = self._nvml
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            never = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_FUNCTION_NOT_FOUND
            # A field or an argument that the driver is too old for.
            if error.value in (*never, nvml.NVML_ERROR_INVALID_ARGUMENT):
                self.lacks[what] = str(error)
            else:
                self.errors.setdefault(what, str(error))
        return None

    def _temperature(self) -> int:
        return self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU)  # type: ignore[no-any-return]

    def _reasons(self) -> int:
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)  # type: ignore[no-any-return]
        except nvml.NVMLError_FunctionNotFound:  # drivers before 535
            return nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)  # type: ignore[no-any-return]

    def _supported_reasons(self) -> int:
        """Return the bits that the GPU can report; all if the driver does not say."""
        nvml = self._nvml
        for name in ("EventReasons", "ThrottleReasons"):  # drivers before 535 have the second
            with contextlib.suppress(nvml.NVMLError):
                return getattr(nvml, f"nvmlDeviceGetSupportedClocks{name}")(self._handle)  # type: ignore[no-any-return]
        return sum(REASONS)

    def _pcie(self, counter: int) -> float | None:
        kb_per_s = self._ask("PCIe throughput", self._nvml.nvmlDeviceGetPcieThroughput, self._handle, counter)
        return None if kb_per_s is None else kb_per_s * 1000.0

    def _nvlink(self) -> dict[str, float | None]:
        fields = self._nvml.nvmlDeviceGetFieldValues(self._handle, [(each, ALL_LINKS) for each in NVLINK.values()])
        for each in fields:
            if each.nvmlReturn != self._nvml.NVML_SUCCESS:
                raise self._nvml.NVMLError(each.nvmlReturn)
        return {name: each.value.ullVal * 1024.0 for name, each in zip(NVLINK, fields, strict=True)}

    def _about(self, index: int) -> MonitoredGpu:
        nvml, handle = self._nvml, self._handle
        memory = self._ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        limit_mw = self._ask("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        slowdown = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return MonitoredGpu(
            index=index,
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            memory_bytes=memory and memory.total,
            power_limit_w=limit_mw and limit_mw / 1000,
            slowdown_temperature_c=self._ask(
                "slowdown temperature", nvml.nvmlDeviceGetTemperatureThreshold, handle, slowdown
            ),
            max_sm_clock_mhz=self._ask("highest SM clock", nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        )


class Gpm:
    """GPM of a GPU: means between two samples, which its hardware counts. NVMLError if it has none."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._before)

    def read(self) -> dict[str, float | None]:
        """Return the columns of GPM since the read before."""
        nvml = self._nvml
        nvml.nvmlGpmSampleGet(self._handle, self._now)
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        asked.sample1, asked.sample2 = self._before, self._now
        for place, (metric, _) in enumerate(GPM.values()):
            asked.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(asked)
        self._before, self._now = self._now, self._before
        answers = zip(GPM.items(), asked.metrics, strict=False)
        return {
            column: metric.value * unit
            for (column, (_, unit)), metric in answers
            if metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value)
        }


def reasons(bits: int | None) -> str | None:
    """Return the names of the reasons for a lower clock, joined by +, or ``none``; None if they are not known."""
    if bits is None:
        return None
    return "+".join(dict.fromkeys(name for bit, name in REASONS.items() if bits & bit)) or NO_REASON


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
