"""Which files make a program, in real runs under instrument.py; what a rank can have of its node's memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import sha256
from ddp_ladder_instrument import host
from ddp_ladder_instrument.slow_settings import ANOMALY
from instrument_support import python_named, run, script


def test_sources_and_configuration_of_a_script(tmp_path: Path) -> None:
    project = tmp_path / "project"
    script(project, "LAYERS = 2", "parts/model.py")
    script(project, "", "parts/unused.py")
    script(project, "rate: 0.1", "conf.yaml")
    train = script(project, "import json, numpy, parts.model")
    words = (train, "--config=project/conf.yaml", "--rate", "0.1", "--out", "none.json")
    fingerprint = run(tmp_path, *words).rank()["fingerprint"]
    digest = {path: sha256((project / path).read_bytes()) for path in ("train.py", "parts/model.py", "conf.yaml")}
    assert fingerprint["sources"] == {path: digest[path] for path in ("parts/model.py", "train.py")}
    assert fingerprint["configuration"] == {"project/conf.yaml": digest["conf.yaml"]}
    assert set(fingerprint["libraries"]) == {"numpy"}
    assert fingerprint["cpu_set"] == host.cpu_set()


def test_sources_of_a_module_begin_at_its_package(tmp_path: Path) -> None:
    script(tmp_path, "", "package/__init__.py")
    script(tmp_path, "", "package/data.py")
    script(tmp_path, "from . import data", "package/train.py")
    fingerprint = run(tmp_path, "-m", "package.train").rank()["fingerprint"]
    assert set(fingerprint["sources"]) == {"package/__init__.py", "package/data.py", "package/train.py"}


def test_settings_that_slow_every_step(tmp_path: Path) -> None:
    """Anomaly detection is on around the passes alone."""
    text = """
        import torch
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            with torch.autograd.detect_anomaly():
                model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    """
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "0"}
    fingerprint = run(tmp_path, script(tmp_path, text), env=env).rank()["fingerprint"]
    assert fingerprint["slow_settings"] == ["TORCH_DISTRIBUTED_DEBUG=DETAIL", ANOMALY]


def test_files_too_large_or_gone_are_left_out(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (host.LARGEST_BYTES + 1))
    assert host.configuration_files([str(large), str(tmp_path / "gone.yaml")]) == {}


def test_a_script_that_is_gone_at_the_end_is_unread(tmp_path: Path) -> None:
    record = run(tmp_path, script(tmp_path, "import os\nos.remove(__file__)")).rank()
    assert (record["fingerprint"]["script_sha256"], record["fingerprint"]["unread"]) == (None, ["script_sha256"])
    assert [note.partition(":")[0] for note in record["not_measured"]][:1] == ["script_sha256"]


MESH = """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    init_device_mesh("cpu", (1,))
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("torch", ["newest", "oldest"])
def test_a_group_that_a_device_mesh_makes_is_timed(tmp_path: Path, torch: str) -> None:
    meet = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = run(tmp_path, script(tmp_path, MESH), python=python_named(torch), env=meet)
    assert done.code == 0, done.err
    assert done.rank()["startup_s"]["process_group"] > 0


MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Control groups of both versions below a directory: this process is in job/step of each."""
    kept = open

    def opened(file: Any, *arguments: Any, **options: Any) -> Any:
        return kept(f"{tmp_path}{file}" if str(file).startswith(("/proc", "/sys")) else file, *arguments, **options)

    monkeypatch.setattr("builtins.open", opened)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,memory:/job/step\n3:cpuset:/\n0::/job/step\n")
    for path in ("sys/fs/cgroup/memory/job/step", "sys/fs/cgroup/job/step"):
        (tmp_path / path).mkdir(parents=True)
    return tmp_path / "sys/fs/cgroup"


def test_it_is_the_least_limit_on_the_way_to_the_top_divided_among_the_ranks(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert host.memory_limit_bytes(None) == MACHINE
    assert host.memory_limit_bytes(100) == 100 * 1024**2
    (groups / "job/memory.max").write_text("90000000\n")
    (groups / "job/step/memory.max").write_text("max\n")
    assert host.memory_limit_bytes(100) == 90_000_000
    (groups / "memory/job/step/memory.limit_in_bytes").write_text("80000000\n")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert host.memory_limit_bytes(100) == 40_000_000
