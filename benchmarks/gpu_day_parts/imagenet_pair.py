"""imagenet.py against a guide's loop, on JPEG files and on synthetic images, and against the GPU's matrix rate.

With loader processes the two sides cannot alternate step by step: the waiting side's processes would continue to load.
So each turn of the JPEG pair lasts from its loader's start to its end, without the first batches.
"""

from __future__ import annotations

import os
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

import imagenet
import torch
import torch.nn.functional as F
import torchvision
import workloads
from PIL import Image

import common
from common import Precision, World, preparation, process_group
from gpu_day_parts import training
from gpu_day_parts.card import matrix_rate_flop_per_s
from gpu_day_parts.figures import Figures, Setting

WANTED_IMAGES_PER_S = 3000.0
H200_TFLOP_PER_S = 600.0
"""The target applies to a GPU with at least this bf16 matrix rate."""

GUIDE_MEAN, GUIDE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Size:
    """The sizes of the training. guide_batch: of the guide's script, and of both sides of the JPEG pair."""

    model: str
    pixels: int
    batch: int
    guide_batch: int
    rounds: int
    steps: int
    files: int  # distinct ones
    workers: int
    jpeg_rounds: int
    jpeg_steps: int


SIZES = {
    "cuda": Size("resnet50", 224, 256, 64, 4, 30, 256, min(32, os.cpu_count() or 1), 2, 90),
    # No loader process: in runs of the whole test suite, a forked one has hung here.
    "cpu": Size("squeezenet1_1", 32, 4, 2, 1, 1, 4, 0, 1, 1),
}


def measure(setting: Setting, figures: Figures) -> None:
    """Measure synthetic images first: their figures are kept if a loader process hangs."""
    size = SIZES[setting.device]
    with process_group() as world:
        without_loading(setting, size, world, figures)
        with_loading(setting, size, world, figures)


def without_loading(setting: Setting, size: Size, world: World, figures: Figures) -> None:
    """Compare imagenet.py --synthetic with its fastest options and with a guide's arithmetic."""
    ours = made_up(size, size.batch, world, fast=True, compiled=setting.on_gpu)
    guide = made_up(size, size.guide_batch, world, fast=False, compiled=False)
    pair = workloads.compare("imagenet", guide, ours, size.rounds, size.steps, size.steps, world)
    ratio = training.put_pair(figures, "made_up", pair)
    images_per_s = statistics.median(pair.ours)
    figures.headline(f"{images_per_s:,.0f} images/s, {ratio:.1f} times the guide's arithmetic")
    figures.note(
        f"Made-up images: imagenet.py --synthetic --precision bf16{' --compile' * setting.on_gpu}, {size.model}, "
        f"{size.batch} images of {size.pixels} x {size.pixels} a step, against the guide's arithmetic (fp32 with TF32 "
        f"convolutions, contiguous, not compiled, {size.guide_batch} images a step)."
    )
    flop = training.flop_per_sample(imagenet.make_model(size.model, 1000), (3, size.pixels, size.pixels))
    device = torch.device(setting.device)
    peak = matrix_rate_flop_per_s(device, torch.bfloat16) / 1e12
    if peak >= H200_TFLOP_PER_S or not setting.on_gpu:
        figures.check("ResNet-50 in bf16, images/s", images_per_s, at_least=WANTED_IMAGES_PER_S)
    for side in ("guide", "ours"):
        training.put_share(figures, f"made_up_{side}", statistics.median(getattr(pair, side)), flop, device)
    figures.note(training.HOW_COUNTED)
    figures.put(made_up_ours_time=training.where_time_goes(ours, world.device))


