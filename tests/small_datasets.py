"""Write small datasets in the real formats: IDX, CIFAR's pickles, directories of images."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

RANDOM = np.random.default_rng(0)


def write_digits(directory: Path, train: int = 96, test: int = 40) -> Path:
    """Write the file of prepare_images.py, with random digits."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    splits = {}
    for name, count in (("train", train), ("test", test)):
        splits[f"{name}_images"] = torch.rand(count, 1, 8, 8, generator=generator)
        splits[f"{name}_labels"] = torch.randint(10, (count,), generator=generator)
    torch.save(splits, directory / "digits.pt")
    return directory


def idx(array: np.ndarray[Any, Any]) -> bytes:
    """Return the array in MNIST's IDX format: magic number, dimensions, bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files(train: int, test: int) -> dict[str, bytes]:
    files = {}
    for name, count in (("train", train), ("t10k", test)):
        files[f"{name}-images-idx3-ubyte"] = idx(RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        files[f"{name}-labels-idx1-ubyte"] = idx(RANDOM.integers(0, 10, count, dtype=np.uint8))
    return files


def write_mnist(directory: Path, train: int = 64, test: int = 20) -> Path:
    raw = directory / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in mnist_files(train, test).items():
        (raw / name).write_bytes(content)
    return directory


def write_cifar(directory: Path, train: int = 64, test: int = 24) -> Path:
    """Write CIFAR-100's files, with random pixels."""
    folder = directory / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("test", test)):
        pixels = RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = RANDOM.integers(0, 100, count).tolist()
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "fine_labels": labels}, protocol=2))
    names = {"fine_label_names": [f"class {k}" for k in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return directory


def accept_cifar(directory: Path) -> None:
    """Make torchvision's reader accept the checksums of the small files, in this process."""
    from torchvision.datasets import CIFAR100

    folder = directory / CIFAR100.base_folder
    for name in ("train_list", "test_list"):
        setattr(CIFAR100, name, [[file, md5((folder / file).read_bytes())] for file, _ in getattr(CIFAR100, name)])
    CIFAR100.meta = {**CIFAR100.meta, "md5": md5((folder / CIFAR100.meta["filename"]).read_bytes())}


def write_image_folder(directory: Path, train: int = 12, test: int = 6, classes: int = 3) -> Path:
    for split, count in (("train", train), ("val", test)):
        for index in range(count):
            file = directory / split / f"class{index % classes}" / f"{index}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = RANDOM.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file)
    return directory


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
