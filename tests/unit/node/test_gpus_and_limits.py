"""What nvidia-smi tells of a node's GPUs, which of them a job step may use, and the limit of open files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_ladder.common.files import SCRIPTS, Agent
from ddp_ladder.platform.accelerators import QUERY, Cuda, visible_gpus
from ddp_ladder.preflight.nodes import gpus_facts
from make_files import write_programs
from make_preflight import GPU
from make_preflight import gpus_facts as gpus_facts_of
from make_records import make_spec
from make_runs import edit, reassemble, write_run

RAISED = """
import resource, sys
from ddp_ladder.node import software
software.MOST_OPEN_FILES = int(sys.argv[1])
software.raise_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
# Figures that nvidia-smi printed in Slurm jobs on two nodes of a public cluster; on the second, one GPU did not answer.
A100 = (
    "GPU-aa11, NVIDIA A100-PCIE-40GB, 550.54.15, 225.00, 4\nGPU-bb22, NVIDIA A100-PCIE-40GB, 550.54.15, 225.00, 30000"
)
ERROR = (
    "GPU-aa11, NVIDIA A100 80GB PCIe, 570.124.06, 300.00, 4\nGPU-bb22, NVIDIA A100 80GB PCIe, 570.124.06, [N/A], [N/A]"
)


def fake_nvidia_smi(directory: Path, script: str) -> str:
    """Make one that answers only what it is asked here; return a PATH with it."""
    programs = write_programs(directory, nvidia_smi=f'[ "$*" = "{" ".join(QUERY)}" ] || exit 9\n{script}')
    return f"{programs}:{os.defpath}"


@pytest.mark.parametrize(
    ("text", "figures"), [(A100, [(225.0, 4.0), (225.0, 30000.0)]), (ERROR, [(300.0, 4.0), (None, None)])]
)
def test_captured_answer_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, figures: list[tuple[float | None, float | None]]
) -> None:
    monkeypatch.setenv("PATH", fake_nvidia_smi(tmp_path, f"cat <<'END'\n{text}\nEND"))
    gpus = Cuda().gpus()
    assert [(gpu.power_limit_w, gpu.memory_used_mib) for gpu in gpus] == figures
    assert {(gpu.name, gpu.driver) for gpu in gpus} == {tuple(text.splitlines()[0].split(", ")[1:3])}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    facts = gpus_facts(Cuda())
    assert [(gpu.index, gpu.uuid) for gpu in facts.visible(Cuda())] == [(1, "GPU-bb22")]
    assert (facts.visible_devices, facts.error) == ("1", None)


def test_fake_cuda_driver_and_power_limit_of_the_gpus_that_were_used(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2", device="cuda"))
    used = {"name": "NVIDIA A100-SXM4-64GB", "driver": "550.54.15"}
    other = {"name": "NVIDIA T400", "driver": "550.54.15", "power_limit_w": 31.0}
    seen = [{**used, "power_limit_w": 400.0}, {**used, "power_limit_w": 275.0}, other]
    edit(run.agent_end(Agent(0, None)), lambda end: end.update(gpus=seen))
    fingerprint = reassemble(run).fingerprint
    assert (fingerprint.driver, fingerprint.power_limit_w) == ("550.54.15", (275.0, 400.0))


def test_visible_devices() -> None:
    uuids = ["GPU-aa11", "GPU-bb22", "GPU-cc33"]
    for text, wanted in (
        (None, [0, 1, 2]), ("", []), ("-1", []), ("2,0", [2, 0]), ("GPU-bb22", [1]), ("NoDevFiles", []),
        ("1,7,0", [1]),  # as CUDA: what is behind a wrong entry is not visible
    ):  # fmt: skip
        assert visible_gpus(text, uuids) == wanted, text
    assert len(gpus_facts_of(GPU, GPU.replace(index=1), visible_devices="MIG-1234").visible(Cuda())) == 2


@pytest.mark.parametrize(
    ("soft", "most", "raised"), [(1000, 65536, "5000 5000"), (1000, 4500, "4500 5000"), (4800, 4500, "4800 5000")]
)
def test_open_files_are_raised_to_the_hard_limit_within_reason(soft: int, most: int, raised: str) -> None:
    limited = f'ulimit -n 5000; ulimit -Sn {soft}; exec "$@"'
    argv = ["bash", "-c", limited, "bash", sys.executable, "-c", RAISED, str(most)]
    done = subprocess.run(argv, cwd=SCRIPTS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == raised
