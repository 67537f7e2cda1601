"""What nvidia-smi tells of a node's GPUs and their health."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ddp_ladder.preflight.gpu_facts import gpus_facts, parse
from ddp_ladder.preflight.node_findings import findings
from ddp_ladder.preflight.node_models import GpusFacts
from make_preflight import SOFTWARE, has_ended, node_facts
from make_records import make_spec
from test_node_findings import JOB

OUTPUT = Path(__file__).parent / "nvidia_smi_output"
A5000 = (OUTPUT / "a5000_v13.xml").read_text()


def test_captured_a5000_of_which_others_use_the_memory() -> None:
    driver, gpus = parse(A5000, None)
    assert driver == "590.44.01"
    assert [(gpu.index, gpu.name, gpu.uuid[-2:]) for gpu in gpus] == [
        (0, "NVIDIA RTX A5000", "ab"),
        (1, "NVIDIA RTX A5000", "cd"),
    ]
    assert gpus[0].processes == ("100477 llama-server",)
    assert (gpus[0].memory_total_mib, gpus[0].memory_used_mib) == (24564, 22437)
    assert (gpus[0].remapping_pending, gpus[0].remapping_failed, gpus[0].retired_pages_pending) == (False, False, None)
    assert gpus[0].uncorrectable_errors is None  # ECC is off
    assert (gpus[0].recovery_action, gpus[0].slowed_by) == ("None", ())


@pytest.mark.parametrize(
    ("name", "model", "used_mib", "pages"),
    [("t4_v11", "Tesla T4", 1032, False), ("a100_mig_v12", "NVIDIA A100-SXM4-80GB", 50, None)],
)
def test_captured_older_formats(name: str, model: str, used_mib: int, pages: bool | None) -> None:
    _, (gpu,) = parse((OUTPUT / f"{name}.xml").read_text(), "0")
    assert (gpu.name, gpu.memory_used_mib, gpu.retired_pages_pending) == (model, used_mib, pages)
    assert gpu.uncorrectable_errors == 0  # of the GPU, not of its MIG device
    assert gpu.remapping_pending is None
    assert gpu.visible


def test_captured_a5000_changed_to_a_broken_gpu() -> None:
    for healthy, broken in (
        ("<remapped_row_failure>No", "<remapped_row_failure>Yes"),
        ("hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active"),
        ("<dram_uncorrectable>N/A", "<dram_uncorrectable>3"),
    ):
        assert healthy in A5000
        _, gpus = parse(A5000.replace(healthy, broken), None)
        facts = GpusFacts(driver="590.44.01", gpus=gpus, visible_devices=None, error=None)
        node = node_facts(gpus=facts, software=SOFTWARE.replace(gpus=2))
        found = findings(make_spec("1x2", device="cuda"), JOB, {"node1": node}, {})
        assert any("GPU 1" in each.what and "in use" not in each.what for each in found), broken


def nvidia_smi(directory: Path, script: str) -> dict[str, str]:
    """Return an environment with this nvidia-smi alone."""
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{directory}:{os.defpath}", "CUDA_VISIBLE_DEVICES": "1"}


def test_fake_nvidia_smi_that_prints_what_was_captured(tmp_path: Path) -> None:
    script = f'[ "$*" = "-q -x" ] && exec cat {OUTPUT}/a5000_v13.xml'
    facts = gpus_facts(nvidia_smi(tmp_path, script), 20)
    assert [gpu.visible for gpu in facts.gpus] == [False, True]
    assert (facts.visible_devices, facts.error) == ("1", None)


def test_fake_nvidia_smi_that_fails(tmp_path: Path) -> None:
    message = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    facts = gpus_facts(nvidia_smi(tmp_path, f'echo "{message}"; exit 9'), 20)
    assert (facts.error, facts.gpus) == (message, ())
    assert "no XML" in str(gpus_facts(nvidia_smi(tmp_path, "echo hello"), 20).error)


def test_fake_nvidia_smi_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        gpus_facts(nvidia_smi(tmp_path, script), 0.5)
    assert has_ended(int((tmp_path / "child").read_text()))


def test_no_nvidia_smi() -> None:
    facts = gpus_facts({"PATH": "/nowhere"}, 20)
    assert (facts.gpus, facts.error, facts.driver) == ((), None, None)
