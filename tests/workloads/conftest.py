"""Fixtures: small datasets of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_datasets import write_cifar, write_digits, write_image_folder, write_mnist


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_digits(directory, train=90)
    write_mnist(directory)
    write_cifar(directory)
    write_image_folder(directory)
    return directory
