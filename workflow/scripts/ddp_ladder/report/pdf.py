"""The proposal as a PDF, where the machine has LaTeX, and the length of each chapter of a form."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

SET_WITHIN_S = 60.0
MISSING = "this machine has no pdflatex"
_LENGTH = re.compile(r"^ddp-ladder: (\d+) pages in chapter \d+$", re.MULTILINE)


@dataclass(frozen=True)
class Pdf:
    """The proposal's PDF, or why there is none."""

    content: bytes | None
    pages: tuple[int, ...] = ()  # of each chapter
    why: str = ""


def can_set() -> bool:
    """Return True if this machine can set a PDF."""
    return shutil.which("pdflatex") is not None


def pdf_of(tex: str, pictures: Mapping[str, bytes]) -> Pdf:
    """Set a document with pdflatex. pictures: its files, by name."""
    if not can_set():
        return Pdf(None, why=MISSING)
    with TemporaryDirectory(prefix="ddp-ladder-") as name:
        directory = Path(name)
        for picture, content in pictures.items():
            (directory / picture).write_bytes(content)
        (directory / "proposal.tex").write_text(tex)
        try:
            done = subprocess.run(
                ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "proposal.tex"],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SET_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Pdf(None, why=f"pdflatex: {error}")
        if done.returncode != 0:
            said = next((line for line in done.stdout.splitlines() if line.startswith("! ")), "it failed")
            return Pdf(None, why=f"pdflatex: {said}")
        pages = tuple(int(number) for number in _LENGTH.findall(done.stdout))
        return Pdf((directory / "proposal.pdf").read_bytes(), pages)
