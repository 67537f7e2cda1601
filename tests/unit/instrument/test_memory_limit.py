"""What a rank can have of its node's memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder_instrument import host

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
