"""imagenet.py on synthetic images against a guide's arithmetic, and against the GPU's matrix rate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import imagenet
import torch
import workloads

import common
from common import Precision, World, preparation, process_group
from gpu_day_parts import training
from gpu_day_parts.card import matrix_rate_flop_per_s
from gpu_day_parts.figures import Figures, Setting

WANTED_IMAGES_PER_S = 3000.0
H200_TFLOP_PER_S = 600.0
"""The target applies to a GPU with at least this bf16 matrix rate."""


@dataclass(frozen=True)
class Size:
    """The sizes of the training. guide_batch: of the guide's script."""

    model: str
    pixels: int
    batch: int
    guide_batch: int
    rounds: int
    steps: int


SIZES = {
    "cuda": Size("resnet50", 224, 256, 64, 4, 30),
    "cpu": Size("squeezenet1_1", 32, 4, 2, 1, 1),
}


def measure(setting: Setting, figures: Figures) -> None:
    """Compare imagenet.py --synthetic with its fastest options and with a guide's arithmetic."""
    size = SIZES[setting.device]
    with process_group() as world:
        _compare(setting, size, world, figures)


def _compare(setting: Setting, size: Size, world: World, figures: Figures) -> None:
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
