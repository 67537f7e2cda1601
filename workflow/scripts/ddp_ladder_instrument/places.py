"""Places of a script that draw batches: the line that draws, with the lines of the script that called it. Pure."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Tuple

Place = Tuple[str, ...]
"""file:line of what draws, then those of the script's own files that led there, then a digest of all between."""

LIBRARIES = ("site-packages", "dist-packages")
OWN = "/ddp_ladder_instrument/"
BETWEEN = ("torch/", OWN[1:], "accelerate/", "webdataset/", "torchdata/", "contextlib.py")
"""Packages, and a file, between the line that draws and the loader."""
MOST_CALLERS = 3


def place_here() -> Place:
    """Return where the script is, as what draws."""
    lines = [*_lines(sys._getframe(1))]
    callers = [line for line in lines[1:] if line.startswith("/")][:MOST_CALLERS]
    return (*lines[:1], *callers, hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8])


def frame_outside() -> FrameType:
    """Return the innermost frame that is none of the instrument's."""
    frame = sys._getframe(1)
    while OWN in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _lines(frame: FrameType | None) -> Iterator[str]:
    """Yield file:line, innermost first, up to the outermost line of the script."""
    is_between = True
    while frame is not None:
        file = frame.f_code.co_filename
        is_between = is_between and any(f"/{name}" in file for name in BETWEEN)
        if not is_between and OWN in file:  # what runs the script
            return
        if not is_between:
            yield f"{_short(file)}:{frame.f_lineno}"
        frame = frame.f_back


def _short(file: str) -> str:
    """Return the path of a file, of a library's without the directory of all libraries."""
    return next((file.partition(f"/{name}/")[2] for name in LIBRARIES if f"/{name}/" in file), file)


def in_words(place: Place) -> str:
    """Return ``train.py:31 (called at main.py:80)``."""
    own = place[1:-1]
    return f"{place[0]} (called at {own[0]})" if own else place[0]
