"""NVIDIA GPUs, through NVML (nvidia-ml-py). Without the package or the driver there is a note and no GPU.

The calls take about a millisecond per GPU. nvmlDeviceGetPcieThroughput counts for 20 ms, so where GPM does not have its
figures, only one GPU at a time is asked.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from ddp_ladder.monitor.columns import NO_REASON
from ddp_ladder.monitor.gpus import Gpus, Reading, visible
from ddp_ladder.monitor.models import MonitoredGpu
from ddp_ladder.node.numa import Attachment, attachment

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
        return Gpus(notes=(f"NVML: {error}",))


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
        places = visible(chosen, [nvml.nvmlDeviceGetUUID(handle) for handle in found])
        handles = [found[place] for place in places]
        if not handles:
            seen = f"{len(found)} GPUs are seen"
            notes.append(f"NVML: {seen}; CUDA_VISIBLE_DEVICES is {'not set' if chosen is None else repr(chosen)}")
    gpus = [NvidiaGpu(nvml, handle, index) for index, handle in enumerate(handles)]
    for gpu in gpus:
        gpu.read(slow=True)  # so that the notes are complete
    lacks: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.lacks:
            text = ", ".join(f"{what} ({why})" for what, why in gpu.lacks.items())
            lacks.setdefault(text, []).append(str(gpu.about.index))
    notes += [f"GPU {', '.join(indices)} does not report {text}" for text, indices in lacks.items()]
    return Gpus(gpus, tuple(notes))


class NvidiaGpu:
    """A GPU. lacks: what it does not report, and why, by its short name."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml, self._handle = nvml, handle
        self.lacks: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self._gpm = self._ask("GPM", Gpm, nvml, handle)
        for name in unsupported(self._supported_reasons()):
            self.lacks[f"throttle reason {name}"] = "Not Supported"
        self.about = self._about(index)

    def read(self, slow: bool) -> Reading:
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
            **gpm,
        }
        if slow and "pcie_sent_bytes_per_s" not in gpm:
            values["pcie_sent_bytes_per_s"] = self._pcie(nvml.NVML_PCIE_UTIL_TX_BYTES)
            values["pcie_received_bytes_per_s"] = self._pcie(nvml.NVML_PCIE_UTIL_RX_BYTES)
        counters = self._ask("NVLink", self._nvlink) or {}
        return Reading(values, counters, None if energy_mj is None else energy_mj / 1000)

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
        for field in fields:
            if field.nvmlReturn != self._nvml.NVML_SUCCESS:
                raise self._nvml.NVMLError(field.nvmlReturn)
        return {name: field.value.ullVal * 1024.0 for name, field in zip(NVLINK, fields, strict=True)}

    def _about(self, index: int) -> MonitoredGpu:
        nvml, handle = self._nvml, self._handle
        pci = self._ask("PCI bus", nvml.nvmlDeviceGetPciInfo, handle)
        bus_id = None if pci is None else _text(pci.busId)
        near = attachment(bus_id) if bus_id else Attachment()
        memory = self._ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        limit_mw = self._ask("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        limits_mw = self._ask("power limits", nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
        slowdown = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return MonitoredGpu(
            index=index,
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            bus_id=bus_id,
            memory_bytes=memory and memory.total,
            power_limit_w=limit_mw and limit_mw / 1000,
            power_limit_max_w=limits_mw and limits_mw[1] / 1000,
            slowdown_temperature_c=self._ask(
                "slowdown temperature", nvml.nvmlDeviceGetTemperatureThreshold, handle, slowdown
            ),
            max_sm_clock_mhz=self._ask("highest SM clock", nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            numa_node=near.numa_node,
            numa_cpus=near.cpus,
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


def unsupported(supported: int) -> list[str]:
    """Return the names of the faults that a GPU cannot report."""
    known = {name for bit, name in REASONS.items() if supported & bit}
    return [name for name in ("power_cap", "thermal", "hw_slowdown", "hw_power_brake") if name not in known]


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