def made_up(size: Size, batch: int, world: World, fast: bool, compiled: bool) -> workloads.Steps:
    """Return imagenet.py's steps on synthetic images. fast: bf16 and channels_last."""
    layout = torch.channels_last if fast else torch.contiguous_format
    net = imagenet.make_model(size.model, 1000).to(world.device).to(memory_format=layout)
    if compiled:
        net.compile()
    precision = Precision("bf16" if fast else "fp32", world.device)
    torch.backends.cudnn.allow_tf32 = True  # as torch has it by default
    recipe = common.Recipe(
        preparation(world.device, imagenet.MEAN, imagenet.STD, layout), imagenet.smoothed_cross_entropy, precision
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=fast and world.device.type == "cuda")
    dataset = imagenet.Synthetic(batch * 1000, size.pixels, world.device)
    return workloads.our_steps(dataset, batch, net, optimizer, recipe, world)


def with_loading(setting: Setting, size: Size, world: World, figures: Figures) -> None:
    """Compare both sides on the same JPEG files, with equal numbers of loader processes."""
    directory = setting.work / "images"
    batches = 2 * (size.workers * 2 + size.jpeg_steps)  # more than a turn takes
    write_jpegs(directory, size.files, batches * size.guide_batch)
    pair = workloads.Pair("imagenet.py on JPEG files", [], [])
    for _ in range(size.jpeg_rounds):
        pair.guide.append(_turn(guide_on_jpegs(directory, size, world), size, world))
        pair.ours.append(_turn(ours_on_jpegs(directory, size, world), size, world))
    training.put_pair(figures, "jpeg", pair)
    figures.put(jpeg_loader_processes=size.workers)
    figures.note(
        f"JPEG files: {size.files} different ones of 500 x 375 pixels; {size.workers} loader processes and "
        f"{size.guide_batch} images a step on both sides; imagenet.py --precision bf16, not compiled. Where decoding "
        "is the limit, the network plays no part."
    )


def _turn(steps: workloads.Steps, size: Size, world: World) -> float:
    """Return the images per second after the prefetched batches are used up."""
    workloads.rate(steps, size.workers * 2 + 1, world)
    return workloads.rate(steps, size.jpeg_steps, world)


def guide_on_jpegs(directory: Path, size: Size, world: World) -> workloads.Steps:
    """Return the guide's steps: per-sample transforms to float, fp32 with torch's defaults."""
    transforms = torchvision.transforms
    change = transforms.Compose(
        [
            transforms.RandomResizedCrop(size.pixels),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(GUIDE_MEAN, GUIDE_STD),
        ]
    )
    dataset = torchvision.datasets.ImageFolder(str(directory / "train"), change)
    torch.backends.cudnn.allow_tf32 = True
    model = imagenet.make_model(size.model, 1000).to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return workloads.guide_steps(dataset, size.guide_batch, size.workers, model, optimizer, F.cross_entropy, world)


def ours_on_jpegs(directory: Path, size: Size, world: World) -> workloads.Steps:
    """Return the steps of imagenet.py --data-dir ... --precision bf16 --workers ..."""
    args = imagenet.arguments(["--data-dir", str(directory), "--image-size", str(size.pixels)])
    dataset, _, _ = imagenet.image_sets(args, world.device)
    layout = torch.channels_last
    model = imagenet.make_model(size.model, 1000).to(world.device).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=world.device.type == "cuda")
    recipe = common.Recipe(
        preparation(world.device, imagenet.MEAN, imagenet.STD, layout),
        imagenet.smoothed_cross_entropy,
        Precision("bf16", world.device),
    )
    return workloads.our_steps(dataset, size.guide_batch, model, optimizer, recipe, world, size.workers)


def write_jpegs(directory: Path, files: int, names: int) -> None:
    """Write smooth random pictures, which compress like photographs, and enough links to each distinct file."""
    chance = random.Random(0)
    originals = directory / "originals"
    originals.mkdir(parents=True)
    for index in range(files):
        rough = Image.frombytes("RGB", (50, 38), chance.randbytes(50 * 38 * 3))
        rough.resize((500, 375), Image.Resampling.BICUBIC).save(originals / f"{index}.jpg", quality=90)
    for split, count in (("train", names), ("val", files)):
        for index in range(count):
            folder = directory / split / f"class{index % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index}.jpg").symlink_to(originals / f"{index % files}.jpg")
