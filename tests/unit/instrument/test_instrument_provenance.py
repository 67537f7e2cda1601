"""Which files make a program: its own sources and configuration, in real runs under instrument.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ddp_ladder.common.files import sha256
from ddp_ladder_instrument import host
from instrument_support import run, script


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


def test_files_too_large_or_gone_are_left_out(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (host.LARGEST_BYTES + 1))
    assert host.configuration_files([str(large), str(tmp_path / "gone.yaml")]) == {}


def test_cpu_set_as_taskset_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 8, 10, 11})
    assert host.cpu_set() == "0-2,8,10-11"
