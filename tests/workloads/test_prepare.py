"""Preparing data: fetched once, checked, whole or not there; and what is said where there is no internet."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import prepare_cifar
import prepare_digits
import prepare_mnist
import pytest
import torch
from rank_support import on_ranks
from small_datasets import accept_cifar, write_cifar, write_cifar_archive, write_mnist, write_mnist_archives
from torchvision.datasets import CIFAR100, MNIST

from common import datasets

Serve = Callable[[], Path]


@pytest.fixture
def mnist_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with a small MNIST, behind one that does not answer."""
    server = tmp_path / "server"
    sums = write_mnist_archives(server)
    monkeypatch.setattr(MNIST, "mirrors", [f"file://{tmp_path}/nobody/", f"file://{server}/"])
    monkeypatch.setattr(MNIST, "resources", [(name, sums[name]) for name, _ in MNIST.resources])
    monkeypatch.setattr(prepare_mnist, "SIZES", (64, 20))
    return server


@pytest.fixture
def cifar_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    unpacked = write_cifar(tmp_path / "unpacked")
    for name in ("train_list", "test_list", "meta", "url", "tgz_md5"):
        monkeypatch.setattr(CIFAR100, name, getattr(CIFAR100, name))
    serve_cifar(tmp_path, write_cifar_archive(tmp_path / "server", unpacked))
    return tmp_path / "server"


def serve_cifar(tmp_path: Path, md5: str) -> None:
    accept_cifar(tmp_path / "unpacked")
    CIFAR100.url = f"file://{tmp_path}/server/cifar-100-python.tar.gz"
    CIFAR100.tgz_md5 = md5


def test_mnist_is_fetched_from_the_mirror_that_answers(mnist_server: Path, tmp_path: Path) -> None:
    assert prepare_mnist.main([str(tmp_path / "data")]) == 0
    found = datasets.mnist(tmp_path / "data")
    assert found.train_images.shape == (64, 1, 28, 28)
    assert found.test_labels.shape == (20,)
    raw = os.listdir(tmp_path / "data/MNIST/raw")
    assert len(raw) == 8  # archives and IDX files, and nothing unfinished


def test_what_is_there_is_not_fetched_again(mnist_server: Path, tmp_path: Path) -> None:
    write_mnist(tmp_path / "data")
    for file in mnist_server.iterdir():
        file.unlink()
    assert prepare_mnist.main([str(tmp_path / "data")]) == 0


def test_an_idx_file_that_was_cut_off_is_replaced(mnist_server: Path, tmp_path: Path) -> None:
    file = write_mnist(tmp_path / "data") / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    assert prepare_mnist.main([str(tmp_path / "data")]) == 0
    assert len(datasets.mnist(tmp_path / "data").train_images) == 64


def test_without_internet_it_says_what_to_copy_where(
    cifar_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = cifar_server / "cifar-100-python.tar.gz"
    elsewhere = archive.rename(tmp_path / "elsewhere.tar.gz")
    data = tmp_path / "data"
    assert prepare_cifar.main(["cifar100", str(data)]) == 1
    said = capsys.readouterr().err
    assert f"file://{archive}: " in said
    assert f"MD5 {CIFAR100.tgz_md5}" in said
    assert f"  {data}/cifar-100-python.tar.gz\n" in said
    elsewhere.rename(data / "cifar-100-python.tar.gz")  # as it says
    assert prepare_cifar.main(["cifar100", str(data)]) == 0
    found = datasets.cifar100(data)
    assert found.train_images.shape == (64, 3, 32, 32)
    assert found.classes == 100


def test_a_damaged_download_is_not_kept(cifar_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cifar_server / "cifar-100-python.tar.gz").write_bytes(b"a page that asks to log in")
    assert prepare_cifar.main(["cifar100", str(tmp_path / "data")]) == 1
    assert "the MD5 of the download is not" in capsys.readouterr().err
    assert os.listdir(tmp_path / "data") == []


def test_a_damaged_copy_is_named(cifar_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "cifar-100-python.tar.gz").write_bytes(b"half of it")
    assert prepare_cifar.main(["cifar100", str(data)]) == 1
    assert "is damaged" in capsys.readouterr().err
    (data / "cifar-100-python.tar.gz").unlink()
    (data / "cifar-100-python").mkdir()
    (data / "cifar-100-python/train").write_bytes(b"half of it")
    assert prepare_cifar.main(["cifar100", str(data)]) == 1
    assert f"{data}/cifar-100-python is damaged" in capsys.readouterr().err


def prepare_together(tmp_path: Path, md5: str) -> int:
    serve_cifar(tmp_path, md5)
    return prepare_cifar.main(["cifar100", str(tmp_path / "data")])


def test_two_at_once_leave_one_good_copy(cifar_server: Path, tmp_path: Path) -> None:
    assert on_ranks(2, prepare_together, tmp_path, CIFAR100.tgz_md5) == [0, 0]
    assert prepare_cifar.complete(CIFAR100, tmp_path / "data")
    assert sorted(os.listdir(tmp_path / "data")) == ["cifar-100-python", "cifar-100-python.tar.gz"]


def test_training_without_data_names_the_script_that_fetches_it(tmp_path: Path) -> None:
    for reader, script in (
        (datasets.digits, "prepare_digits.py"),
        (datasets.mnist, "prepare_mnist.py"),
        (datasets.cifar10, "prepare_cifar.py cifar10"),
        (datasets.cifar100, "prepare_cifar.py cifar100"),
    ):
        with pytest.raises(SystemExit, match=f"{script} {tmp_path}"):
            reader(tmp_path)


def test_cifar10_in_five_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    for name in ("train_list", "test_list", "meta"):
        monkeypatch.setattr(CIFAR10, name, getattr(CIFAR10, name))
    accept_cifar(write_cifar(tmp_path, "cifar10", train=50), "cifar10")
    found = datasets.cifar10(tmp_path)
    assert (found.train_images.shape, found.classes) == ((50, 3, 32, 32), 10)
    assert found.train_labels.dtype == torch.int64


def test_digits_are_all_there_and_no_class_is_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["prepare_digits.py", str(tmp_path / "new")])
    prepare_digits.main()
    found = datasets.digits(tmp_path / "new")
    assert len(found.train_labels) + len(found.test_labels) == 1797
    assert torch.bincount(found.test_labels).min() >= 30
    torch.testing.assert_close(found.train_images.mean().item(), found.mean[0], atol=0.002, rtol=0)
    torch.testing.assert_close(found.train_images.std().item(), found.std[0], atol=0.002, rtol=0)
