"""Published files: taken from where the user put them, else downloaded; checked either way."""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchvision.datasets.utils import check_integrity

TIMEOUT_S = 60  # without a byte


@dataclass(frozen=True)
class Published:
    """A file, where it is published, and what it has to be."""

    name: str
    urls: Sequence[str]
    md5: str


class Unavailable(Exception):
    """The file could not be had; the text says why and what to do."""


def fetch(file: Published, directory: Path) -> Path:
    """The file in this directory, with the right checksum: there already, or downloaded now.

    Raises Unavailable. Several processes may do this at once: each downloads beside and renames.
    """
    path = directory / file.name
    if path.exists():
        if not check_integrity(str(path), file.md5):
            raise Unavailable(f"{path} is damaged: its MD5 is not {file.md5}. Remove it and run this again.")
        return path
    directory.mkdir(parents=True, exist_ok=True)
    reasons = []
    for url in file.urls:
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=directory) as beside:
            unfinished = Path(beside, file.name)
            try:
                _download(url, unfinished)
            except (OSError, ValueError) as error:  # URLError is an OSError
                reasons.append(f"  {url}: {_reason(error)}")
                continue
            if not check_integrity(str(unfinished), file.md5):
                reasons.append(f"  {url}: what came has another MD5 than {file.md5}")
                continue
            os.replace(unfinished, path)
            return path
    raise Unavailable(
        "\n".join(
            [
                f"cannot download {file.name}:",
                *reasons,
                f"Without internet here: get that file (MD5 {file.md5}) on another machine, copy it to",
                f"  {path}",
                "and run this again.",
            ]
        )
    )


def _download(url: str, path: Path) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as source, path.open("wb") as target:
        megabytes = int(source.headers.get("Content-Length") or 0) / 1e6
        print(f"downloading {url} ({megabytes:.1f} MB)", flush=True)
        shutil.copyfileobj(source, target, 1 << 20)


def _reason(error: Exception) -> str:
    return str(error.reason if isinstance(error, urllib.error.URLError) else error)
