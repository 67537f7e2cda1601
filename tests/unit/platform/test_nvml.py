"""NVIDIA GPUs as the monitor reads them, through pynvml from a library in place of NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ddp_ladder.platform.accelerators import Gpus, open_nvidia
from stand_in_gpus import A100, H100, GpuValues, compiled, install, write_gpus

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


def test_what_two_gpus_of_a_fake_library_showed(open_gpus: Open, file: Path) -> None:
    gpus = open_gpus([A100, H100])
    write_gpus(file, [{**A100, "energy_mj": 1_720_000}, H100])
    row = gpus.sample()
    assert {name: value for name, value in row.items() if name.startswith("gpu0")} == {
        "gpu0_busy_fraction": 1.0,
        "gpu0_memory_used_bytes": 34_359_738_368,
        "gpu0_power_w": 360.0,
        "gpu0_energy_j": 720.0,  # since it was opened
        "gpu0_temperature_c": 55,
        "gpu0_sm_clock_mhz": 1410,
        "gpu0_throttle_reasons": "none",
    }
    assert (row["gpu1_throttle_reasons"], row["gpu1_power_w"], row["gpu1_sm_clock_mhz"]) == ("power_cap", 699.81, 1590)
    about = gpus.sampled[0].about
    assert (about.name, about.uuid, about.memory_bytes) == (A100["name"], A100["uuid"], A100["memory_total"])
    assert (about.power_limit_w, gpus.notes, gpus.errors) == (400.0, (), [])


def test_what_a_gpu_of_a_fake_library_lacks_stays_empty_and_what_fails_is_asked_again(
    open_gpus: Open, file: Path
) -> None:
    lacking = {key: value for key, value in A100.items() if key not in ("energy_mj", "reasons")}
    gpus = open_gpus([lacking, lacking])
    assert gpus.errors == []
    write_gpus(file, [{**lacking, "power_mw": "lost"}, lacking])
    row = gpus.sample()
    assert not {"gpu0_energy_j", "gpu0_throttle_reasons", "gpu0_power_w"} & set(row)
    assert row["gpu1_power_w"] == 360.0
    assert gpus.errors == ["GPU 0: power_w: GPU is lost"]
    write_gpus(file, [lacking, lacking])
    assert gpus.sample()["gpu0_power_w"] == 360.0


@pytest.mark.parametrize(("chosen", "names"), [(None, ["a", "b", "c"]), ("2,0", ["c", "a"]), ("-1", [])])
def test_only_the_gpus_that_cuda_may_use_in_a_fake_library(
    open_gpus: Open, chosen: str | None, names: list[str]
) -> None:
    of_another_job = {**A100, "denied": 1}
    others = [{**A100, "name": letter, "uuid": f"GPU-{letter}"} for letter in "abc"]
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    gpus = open_gpus([of_another_job, *others], **environment)
    assert [gpu.about.name for gpu in gpus.sampled] == names
    assert [gpu.about.index for gpu in gpus.sampled] == list(range(len(names)))
    assert names or f"CUDA_VISIBLE_DEVICES is {chosen!r}" in gpus.notes[0]
