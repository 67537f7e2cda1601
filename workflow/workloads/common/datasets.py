"""The image sets, read whole from the files in which they are published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageSet:
    """Images (n x channels x height x width) and labels (n, int64) of both splits.

    mean, std: of the training images per channel, in the units of the stored pixels.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: Sequence[float]
    std: Sequence[float]
    classes: int


def digits(directory: Path) -> ImageSet:
    """Return scikit-learn's bundled digits, 8 x 8 pixels of 0..1, as prepare_digits.py wrote them."""
    file = directory / "digits.pt"
    if not file.exists():
        raise SystemExit(f"{file} is missing: write it with python workflow/workloads/prepare_digits.py {directory}")
    splits: dict[str, Tensor] = torch.load(file, weights_only=True)
    return ImageSet(**splits, mean=[0.305], std=[0.376], classes=10)


def mnist(directory: Path) -> ImageSet:
    """Return MNIST, 28 x 28 pixels of 0..255, from IDX files in <directory>/MNIST/raw, as torchvision keeps them."""
    from torchvision import datasets

    train, test = _both(datasets.MNIST, directory, "prepare_mnist.py")
    return ImageSet(
        train.data.unsqueeze(1), train.targets, test.data.unsqueeze(1), test.targets, [33.32], [78.57], classes=10
    )


def cifar10(directory: Path) -> ImageSet:
    """Return CIFAR-10, 3 x 32 x 32 pixels of 0..255, from torchvision's <directory>/cifar-10-batches-py."""
    from torchvision import datasets

    train, test = _both(datasets.CIFAR10, directory, "prepare_cifar.py cifar10")
    return _cifar(train, test, [125.31, 122.95, 113.87], [62.99, 62.09, 66.70], classes=10)


def cifar100(directory: Path) -> ImageSet:
    """Return CIFAR-100, 3 x 32 x 32 pixels of 0..255, from torchvision's <directory>/cifar-100-python."""
    from torchvision import datasets

    train, test = _both(datasets.CIFAR100, directory, "prepare_cifar.py cifar100")
    return _cifar(train, test, [129.30, 124.07, 112.43], [68.17, 65.39, 70.42], classes=100)


def _both(kind: Any, directory: Path, prepare: str) -> tuple[Any, Any]:
    try:
        return kind(str(directory), train=True), kind(str(directory), train=False)
    except RuntimeError as error:  # torchvision's "Dataset not found or corrupted"
        raise SystemExit(
            f"{kind.__name__} is not in {directory}, or damaged: fetch it with\n"
            f"    python workflow/workloads/{prepare} {directory}\n"
            "in one process, before the training starts"
        ) from error


def _cifar(train: Any, test: Any, mean: Sequence[float], std: Sequence[float], classes: int) -> ImageSet:
    images = [torch.from_numpy(split.data).permute(0, 3, 1, 2) for split in (train, test)]
    labels = [torch.tensor(split.targets) for split in (train, test)]
    return ImageSet(images[0], labels[0], images[1], labels[1], mean, std, classes)


READERS: dict[str, Callable[[Path], ImageSet]] = {
    "digits": digits,
    "mnist": mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
}
