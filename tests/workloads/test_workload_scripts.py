"""The scripts themselves: what they print and save, their options, and what instrument.py counts of them."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import cifar
import imagenet
import mlp
import mnist
import pytest
import torch
from instrument_support import INSTRUMENT, Ran, run_json
from rank_support import on_ranks
from small_datasets import accept_cifar, write_cifar, write_digits, write_image_folder, write_mnist
from torch import nn

import common
from common import World

WORKLOADS = INSTRUMENT.parents[1] / "workloads"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_digits(directory, train=61)
    write_mnist(directory)
    write_cifar(directory)
    write_image_folder(directory)
    return directory


# Under instrument.py. Training samples, epochs, and how a small run is started.
SMALL = {
    "mlp": (203, 2, ["--samples", "203", "--batch-size", "16", "--accumulate", "3"]),
    "mnist": (64, 2, ["--data", "mnist", "--data-dir", "{data}", "--batch-size", "8", "--precision", "bf16"]),
    "cifar": (64, 1, ["--data-dir", "{data}", "--depth", "10", "--width", "1", "--batch-size", "18"]),
    "imagenet": (
        12,
        1,
        ["--data-dir", "{data}", "--model", "shufflenet_v2_x0_5", "--image-size", "32", "--batch-size", "4"],
    ),
}


def measured(name: str, data: Path, directory: Path, epochs: int, words: list[str]) -> int | str | None:
    """On one rank: the script under instrument.py, as the agent starts it."""
    from ddp_ladder_instrument import entry

    if name == "cifar":
        accept_cifar(data)
    os.environ["DDP_LADDER_RUN"] = str(directory / "run.json")
    script = [str(WORKLOADS / f"{name}.py"), *(word.format(data=data) for word in words), "--epochs", str(epochs)]
    try:
        entry.main(script, started_at_s=time.time(), own_directory=str(INSTRUMENT.parent))
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize("name", SMALL)
def test_instrument_counts_every_sample_once(name: str, data: Path, tmp_path: Path) -> None:
    samples, epochs, words = SMALL[name]
    run_json(tmp_path)
    assert on_ranks(2, measured, name, data, tmp_path, epochs, words) == [0, 0]
    ran = Ran(0, "", "", tmp_path)
    rows = [row for rank in range(2) for row in ran.rows(rank)]
    assert sum(row["samples"] for row in rows) == samples * epochs
    assert sum(row["padding_samples"] for row in rows) == (samples % 2) * epochs
    records = [ran.rank(rank) for rank in range(2)]
    for record in records:
        assert record["loader"]["shards"]
        assert record["loader"]["set_epoch_called"]
        assert record["ddp"]["wrapped"]
        assert record["fingerprint"]["autocast_dtype"] == ("bfloat16" if name == "mnist" else None)
    assert len({record["parameters"]["checksum"] for record in records}) == 1


def ended_early(data: Path, directory: Path) -> int | str | None:
    return measured("mlp", data, directory, 50, ["--samples", "640", "--batch-size", "16"])


def test_max_steps_ends_a_workload_well(data: Path, tmp_path: Path) -> None:
    run_json(tmp_path, max_steps=25)
    assert on_ranks(2, ended_early, data, tmp_path) == [0, 0]
    record = json.loads((tmp_path / "ranks/rank0.json").read_text())
    assert (record["steps"]["count"], record["ended_by"]) == (25, "max_steps")


def output(script: Any, words: list[str], data: Path | None = None) -> str:
    """On one rank: what it printed, after ending well."""
    import contextlib
    import io

    if data is not None:
        accept_cifar(data)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert script(words) == 0
    return printed.getvalue()


def test_cifar_prints_what_the_guides_reader_expects(data: Path) -> None:
    words = ["--data-dir", str(data), "--depth", "10", "--width", "1", "--epochs", "2", "--batch-size", "16"]
    first, second = on_ranks(2, output, cifar.main, words, data)
    assert second == ""
    epochs = re.findall(
        r"Epoch (\d)/2 completed in [\d.]+ seconds\n"
        r"Validation Loss: [\d.]+, Validation Accuracy: 0\.\d{4}\n"
        r"Epoch Throughput: [\d.]+ images/second\n",
        first,
    )
    assert epochs == ["1", "2"]
    assert re.search(
        r"\nTraining Summary:\n"
        r"Total training time: [\d.]+ seconds\n"
        r"Throughput: [\d.]+ images/second\n"
        r"Number of nodes: 1\n"
        r"Number of GPUs per node: 2\n"
        r"Total GPUs used: 2\n"
        r"Training completed successfully\.\n$",
        first,
    )


def test_cifar_ends_when_the_accuracy_stays_at_the_target(data: Path) -> None:
    words = ["--data-dir", str(data), "--depth", "10", "--width", "1", "--epochs", "9", "--batch-size", "32"]
    (printed,) = on_ranks(1, output, cifar.main, [*words, "--target-accuracy", "0.0", "--patience", "3"], data)
    assert re.findall(r"Epoch (\d)/9", printed) == ["1", "2", "3"]
    assert cifar.reached([0.9, 0.96, 0.97], 0.95, 2)
    assert not cifar.reached([0.96, 0.94, 0.97], 0.95, 2)
    assert not cifar.reached([0.96], 0.95, 2)


def test_cifar_called_as_the_olivia_guide_calls_its_script_trains_what_the_guide_trains() -> None:
    """Its script divides --batch-size by the number of ranks, and gives --base-lr to SGD as it is."""
    line = "--epochs 100 --batch-size 2048 --base-lr 0.04 --target-accuracy 0.95 --patience 2"
    args = cifar.arguments(["--data-dir", "x", *line.split()])
    world = World(rank=0, size=8, nodes=2, gpus_per_node=4, device=torch.device("cpu"))
    assert cifar.batch_per_rank(args, world) == 256
    training = cifar.optimization(torch.nn.Linear(1, 1), 24, world, args)
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.04)  # from the first step on


def test_cifar_shares_its_batch_among_ranks_and_accumulated_batches(data: Path, tmp_path: Path) -> None:
    small = ["--data-dir", str(data), "--depth", "10", "--width", "1", "--epochs", "1", "--accumulate", "2"]
    printed, _ = on_ranks(2, output, cifar.main, [*small, "--batch-size", "16"], data)
    assert "Batch of all ranks: 16, on each of 2: 8\n" in printed
    args = cifar.arguments(["--data-dir", "x", "--batch-size", "10", "--accumulate", "2"])
    with pytest.raises(SystemExit, match=r"--batch-size 10, of all ranks together.* \(2 x 2\): for example 8"):
        cifar.batch_per_rank(args, World(rank=0, size=2, nodes=1, gpus_per_node=2, device=torch.device("cpu")))


def test_a_saved_model_loads_without_ddp(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    on_ranks(2, output, mnist.main, ["--data-dir", str(data), "--epochs", "1", "--save-model", str(file)])
    mnist.Net(8).load_state_dict(torch.load(file, weights_only=True))


def test_without_ddp_and_with_data_parallel_the_same_is_learnt(data: Path, tmp_path: Path) -> None:
    """DDP with one rank, DataParallel and neither differ in speed, not in what they compute."""
    states = []
    for strategy in ("none", "dp", "ddp"):
        file = tmp_path / f"{strategy}.pt"
        words = ["--data-dir", str(data), "--epochs", "1", "--strategy", strategy, "--save-model", str(file)]
        on_ranks(1, output, mnist.main, words)
        states.append(torch.load(file))
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
        torch.testing.assert_close(value, states[2][name])


def refused(words: list[str]) -> str:
    with pytest.raises(SystemExit) as refusal:
        mnist.main(words)
    return str(refusal.value)


def test_several_processes_without_ddp_are_refused(data: Path) -> None:
    messages = on_ranks(2, refused, ["--data-dir", str(data), "--strategy", "none"])
    assert all("--strategy none is one process: 2 would each train a model" in message for message in messages)


def test_loader_processes_for_images_that_stay_on_the_device_are_refused() -> None:
    args = mnist.arguments(["--data-dir", "x", "--workers", "2"])
    with pytest.raises(SystemExit, match="add --data-on host"):
        common.data_device(args, torch.device("cuda", 0))
    args = mnist.arguments(["--data-dir", "x", "--workers", "2", "--data-on", "host"])
    assert common.data_device(args, torch.device("cuda", 0)) == torch.device("cpu")


def test_a_compiled_model_for_data_parallel_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mnist.arguments(["--data-dir", "x", "--strategy", "dp", "--compile"])
    assert "a compiled one cannot be copied" in capsys.readouterr().err


def test_dry_run_makes_one_step(data: Path, tmp_path: Path) -> None:
    words = ["--data-dir", str(data), "--dry-run", "--batch-size", "8", "--checkpoint-dir", str(tmp_path)]
    (printed,) = on_ranks(1, output, mnist.main, words)
    assert printed.count("held-out accuracy") == 1
    assert torch.load(tmp_path / "checkpoint.pt")["scheduler"]["_step_count"] == 2


def test_data_on_the_host_with_workers_is_the_same_training(data: Path, tmp_path: Path) -> None:
    states = []
    for name, words in (("device", []), ("host", ["--data-on", "host", "--workers", "1"])):
        words = [*words, "--data", "mnist", "--data-dir", str(data), "--epochs", "1", "--batch-size", "16"]
        on_ranks(1, output, mnist.main, [*words, "--save-model", str(tmp_path / name)])
        states.append(torch.load(tmp_path / name))
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key])


def test_imagenet_makes_new_images_at_each_step() -> None:
    made = imagenet.Synthetic(100, 16, torch.device("cpu"))
    (first, labels), (second, _) = made.__getitems__([5, 7]), made.__getitems__([5, 7])
    assert (first.shape, first.dtype, labels.tolist()) == ((2, 3, 16, 16), torch.uint8, [5, 7])
    assert not torch.equal(first, second)


def test_imagenet_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such classifier; allowed: alexnet"):
        imagenet.make_model("resnet51", 10)
    with pytest.raises(SystemExit, match="has no train/"):
        imagenet.image_sets(imagenet.arguments(["--data-dir", str(tmp_path)]), torch.device("cpu"))
    assert isinstance(imagenet.make_model("resnet50", 10), nn.Module)


def test_imagenet_takes_the_classifiers_with_several_outputs_too() -> None:
    with torch.device("meta"):  # shapes alone
        model = imagenet.make_model("googlenet", 10)
        assert model.training
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_mlp_learns(capsys: pytest.CaptureFixture[str]) -> None:
    (printed,) = on_ranks(1, output, mlp.main, ["--samples", "6000", "--epochs", "2", "--batch-size", "32"])
    accuracies = [float(text) for text in re.findall(r"accuracy ([\d.]+) %", printed)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 80


def test_docstrings_show_each_way_to_launch() -> None:
    for name in SMALL:
        text = sys.modules[name].__doc__ or ""
        task = r"srun --nodes=2 --ntasks-per-node=\d --gpus-per-node=4 --cpus-per-task=\d+"
        for launch in (
            rf"^    python {name}\.py.* # 1 GPU$",
            rf"^    torchrun --standalone --nproc-per-node=4 {name}\.py.* # 4 GPUs$",
            rf"^    {task} torchrun --nnodes=2 --nproc-per-node=4 \\\n.* {name}\.py",
            rf"^    {task} python {name}\.py",
            "the same lines train on the CPU",
        ):
            assert re.search(launch, text, re.MULTILINE), (name, launch)
        assert "ddp_ladder" not in (WORKLOADS / f"{name}.py").read_text()
    assert "ddp_ladder" not in (WORKLOADS / "common.py").read_text()
