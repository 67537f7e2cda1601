"""NVIDIA GPUs as the monitor reads them, through pynvml from a library in place of NVIDIA's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pynvml
import pytest
from ddp_ladder.nodes.gpus import Gpus, Value, open_nvidia, opened, reasons
from fake_nvml import A100, H100, GpuValues, compiled, install, write_gpus

Open = Callable[..., Gpus]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpus"


@pytest.fixture
def open_gpus(library: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    install(library, file, monkeypatch)

    def opened_with(gpus: Sequence[GpuValues], **environment: str) -> Gpus:
        write_gpus(file, gpus)
        return open_nvidia(environment)

    return opened_with


def columns(gpus: Gpus, at_s: Sequence[float] = (0.0,)) -> dict[str, Value]:
    return [gpus.sample(now_s) for now_s in at_s][-1]


def test_a_busy_a100_as_dmon_showed_it_in_a_fake_library(open_gpus: Open) -> None:
    gpus = open_gpus([A100])
    assert columns(gpus) == {
        "gpu0_busy_fraction": 1.0,
        "gpu0_memory_used_bytes": 34_359_738_368,
        "gpu0_memory_busy_fraction": 0.16,
        "gpu0_power_w": 360.0,
        "gpu0_energy_j": 0.0,
        "gpu0_temperature_c": 55,
        "gpu0_sm_clock_mhz": 1410,
        "gpu0_memory_clock_mhz": 1593,
        "gpu0_throttle_reasons": "none",
        "gpu0_pcie_sent_bytes_per_s": 500_000.0,
        "gpu0_pcie_received_bytes_per_s": 72_000_000.0,
        "gpu0_nvlink_sent_bytes_per_s": None,
        "gpu0_nvlink_received_bytes_per_s": None,
    }
    about = gpus.each[0].about
    assert (about.name, about.uuid, about.memory_bytes) == (A100["name"], A100["uuid"], A100["memory_total"])
    assert (about.power_limit_w, about.slowdown_temperature_c, about.max_sm_clock_mhz) == (400.0, 89, 1410)
    assert gpus.notes == ("GPU 0 does not report GPM (Not Supported)",)


def test_a_power_capped_h100_as_nvidia_smi_showed_it_with_made_up_gpm_in_a_fake_library(open_gpus: Open) -> None:
    gpus = open_gpus([H100])
    row = columns(gpus)
    assert (row["gpu0_throttle_reasons"], row["gpu0_power_w"], row["gpu0_sm_clock_mhz"]) == ("power_cap", 699.81, 1590)
    assert row["gpu0_sm_active_fraction"] == pytest.approx(0.975)
    assert row["gpu0_tensor_active_fraction"] == pytest.approx(0.4125)
    assert row["gpu0_dram_active_fraction"] == pytest.approx(0.33)
    # GPM's means in place of the 20 ms of nvmlDeviceGetPcieThroughput, which would be 500 KB/s
    assert row["gpu0_pcie_sent_bytes_per_s"] == 10 * 2**20
    assert row["gpu0_pcie_received_bytes_per_s"] == 250 * 2**20
    assert gpus.notes == ()


def test_counters_of_a_fake_library_become_rates_and_energy(open_gpus: Open, file: Path) -> None:
    gpus = open_gpus([A100])
    gpus.sample(10.0)
    write_gpus(file, [{**A100, "energy_mj": 1_720_000, "field_138": 3048, "field_139": 2000}])
    row = gpus.sample(12.0)
    assert row["gpu0_energy_j"] == 720.0
    assert row["gpu0_nvlink_sent_bytes_per_s"] == 2048 * 1024 / 2
    assert row["gpu0_nvlink_received_bytes_per_s"] == 0.0


def test_what_a_gpu_of_a_fake_library_lacks_stays_empty(open_gpus: Open) -> None:
    lacking = {key: value for key, value in A100.items() if key not in ("energy_mj", "field_138", "temperature_c")}
    gpus = open_gpus([{**lacking, "pcie_tx_kb_per_s": "no-permission"}])
    row = columns(gpus, [0.0, 2.0])
    assert row["gpu0_temperature_c"] is None
    assert row["gpu0_pcie_sent_bytes_per_s"] is None
    assert not {"gpu0_energy_j", "gpu0_nvlink_sent_bytes_per_s", "gpu0_sm_active_fraction"} & set(row)
    assert row["gpu0_power_w"] == 360.0
    (note,) = gpus.notes
    assert note.startswith("GPU 0 does not report GPM (Not Supported), energy (Not Supported), temperature")
    assert "PCIe throughput (Insufficient Permissions)" in note
    assert gpus.each[0].errors == {}


def test_a_gpu_of_a_fake_library_that_fails_is_an_error_and_is_asked_again(open_gpus: Open, file: Path) -> None:
    gpus = open_gpus([A100])
    write_gpus(file, [{**A100, "power_mw": "lost"}])
    assert gpus.sample(0.0)["gpu0_power_w"] is None
    assert gpus.errors == ["GPU 0: power: GPU is lost"]
    write_gpus(file, [A100])
    assert gpus.sample(2.0)["gpu0_power_w"] == 360.0


def test_the_slow_pcie_call_is_made_for_one_gpu_per_sample_of_a_fake_library(open_gpus: Open) -> None:
    read = open_gpus([A100, A100, A100])
    asked = []
    for now_s in range(4):
        row = read.sample(float(now_s))
        asked.append([gpu for gpu in range(3) if row.get(f"gpu{gpu}_pcie_sent_bytes_per_s") is not None])
    assert asked == [[0], [1], [2], [0]]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, ["a", "b", "c"]),
        ("2,0", ["c", "a"]),
        ("GPU-b", ["b"]),
        ("", []),
        ("-1", []),
        ("1,7,0", ["b"]),  # as CUDA: what is behind a wrong entry is not visible
    ],
)
def test_only_the_gpus_that_cuda_may_use_in_a_fake_library(
    open_gpus: Open, chosen: str | None, names: list[str]
) -> None:
    each = [{**A100, "name": letter, "uuid": f"GPU-{letter}"} for letter in "abc"]
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    gpus = open_gpus(each, **environment)
    assert [gpu.about.name for gpu in gpus.each] == names
    assert [gpu.about.index for gpu in gpus.each] == list(range(len(names)))
    assert names or f"CUDA_VISIBLE_DEVICES is {chosen!r}" in gpus.notes[0]


def test_gpus_of_other_jobs_do_not_count_in_a_fake_library(open_gpus: Open) -> None:
    others = {**A100, "denied": 1}
    gpus = open_gpus([others, {**A100, "name": "ours"}], CUDA_VISIBLE_DEVICES="0")
    assert [gpu.about.name for gpu in gpus.each] == ["ours"]


def test_a_driver_before_535_has_other_names_in_a_fake_library(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(compiled(tmp_path, "-DBEFORE_535"), file, monkeypatch)
    write_gpus(file, [{**A100, "reasons": 0x48}])
    assert columns(open_nvidia({}))["gpu0_throttle_reasons"] == "hw_slowdown+thermal"


def test_a_missing_driver_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    assert open_nvidia({}) == Gpus(notes=("NVML: NVML Shared Library Not Found (GPUs of AMD are not sampled)",))


def test_a_missing_package_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = open_nvidia({})
    assert not gpus.each
    assert "pip install nvidia-ml-py" in gpus.notes[0]


def test_a_driver_that_hangs_is_a_note() -> None:
    answered = threading.Event()
    gpus = opened(lambda: answered.wait() and Gpus(), within_s=0.05)  # type: ignore[arg-type, return-value]
    answered.set()
    assert gpus == Gpus(notes=("GPUs: the driver did not answer within 0.05 s",))


def test_a_gpu_of_a_fake_library_that_reports_no_reasons_is_not_called_unthrottled(open_gpus: Open) -> None:
    silent = {key: value for key, value in A100.items() if key != "reasons"}
    assert columns(open_gpus([silent]))["gpu0_throttle_reasons"] is None
    power_alone = open_gpus([{**A100, "supported_reasons": 0x1 | 0x4}])
    assert columns(power_alone)["gpu0_throttle_reasons"] == "none"
    assert "throttle reason thermal (Not Supported)" in power_alone.notes[0]
    assert "power_cap" not in power_alone.notes[0]


def test_an_idle_gpu_is_not_throttled() -> None:
    assert reasons(0x1) == "none"
    assert reasons(0x1 | 0x4 | 0x20 | 0x40) == "power_cap+thermal"
