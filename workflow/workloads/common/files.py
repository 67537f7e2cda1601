"""Atomic writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(content: Any, file: Path) -> None:
    """torch.save to a temporary file, then rename: a reader always finds the old content or the new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
