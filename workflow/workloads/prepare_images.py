"""Write the images of a workload to a directory, once, before the training starts.

    python workflow/workloads/prepare_images.py digits data/digits      # scikit-learn's 1,797 scans of 8 x 8 pixels
    python workflow/workloads/prepare_images.py mnist data/mnist        # for mnist.py; 12 MB from the internet
    python workflow/workloads/prepare_images.py cifar100 data/cifar100  # for cifar.py; 170 MB from the internet

torchvision fetches MNIST and CIFAR, and checks them. Without internet, put its archives into the directory yourself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torchvision import datasets

import common

PUBLISHED = {"mnist": datasets.MNIST, "cifar100": datasets.CIFAR100}


def write_digits(directory: Path) -> None:
    """Write <directory>/digits.pt: images (n x 1 x 8 x 8, 0..1) and labels (n), a fifth of each class held out."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    splits = {
        "train_images": images[train],
        "train_labels": labels[train],
        "test_images": images[test],
        "test_labels": labels[test],
    }
    common.save(splits, directory / "digits.pt")


def main(argv: Sequence[str] | None = None) -> int:
    """Write what is missing; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["digits", *PUBLISHED])
    parser.add_argument("directory", type=Path, help="the --data-dir of the workload")
    args = parser.parse_args(argv)
    args.directory.mkdir(parents=True, exist_ok=True)
    try:
        if args.data == "digits":
            write_digits(args.directory)
        else:
            for train in (True, False):
                PUBLISHED[args.data](str(args.directory), train=train, download=True)
    except (OSError, RuntimeError) as error:  # no internet, no space, a download with another checksum
        print(
            f"{args.data} cannot be written to {args.directory}: {error}\n"
            "Without internet: run this on another machine, and copy the directory.",
            file=sys.stderr,
        )
        return 1
    print(f"{args.data} is in {args.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
