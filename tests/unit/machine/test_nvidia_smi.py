"""What nvidia-smi printed on public machines (output/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.machine.collect import MIB, gpus
from ddp_ladder.machine.nvidia_smi import parse_query, parse_topology

OUTPUT = Path(__file__).parent / "output"


def captured(name: str) -> str:
    return (OUTPUT / name).read_text()


@pytest.mark.parametrize(
    ("name", "driver", "cuda", "model", "memory_mib", "limits_w", "pcie", "ecc"),
    [
        ("h100_545", "545.23.08", "12.3", "NVIDIA H100 80GB HBM3", 81559, (700.0, 700.0), (5, 16), "Enabled"),
        # The module, a GPU with its CPU, has limits of its own.
        ("gh200_550", "550.127.05", "12.4", "NVIDIA GH200 480GB", 97871, (700.0, 900.0), (4, 1), "Enabled"),
        ("h800_525", "525.105.17", "12.0", "NVIDIA H800", 81559, (700.0, 700.0), (5, 16), "Disabled"),
    ],
)
def test_captured_queries_of_three_drivers(
    name: str,
    driver: str,
    cuda: str,
    model: str,
    memory_mib: int,
    limits_w: tuple[float, float],
    pcie: tuple[int, int],
    ecc: str,
    tmp_path: Path,
) -> None:
    queried = parse_query(captured(f"{name}_q.txt"))
    (gpu,) = gpus(queried, {}, None, tmp_path)
    assert (queried.driver, queried.cuda, gpu.name) == (driver, cuda, model)
    assert (gpu.memory_bytes, gpu.max_sm_clock_mhz) == (memory_mib * MIB, 1980)
    assert (gpu.power_limit_w, gpu.power_limit_max_w) == limits_w
    assert (gpu.pcie_generation, gpu.pcie_width) == pcie
    assert (gpu.persistence_mode, gpu.compute_mode, gpu.ecc_mode) == ("Enabled", "Default", ecc)
    assert gpu.mig_mode == "Disabled"
    assert gpu.uuid is not None
    assert gpu.uuid.startswith("GPU-")
    assert gpu.visible
    assert (gpu.numa_node, gpu.numa_cpus, gpu.links) == (None, None, {})


def test_captured_topology_of_a_job_that_has_one_core() -> None:
    """nvidia-smi shows only those CPUs near a GPU that the job may use: near the first four there are none."""
    rows = parse_topology(captured("h100_545_topo.txt"))
    assert [(rows[gpu].cpus, rows[gpu].numa_node) for gpu in range(8)] == 4 * [(None, 0)] + 4 * [("1", 1)]
    assert rows[0].links == {
        **{f"GPU{other}": "NV18" for other in range(1, 8)},
        "mlx5_0": "PIX",
        "mlx5_1": "PIX",
        "mlx5_2": "NODE",
        "mlx5_3": "NODE",
        "mlx5_4": "NODE",
        "mlx5_5": "NODE",
    }


def test_captured_topology_with_an_underlined_header() -> None:
    rows = parse_topology(captured("b300_590_topo.txt"))
    assert len(rows) == 8
    assert (rows[4].cpus, rows[4].numa_node) == ("64-127,192-255", 1)
    assert (rows[4].links["NIC4"], rows[4].links["NIC0"], len(rows[4].links)) == ("PXB", "SYS", 16)


def test_captured_query_with_sys_and_topology_of_its_node(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:19:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("0\n")
    (device / "local_cpulist").write_text("0-94:2/2\n")  # no list that Linux writes
    rows = parse_topology(captured("h100_545_topo.txt"))
    (gpu,) = gpus(parse_query(captured("h100_545_q.txt")), rows, "1", tmp_path)
    assert (gpu.numa_node, gpu.numa_cpus, gpu.visible, gpu.links["GPU1"]) == (0, None, False, "NV18")
    (device / "local_cpulist").write_text("0,2,4,6\n")
    (gpu,) = gpus(parse_query(captured("h100_545_q.txt")), rows, "0", tmp_path)
    assert (gpu.numa_cpus, gpu.visible) == ("0,2,4,6", True)


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\tGPU0\n", "GPU0 X\n"])
def test_other_answers_are_no_gpus(text: str) -> None:
    assert parse_query(text).gpus == {}
    assert parse_topology(text) == {}
