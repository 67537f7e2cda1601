"""Preparing data: written once, checked by torchvision; and what is said where there is no internet."""

from __future__ import annotations

from pathlib import Path

import prepare_images
import pytest
import torch
from small_datasets import write_mnist
from torchvision.datasets import MNIST

import common


def test_without_internet_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MNIST, "mirrors", [f"file://{tmp_path}/nobody/"])
    assert prepare_images.main(["mnist", str(tmp_path / "data")]) == 1
    assert "run this on another machine, and copy the directory" in capsys.readouterr().err
    copied = write_mnist(tmp_path / "copied")  # as it says
    assert prepare_images.main(["mnist", str(copied)]) == 0


def test_training_without_data_names_the_command_that_writes_it(tmp_path: Path) -> None:
    for reader in (common.digits, common.mnist, common.cifar100):
        with pytest.raises(SystemExit, match=f"prepare_images.py {reader.__name__} {tmp_path}"):
            reader(tmp_path)


def test_digits_are_all_there_and_no_class_is_rare(tmp_path: Path) -> None:
    assert prepare_images.main(["digits", str(tmp_path / "new")]) == 0
    found = common.digits(tmp_path / "new")
    assert len(found.train_labels) + len(found.test_labels) == 1797
    assert torch.bincount(found.test_labels).min() >= 30
    torch.testing.assert_close(found.train_images.mean().item(), found.mean[0], atol=0.002, rtol=0)
    torch.testing.assert_close(found.train_images.std().item(), found.std[0], atol=0.002, rtol=0)
