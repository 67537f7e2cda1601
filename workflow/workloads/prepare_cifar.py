"""Fetch CIFAR-10 or CIFAR-100, once, for cifar.py.

    python workflow/workloads/prepare_cifar.py cifar100 data/cifar100

Puts the archive (170 MB) and its content into <directory>, as torchvision keeps them. Needs internet, or the
archive in that directory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import extract_archive

from common.fetch import Published, Unavailable, fetch

KINDS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def complete(kind: Any, directory: Path) -> bool:
    """Return True if all files are there with the checksums that torchvision expects."""
    try:
        kind(str(directory), train=True)
        kind(str(directory), train=False)
    except RuntimeError:  # "Dataset not found or corrupted"
        return False
    return True


def unpack(kind: Any, archive: Path) -> None:
    """Unpack into the archive's directory, all files or none."""
    final = archive.parent / kind.base_folder
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=archive.parent) as beside:
        extract_archive(str(archive), beside)
        try:
            os.rename(Path(beside, kind.base_folder), final)
        except OSError:
            if not final.exists():  # else another process was faster, or an earlier one left a damaged copy
                raise
    if not complete(kind, archive.parent):
        raise Unavailable(f"{final} is damaged: its files do not have their checksums. Remove it and run this again.")


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch, check and unpack what is missing; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=sorted(KINDS))
    parser.add_argument("directory", type=Path, help="the --data-dir of cifar.py")
    args = parser.parse_args(argv)
    kind: Any = KINDS[args.data]
    if not complete(kind, args.directory):
        try:
            unpack(kind, fetch(Published(kind.filename, [kind.url], kind.tgz_md5), args.directory))
        except Unavailable as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{args.data} is in {args.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
