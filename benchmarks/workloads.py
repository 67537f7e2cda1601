"""The speed of the workloads on CPUs relative to the same training in the guides' style: ratios within one run.

    python benchmarks/workloads.py                       # on two CPU ranks; gpu_day.py measures on a GPU
    python benchmarks/workloads.py --out benchmarks/results/workloads

The guides' loops are rewritten below: per-sample torchvision transforms, the guides' number of loader processes, fp32
with torch's defaults, no channels_last. Both sides of a pair train the same network on the same images, in turns in
the same processes, so that a drift of the machine affects both. The result is the median of the rounds' ratios, with
the smallest and the largest. --out writes OUT.json and OUT.txt.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[1] / "workflow" / "workloads"))

import cifar
import mnist

import common
from common import Precision, Training, World, crop_and_flip, preparation, process_group

MNIST_BATCH, CIFAR_BATCH = 64, 256

Steps = Iterator[int]
"""Each ``next`` trains one step and returns its number of samples on this rank."""


@dataclass(frozen=True)
class Pair:
    """Two implementations of a training, with the samples per second of each in each round."""

    name: str
    guide: list[float]
    ours: list[float]

    @property
    def ratios(self) -> list[float]:
        return [ours / guide for ours, guide in zip(self.ours, self.guide, strict=True)]


def endless(loader: DataLoader[Any], step: Callable[[Any], int], begin: Callable[[int], None]) -> Steps:
    """Yield the steps of endless epochs."""
    for epoch in range(1_000_000):
        begin(epoch)
        for batch in loader:
            yield step(batch)


# The guides' loops.


class GuideNet(nn.Module):
    """The network of PyTorch's MNIST example, unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def guide_steps(
    dataset: Any, batch: int, workers: int, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, world: World
) -> Steps:
    """Return the steps of the loop that all guides have."""
    sampler = DistributedSampler(dataset, world.size, world.rank)
    on_gpu = world.device.type == "cuda"
    loader = DataLoader(dataset, batch, sampler=sampler, num_workers=workers, pin_memory=on_gpu)

    def step(data: Any) -> int:
        images, labels = data[0].to(world.device), data[1].to(world.device)
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
        return len(labels)

    model.train()
    return endless(loader, step, sampler.set_epoch)


def guide_mnist(directory: Path, world: World) -> Steps:
    """Return the steps of the course's exercise. Like PyTorch's example, it has a loader process only with a GPU."""
    transform = torchvision.transforms.Compose(
        [torchvision.transforms.ToTensor(), torchvision.transforms.Normalize((0.1307,), (0.3081,))]
    )
    dataset = torchvision.datasets.MNIST(str(directory), train=True, transform=transform)
    model = DistributedDataParallel(GuideNet().to(world.device))
    workers = 1 if world.device.type == "cuda" else 0
    return guide_steps(
        dataset, MNIST_BATCH, workers, model, torch.optim.Adadelta(model.parameters(), lr=1.0), F.nll_loss, world
    )


class PixelImages(torch.utils.data.Dataset[Any]):
    """Synthetic images, with the same work per sample as torchvision's CIFAR100."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Any) -> None:
        self.data = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = labels.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def guide_cifar(images: Tensor, labels: Tensor, world: World, batch: int = CIFAR_BATCH) -> Steps:
    """Return the steps of the guide's single-GPU loop: no loader processes, plain SGD, fp32 (cuDNN uses TF32)."""
    torch.backends.cudnn.allow_tf32 = True
    transform = torchvision.transforms.Compose(
        [
            torchvision.transforms.RandomCrop(32, padding=4),
            torchvision.transforms.RandomHorizontalFlip(),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        ]
    )
    dataset = PixelImages(images, labels, transform)
    model = cifar.WideResNet(16, 4, 100).to(world.device)
    return guide_steps(dataset, batch, 0, model, torch.optim.SGD(model.parameters(), lr=0.01), F.cross_entropy, world)


# Ours, from the workloads' own parts.


def our_steps(
    dataset: Dataset[Any],
    batch: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recipe: common.Recipe,
    world: World,
    workers: int = 0,
) -> Steps:
    """Return the steps of the workloads' loop."""
    loader = common.train_loader(dataset, batch, world, seed=1, workers=workers)
    training = Training(model, optimizer)

    def step(data: Any) -> int:
        common.train_step(training, recipe, [data])
        return len(data[1])

    model.train()
    return endless(loader, step, lambda epoch: common.begin_epoch(loader, epoch))


def our_mnist(directory: Path, world: World, precision: str) -> Steps:
    """Return the steps of mnist.py --data mnist --precision ..."""
    data = common.mnist(directory)
    net = mnist.Net(28).to(world.device).to(memory_format=torch.channels_last)
    model = common.distribute(net, world)
    prepare = preparation(world.device, data.mean, data.std)
    recipe = common.Recipe(prepare, F.nll_loss, Precision(precision, world.device))
    dataset = common.Resident(data.train_images, data.train_labels, world.device)
    return our_steps(dataset, MNIST_BATCH, model, torch.optim.Adadelta(model.parameters(), lr=1.0), recipe, world)


