"""Preparing data: written once, checked by torchvision; and what is said where there is no internet."""

from __future__ import annotations

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import prepare_images
import pytest
import torch
from small_datasets import write_mnist, write_mnist_archives
from torchvision.datasets import MNIST

import common


def test_mnist_is_fetched_once_from_the_mirror_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = write_mnist_archives(tmp_path / "server")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "server"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirrors = [f"file://{tmp_path}/nobody/", f"http://127.0.0.1:{server.server_port}/"]
        monkeypatch.setattr(MNIST, "mirrors", mirrors)
        monkeypatch.setattr(MNIST, "resources", [(name, sums[name]) for name, _ in MNIST.resources])
        assert prepare_images.main(["mnist", str(tmp_path / "data")]) == 0
        server.shutdown()
    assert common.mnist(tmp_path / "data").train_images.shape == (64, 1, 28, 28)
    assert prepare_images.main(["mnist", str(tmp_path / "data")]) == 0  # now nobody answers


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
