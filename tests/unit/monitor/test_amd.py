"""AMD GPUs: a module in place of amdsmi that answers as its documentation says. It has not been compared with a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder.monitor.amd import open_amd, reasons
from ddp_ladder.monitor.gpus import GpuColumns


class AmdSmiException(Exception):
    pass


class FakeAmdSmi(SimpleNamespace):
    """Two dies; handles are numbers."""

    AmdSmiException = AmdSmiException
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")
    AmdSmiMemoryType = SimpleNamespace(VRAM="vram")
    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    energy = 1_000_000

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_device_uuid(self, gpu: int) -> str:
        return f"GPU-{gpu}"

    def amdsmi_get_gpu_device_bdf(self, gpu: int) -> str:
        return f"0000:c{gpu}:00.0"

    def amdsmi_get_gpu_asic_info(self, _gpu: int) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI250X"}

    def amdsmi_get_power_cap_info(self, _gpu: int) -> dict[str, Any]:
        return {"power_cap": 500_000_000, "max_power_cap": 560_000_000}

    def amdsmi_get_gpu_memory_total(self, _gpu: int, _kind: str) -> int:
        return 64 << 30

    def amdsmi_get_gpu_memory_usage(self, gpu: int, _kind: str) -> int:
        return (gpu + 1) << 30

    def amdsmi_get_gpu_activity(self, _gpu: int) -> dict[str, Any]:
        return {"gfx_activity": 87, "umc_activity": "N/A", "mm_activity": "N/A"}

    def amdsmi_get_power_info(self, _gpu: int) -> dict[str, Any]:
        return {"current_socket_power": "N/A", "average_socket_power": 412, "power_limit": 500_000_000}

    def amdsmi_get_energy_count(self, _gpu: int) -> dict[str, Any]:
        return {"energy_accumulator": self.energy, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_temp_metric(self, _gpu: int, _sensor: str, _metric: str) -> int:
        return 61

    def amdsmi_get_clock_info(self, _gpu: int, kind: str) -> dict[str, Any]:
        return {"clk": 1600 if kind == "gfx" else 1300, "max_clk": 1700}

    def amdsmi_get_violation_status(self, _gpu: int) -> dict[str, Any]:
        raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> FakeAmdSmi:
    fake = FakeAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake


def test_an_mi250x_as_a_module_in_place_of_amdsmi_answers(smi: FakeAmdSmi) -> None:
    gpus = open_amd({})
    read = GpuColumns(gpus.each)
    read.sample(0.0)
    smi.energy += 1_000_000
    row = read.sample(2.0)
    assert {name: value for name, value in row.items() if name.startswith("gpu1")} == {
        "gpu1_busy_fraction": 0.87,
        "gpu1_memory_used_bytes": 2 << 30,
        "gpu1_memory_busy_fraction": None,
        "gpu1_power_w": 412.0,
        "gpu1_energy_j": pytest.approx(15.3),
        "gpu1_temperature_c": 61.0,
        "gpu1_sm_clock_mhz": 1600.0,
        "gpu1_memory_clock_mhz": 1300.0,
        "gpu1_throttle_reasons": None,
    }
    about = gpus.each[1].about
    assert (about.index, about.uuid, about.memory_bytes, about.max_sm_clock_mhz) == (1, "GPU-1", 64 << 30, 1700)
    assert (about.power_limit_w, about.power_limit_max_w) == (500.0, 560.0)
    assert "GPU 1: throttle reasons: AMDSMI_STATUS_NOT_SUPPORTED" in read.errors


def test_each_variable_renumbers_what_the_one_before_it_leaves_of_a_module_in_place_of_amdsmi(smi: FakeAmdSmi) -> None:
    both = open_amd({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"})
    assert [gpu.about.uuid for gpu in both.each] == ["GPU-1"]


def test_violations_as_documented() -> None:
    assert reasons({"active_ppt_pwr": 1, "active_hbm_thrm": True, "active_vr_thrm": "N/A"}) == "power_cap+thermal"
    assert (reasons(None), reasons({})) == (None, "none")


def test_without_amdsmi_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert open_amd({}).notes == ()