def our_cifar(
    images: Tensor, labels: Tensor, world: World, precision: str, compiled: bool, batch: int = CIFAR_BATCH
) -> Steps:
    """Return the steps of cifar.py --precision ... --compile"""
    net = cifar.WideResNet(16, 4, 100).to(world.device).to(memory_format=torch.channels_last)
    model = common.distribute(net, world, compiled)
    prepare = preparation(world.device, [129.30, 124.07, 112.43], [68.17, 65.39, 70.42], change=crop_and_flip)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=world.device.type == "cuda"
    )
    recipe = common.Recipe(prepare, F.cross_entropy, Precision(precision, world.device))
    dataset = common.Resident(images, labels, world.device)
    return our_steps(dataset, batch, model, optimizer, recipe, world)


# Measuring.


def rate(steps: Steps, count: int, world: World) -> float:
    """Return the samples of all ranks divided by the seconds of the slowest rank."""
    if world.size > 1:
        dist.barrier()
    begin_s = common.now(world.device)
    samples = sum(next(steps) for _ in range(count))
    seconds = common.now(world.device) - begin_s
    if world.size > 1:
        figures: list[Any] = [None] * world.size
        dist.all_gather_object(figures, (samples, seconds))
        samples, seconds = sum(figure[0] for figure in figures), max(figure[1] for figure in figures)
    return samples / seconds


def compare(name: str, guide: Steps, ours: Steps, rounds: int, steps: int, warmup: int, world: World) -> Pair:
    """Measure both in turns, after a warm-up of each."""
    for each in (guide, ours):
        rate(each, warmup, world)
    pair = Pair(name, [], [])
    for turn in range(rounds):
        order = (guide, ours) if turn % 2 else (ours, guide)
        for each in order:
            (pair.guide if each is guide else pair.ours).append(rate(each, steps, world))
    return pair


def made_up_cifar(samples: int) -> tuple[Tensor, Tensor]:
    """Return random pixels and labels: the arithmetic is the same as for photographs."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.randint(100, (samples,), generator=generator)


def write_made_up_mnist(directory: Path, samples: int) -> None:
    """Write random pixels in MNIST's file format."""
    raw = directory / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        images, labels = os.urandom(samples * 784), bytes(index % 10 for index in range(samples))
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, samples, 28, 28) + images)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, samples) + labels)


def on_cpu(rank: int, size: int, port: int, directory: Path, options: argparse.Namespace) -> None:
    """Measure as one CPU rank; rank 0 writes the figures to the directory."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        CUDA_VISIBLE_DEVICES="",
    )
    torch.set_num_threads(1)
    with process_group("gloo") as world:
        pairs = [
            compare(
                f"mnist.py --precision {precision}, {size} CPU ranks",
                guide_mnist(directory, world),
                our_mnist(directory, world, precision),
                options.rounds,
                options.steps,
                3,
                world,
            )
            for precision in ("fp32", "bf16")
        ]
        images, labels = made_up_cifar(1024)
        pairs.append(
            compare(
                f"cifar.py --precision bf16, {size} CPU ranks, one step a turn",
                guide_cifar(images, labels, world),
                our_cifar(images, labels, world, "bf16", compiled=False),
                max(2, options.rounds // 2),
                1,
                1,
                world,
            )
        )
    if rank == 0:
        (directory / "pairs.json").write_text(json.dumps([vars(pair) for pair in pairs]))


def measure_cpu(options: argparse.Namespace) -> list[Pair]:
    """Measure with two ranks of one thread each."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_made_up_mnist(directory, 60_000)
        torch.multiprocessing.spawn(on_cpu, (2, store.port, directory, options), nprocs=2)  # type: ignore[no-untyped-call]
        return [Pair(**pair) for pair in json.loads((directory / "pairs.json").read_text())]


def table(pairs: Sequence[Pair]) -> list[str]:
    """Return a header and one line per pair."""
    lines = [f"{'':54} {'guide':>10} {'ours':>10}  ratio (range)"]
    for pair in pairs:
        guide, ours, ratio = (statistics.median(values) for values in (pair.guide, pair.ours, pair.ratios))
        spread = f"({min(pair.ratios):.2f} to {max(pair.ratios):.2f})"
        lines.append(f"{pair.name:54} {guide:8,.0f}/s {ours:8,.0f}/s  {ratio:.2f} {spread}")
    return lines


def machine() -> dict[str, Any]:
    """Return facts about this machine and the versions."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "load_1min_before": round(os.getloadavg()[0], 1),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "python": platform.python_version(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write it to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=15, help="steps per turn on CPU (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.txt")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {"machine": machine()}
    pairs = measure_cpu(options)
    found["pairs"] = [{**vars(pair), "ratio": statistics.median(pair.ratios)} for pair in pairs]
    facts = ", ".join(f"{name} {value}" for name, value in found["machine"].items() if value is not None)
    text = "\n".join([*table(pairs), "", facts, ""])
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
        options.out.with_suffix(".txt").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
