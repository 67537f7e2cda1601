"""cifar.py against the loop of its guide, and against the GPU's matrix rate."""

from __future__ import annotations

import statistics

import cifar
import torch
import workloads

from common import process_group
from gpu_day_parts import training
from gpu_day_parts.figures import Figures, Setting

ROUNDS = {"cuda": 6, "cpu": 1}
STEPS = {"cuda": 40, "cpu": 1}
BATCHES = {"cuda": 195, "cpu": 4}
BATCH = {"cuda": workloads.CIFAR_BATCH, "cpu": 2}
TIMES_THE_GUIDE = 4.0


def measure(setting: Setting, figures: Figures) -> None:
    """Measure both loops in turns, then profile ours."""
    steps, batch = STEPS[setting.device], BATCH[setting.device]
    # Only full batches: a smaller last one would be compiled while it is timed.
    images, labels = workloads.made_up_cifar(BATCHES[setting.device] * batch)
    with process_group() as world:
        ours = workloads.our_cifar(images, labels, world, "bf16", setting.on_gpu, batch)
        guide = workloads.guide_cifar(images, labels, world, batch)  # second, so that its convolutions may use TF32
        pair = workloads.compare("cifar", guide, ours, ROUNDS[setting.device], steps, steps, world)
        ratio = training.put_pair(figures, "cifar", pair)
        figures.check("cifar.py / the guide's loop", ratio, at_least=TIMES_THE_GUIDE)
        figures.headline(f"{ratio:.1f} times the guide's loop")
        figures.note(
            f"cifar.py --precision bf16{' --compile' * setting.on_gpu} against the guide's single-GPU loop (fp32 with "
            f"TF32 convolutions, plain SGD, no loader processes): WRN-16-4, {batch} made-up images a step, in turns."
        )
        flop = training.flop_per_sample(cifar.WideResNet(16, 4, 100), (3, 32, 32))
        for side in ("guide", "ours"):
            rate = statistics.median(getattr(pair, side))
            training.put_share(figures, f"cifar_{side}", rate, flop, torch.device(setting.device))
        figures.note(training.HOW_COUNTED)
        figures.put(cifar_ours_time=training.where_time_goes(ours, world.device))
