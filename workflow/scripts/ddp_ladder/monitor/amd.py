"""AMD GPUs, through amdsmi where it is installed.

This follows the documentation of AMD SMI's Python API (ROCm 6.4 and 7.0); it has not been run on an AMD GPU. PCIe and
xGMI traffic have no directions there, and there is nothing like GPM, so these columns stay empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ddp_ladder.monitor.columns import NO_REASON
from ddp_ladder.monitor.gpus import Gpus, Reading, visible
from ddp_ladder.monitor.models import MonitoredGpu
from ddp_ladder.node.numa import Attachment, attachment

VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
VIOLATIONS = {
    "active_ppt_pwr": "power_cap",
    "active_prochot_thrm": "thermal",
    "active_socket_thrm": "thermal",
    "active_vr_thrm": "thermal",
    "active_hbm_thrm": "thermal",
}
_MILLI = 1000  # a temperature above this is in millidegrees, as releases before ROCm 6 return it


def open_amd(environment: Mapping[str, str]) -> Gpus:
    """Return the AMD GPUs that a process with this environment may use; none without amdsmi."""
    try:
        import amdsmi
    except ImportError:
        return Gpus()
    except (OSError, KeyError, AttributeError) as error:  # it is there, and its library is not
        return Gpus(notes=(f"amdsmi: {error}",))
    try:
        amdsmi.amdsmi_init()
        handles = list(amdsmi.amdsmi_get_processor_handles())
        uuids = [str(amdsmi.amdsmi_get_gpu_device_uuid(handle)) for handle in handles]
    except amdsmi.AmdSmiException as error:
        return Gpus(notes=(f"amdsmi: {error}",))
    places = list(range(len(handles)))
    for name in VISIBLE:  # each renumbers what the one before it leaves
        places = [places[place] for place in visible(environment.get(name), [uuids[place] for place in places])]
    return Gpus([AmdGpu(amdsmi, handles[place], index) for index, place in enumerate(places)])


class AmdGpu:
    """A GPU (of an MI250X: one of its two dies)."""

    def __init__(self, smi: Any, handle: Any, index: int) -> None:
        self._smi, self._handle = smi, handle
        self.errors: dict[str, str] = {}
        self._reasons: str | None = None
        self.about = self._about(index)

    def read(self, slow: bool) -> Reading:
        """Read all values; slow: also the throttle reasons, for which amdsmi waits."""
        smi = self._smi
        use = self._ask("activity", smi.amdsmi_get_gpu_activity)
        power = self._ask("power", smi.amdsmi_get_power_info)
        energy = self._ask("energy", smi.amdsmi_get_energy_count)
        temperature = _number(
            self._ask(
                "temperature",
                smi.amdsmi_get_temp_metric,
                smi.AmdSmiTemperatureType.HOTSPOT,
                smi.AmdSmiTemperatureMetric.CURRENT,
            )
        )
        if slow:
            self._reasons = reasons(self._ask("throttle reasons", smi.amdsmi_get_violation_status))
        values = {
            "busy_fraction": _scaled(_of(use, "gfx_activity"), 0.01),
            "memory_used_bytes": _number(
                self._ask("memory", smi.amdsmi_get_gpu_memory_usage, smi.AmdSmiMemoryType.VRAM)
            ),
            "memory_busy_fraction": _scaled(_of(use, "umc_activity"), 0.01),
            # MI300 has the one, what is older has the other.
            "power_w": _of(power, "current_socket_power") or _of(power, "average_socket_power"),
            "temperature_c": temperature and (temperature / _MILLI if temperature > _MILLI else temperature),
            "sm_clock_mhz": _of(self._ask("clock", smi.amdsmi_get_clock_info, smi.AmdSmiClkType.GFX), "clk"),
            "memory_clock_mhz": _of(self._ask("memory clock", smi.amdsmi_get_clock_info, smi.AmdSmiClkType.MEM), "clk"),
            "throttle_reasons": self._reasons,
        }
        count, unit_uj = _of(energy, "energy_accumulator"), _of(energy, "counter_resolution")
        if count is None:
            count = _of(energy, "power")  # its name before ROCm 6.4
        return Reading(values, energy_j=None if count is None or unit_uj is None else count * unit_uj / 1e6)

    def _ask(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if what in self.errors:
            return None
        try:
            return call(self._handle, *arguments)
        except self._smi.AmdSmiException as error:
            self.errors[what] = str(error)
        return None

    def _about(self, index: int) -> MonitoredGpu:
        smi = self._smi
        asic = self._ask("name", smi.amdsmi_get_gpu_asic_info)
        cap = self._ask("power limit", smi.amdsmi_get_power_cap_info)
        clock = self._ask("clock", smi.amdsmi_get_clock_info, smi.AmdSmiClkType.GFX)
        bus_id = self._ask("PCI bus", smi.amdsmi_get_gpu_device_bdf)
        near = attachment(str(bus_id)) if bus_id else Attachment()
        memory = _number(self._ask("memory", smi.amdsmi_get_gpu_memory_total, smi.AmdSmiMemoryType.VRAM))
        largest_mhz = _of(clock, "max_clk")
        return MonitoredGpu(
            index=index,
            name=str((asic or {}).get("market_name") or "AMD GPU"),
            uuid=str(self._ask("uuid", smi.amdsmi_get_gpu_device_uuid) or index),
            bus_id=None if bus_id is None else str(bus_id),
            memory_bytes=None if memory is None else int(memory),
            power_limit_w=_scaled(_of(cap, "power_cap"), 1e-6),
            power_limit_max_w=_scaled(_of(cap, "max_power_cap"), 1e-6),
            slowdown_temperature_c=None,
            max_sm_clock_mhz=None if largest_mhz is None else int(largest_mhz),
            numa_node=near.numa_node,
            numa_cpus=near.cpus,
        )


def reasons(status: Mapping[str, Any] | None) -> str | None:
    """Return the names of the violations that are active, joined by +, or ``none``; None if they are not known."""
    if status is None:
        return None
    active = (name for key, name in VIOLATIONS.items() if _of(status, key) == 1)
    return "+".join(dict.fromkeys(active)) or NO_REASON


def _of(answer: Mapping[str, Any] | None, key: str) -> float | None:
    return None if answer is None else _number(answer.get(key))


def _number(value: Any) -> float | None:
    """Return the value; None for the ``N/A`` of what a GPU lacks."""
    return float(value) if isinstance(value, int | float) else None


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit
