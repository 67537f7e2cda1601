"""Fetch MNIST, once, for mnist.py --data mnist.

    python workflow/workloads/prepare_mnist.py data/mnist

Puts 12 MB of archives and 55 MB of IDX files into <directory>/MNIST/raw, as torchvision keeps them. Needs internet,
or the four archives in that directory.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torchvision.datasets import MNIST

from common.fetch import Published, Unavailable, fetch

SIZES = (60_000, 10_000)


def complete(directory: Path) -> bool:
    """Return True if torchvision reads all images of both splits."""
    try:
        splits = [MNIST(str(directory), train=train) for train in (True, False)]
    except (RuntimeError, ValueError, AssertionError):  # missing or truncated
        return False
    return tuple(len(split) for split in splits) == SIZES


def unpack(archive: Path) -> None:
    """Unpack into the archive's directory, atomically."""
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=archive.parent) as beside:
        unfinished = Path(beside, archive.stem)
        with gzip.open(archive, "rb") as source, unfinished.open("wb") as target:
            shutil.copyfileobj(source, target)
        os.replace(unfinished, archive.with_suffix(""))


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch, check and unpack what is missing; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="the --data-dir of mnist.py")
    directory: Path = parser.parse_args(argv).directory
    if not complete(directory):
        raw = directory / "MNIST" / "raw"
        try:
            for name, md5 in MNIST.resources:
                unpack(fetch(Published(name, [mirror + name for mirror in MNIST.mirrors], md5), raw))
        except Unavailable as error:
            print(error, file=sys.stderr)
            return 1
    print(f"MNIST is in {directory}: {SIZES[0]:,} images to train on, {SIZES[1]:,} held out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
