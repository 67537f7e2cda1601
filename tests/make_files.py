"""Small files with given contents, such as a part of /sys, and programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below ``root``, by their paths, and return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def write_programs(directory: Path, **scripts: str) -> Path:
    """Write shell scripts as programs, by their names with _ for -, into a directory, and return it."""
    for name, script in scripts.items():
        path = directory / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return directory


def put_on_path(monkeypatch: pytest.MonkeyPatch, directory: Path, **scripts: str) -> None:
    """Write shell scripts as programs into a directory that comes first on the PATH."""
    monkeypatch.setenv("PATH", str(write_programs(directory, **scripts)), prepend=":")
