r"""A wide residual network on CIFAR-100.

First the images: "python prepare_images.py cifar100 data/cifar100" fetches them.

In this directory, on one machine:

    python cifar.py --data-dir data/cifar100                                      # 1 GPU
    torchrun --standalone --nproc-per-node=4 cifar.py --data-dir data/cifar100    # 4 GPUs

On several nodes: as mnist.py. If torch sees no GPU, the same lines train on the CPU, with Gloo.

Fast on a GPU: --precision bf16 --compile.

Unlike in the other workloads, --batch-size is that of all ranks together, as in the guide "PyTorch on Olivia":
--epochs 100 --batch-size 2048 --base-lr 0.04 gives 256 images to each of 8 ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import common
from common import World


class Block(nn.Module):
    """Two convolutions, each after a normalisation, with a shortcut (Zagoruyko and Komodakis 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same_shape = inputs == outputs and stride == 1
        self.shortcut = None if same_shape else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        active = F.relu(self.norm1(inputs))
        hidden = F.relu(self.norm2(self.conv1(active)))
        outputs: Tensor = self.conv2(hidden)
        return outputs + (inputs if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """WRN-depth-width. Input: n x 3 x 32 x 32; output: n x classes logits. depth: 6 k + 4."""

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise SystemExit(f"--depth {depth}: a wide residual network has 10, 16, 22, 28, ... layers")
        channels = [16, 16 * width, 32 * width, 64 * width]
        layers: list[nn.Module] = [nn.Conv2d(3, channels[0], 3, padding=1, bias=False)]
        for group in range(3):
            for index in range((depth - 4) // 6):
                inputs = channels[group] if index == 0 else channels[group + 1]
                layers.append(Block(inputs, channels[group + 1], stride=2 if group > 0 and index == 0 else 1))
        layers += [nn.BatchNorm2d(channels[3]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.layers = nn.Sequential(*layers, nn.Linear(channels[3], classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="where prepare_images.py put CIFAR-100")
    parser.add_argument("--depth", type=int, default=16, help="layers (default: %(default)s)")
    parser.add_argument("--width", type=int, default=4, help="factor of the channels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=100, help="default: %(default)s")
    parser.add_argument(
        "--batch-size", type=common.positive, default=256, help="of all ranks together (default: %(default)s)"
    )
    parser.add_argument("--base-lr", type=float, default=0.1, help="of SGD (default: %(default)s)")
    parser.add_argument("--warmup-epochs", type=float, default=5.0, metavar="E", help="default: %(default)s")
    return parser.parse_args(argv)


def batch_per_rank(args: argparse.Namespace, world: World) -> int:
    """Return the samples per rank and loader batch."""
    shares = world.size * args.accumulate
    if args.batch_size % shares:
        raise SystemExit(
            f"--batch-size {args.batch_size}, of all ranks together, is not a multiple of ranks x accumulated batches "
            f"({world.size} x {args.accumulate})"
        )
    return int(args.batch_size // shares)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and print loss and accuracy after each epoch; return the exit code."""
    args = arguments(argv)
    with common.process_group(args.backend) as world:
        return train(args, world)


def train(args: argparse.Namespace, world: World) -> int:
    """Train as one rank; return the exit code."""
    torch.manual_seed(args.seed)  # every rank draws the same parameters
    data = common.cifar100(args.data_dir)
    train_set = common.Resident(data.train_images, data.train_labels, world.device)
    test_set = common.Resident(data.test_images, data.test_labels, world.device)
    train_loader = common.train_loader(train_set, batch_per_rank(args, world), world, args.seed, workers=0)
    test_loader = common.test_loader(test_set, 1000, world, workers=0)

    net = WideResNet(args.depth, args.width, classes=100).to(world.device).to(memory_format=torch.channels_last)
    model = common.distribute(net, world, args.compile)
    fused = world.device.type == "cuda"
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.base_lr, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused
    )
    epoch_steps = common.steps_per_epoch(train_loader, args.accumulate)
    scheduler = common.warmed_up_cosine(optimizer, round(args.warmup_epochs * epoch_steps), args.epochs * epoch_steps)
    training = common.Training(model, optimizer, scheduler)
    precision = common.Precision(args.precision, world.device)
    prepare = common.preparation(world.device, data.mean, data.std, change=common.crop_and_flip)
    prepare_test = common.preparation(world.device, data.mean, data.std)

    recipe = common.Recipe(prepare, F.cross_entropy, precision, args.accumulate)
    return common.fit(training, recipe, train_loader, test_loader, world, args, prepare_test)


if __name__ == "__main__":
    sys.exit(main())
