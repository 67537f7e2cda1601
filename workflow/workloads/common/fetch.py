"""Published files: used if the user has put them there, else downloaded; the checksum is verified in both cases."""

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
    """A file: its name, where it is published, and its MD5."""

    name: str
    urls: Sequence[str]
    md5: str


class Unavailable(Exception):
    """The file is not available; the text gives the reason and what to do."""


def fetch(file: Published, directory: Path) -> Path:
    """Return the file in this directory, with the right checksum; download it if it is missing.

    Raises Unavailable. Several processes may do this at once: each downloads to a temporary directory and renames.
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
                reasons.append(f"  {url}: the MD5 of the download is not {file.md5}")
                continue
            os.replace(unfinished, path)
            return path
    raise Unavailable(
        "\n".join(
            [
                f"cannot download {file.name}:",
                *reasons,
                f"If this machine has no internet, get that file (MD5 {file.md5}) on another machine, copy it to",
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
