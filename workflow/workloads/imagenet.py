r"""ResNet-50, or any classifier of torchvision by name, on ImageNet-like directories or synthetic images.

In this directory, on one machine:

    python imagenet.py --synthetic 50000                                      # 1 GPU
    torchrun --standalone --nproc-per-node=4 imagenet.py --synthetic 50000    # 4 GPUs

On several nodes: as mnist.py. If torch sees no GPU, the same lines train on the CPU, with Gloo.

For real images, use --data-dir /data/imagenet --workers 8 instead of --synthetic; the directory has train/<class>/*.jpg
and val/<class>/*.jpg. Synthetic images are drawn on the device, a new batch each step: they show the cost of computing
and communication without loading. Fast on a GPU: --precision bf16 --compile. --batch-size is that of one rank.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

import common
from common import World

MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]
SYNTHETIC_CLASSES = 1000
SYNTHETIC_TEST_SHARE = 25  # training images per test image, as in ImageNet


class Synthetic(common.WholeBatches):
    """Random images, made one batch at a time on the training device."""

    def __init__(self, samples: int, size: int, device: torch.device) -> None:
        super().__init__(device)
        self._samples = samples
        self._shape = (3, size, size)

    def __len__(self) -> int:
        return self._samples

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        count = len(indices)
        images = torch.randint(256, (count, *self._shape), dtype=torch.uint8, device=self.device)
        return images, torch.tensor(indices).to(self.device) % SYNTHETIC_CLASSES


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.parser(__doc__)
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data-dir", type=Path, help="directory with train/<class>/ and val/<class>/")
    data.add_argument("--synthetic", type=common.positive, metavar="N", help="use N synthetic images")
    parser.add_argument("--model", default="resnet50", help="any classifier of torchvision (default: %(default)s)")
    parser.add_argument("--image-size", type=common.positive, default=224, help="pixels (default: %(default)s)")
    parser.add_argument("--batch-size", type=common.positive, default=256, help="per rank (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=90, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=0.1, help="of SGD (default: %(default)s)")
    parser.add_argument("--warmup-epochs", type=float, default=5.0, metavar="E", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.synthetic and args.workers:
        parser.error("--workers: synthetic images need none, the device makes them")
    return args


def image_sets(args: argparse.Namespace, device: torch.device) -> tuple[Dataset[Any], Dataset[Any], int]:
    """Return training set, test set and number of classes. Images are uint8: the device normalises them."""
    size = args.image_size
    if args.synthetic:
        test = Synthetic(max(1, args.synthetic // SYNTHETIC_TEST_SHARE), size, device)
        return Synthetic(args.synthetic, size, device), test, SYNTHETIC_CLASSES
    crops = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    centre = v2.Compose([v2.Resize(size * 8 // 7, antialias=True), v2.CenterCrop(size), v2.PILToTensor()])
    train = torchvision.datasets.ImageFolder(str(args.data_dir / "train"), crops)
    return train, torchvision.datasets.ImageFolder(str(args.data_dir / "val"), centre), len(train.classes)


def make_model(name: str, classes: int) -> nn.Module:
    """Return an untrained network of torchvision."""
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes)
    return model


def optimization(model: nn.Module, epoch_steps: int, world: World, args: argparse.Namespace) -> common.Training:
    """Return SGD with momentum, its rate along half a cosine; no weight decay for biases and normalisation."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    optimizer = torch.optim.SGD(
        [{"params": matrices, "weight_decay": 5e-5}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr,
        momentum=0.9,
        fused=world.device.type == "cuda",
    )
    warmup_steps = round(args.warmup_epochs * epoch_steps)
    return common.Training(
        model, optimizer, common.warmed_up_cosine(optimizer, warmup_steps, args.epochs * epoch_steps)
    )


def smoothed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy with ImageNet's usual label smoothing."""
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and print loss and accuracy after each epoch; return the exit code."""
    args = arguments(argv)
    with common.process_group(args.backend) as world:
        return train(args, world)


def train(args: argparse.Namespace, world: World) -> int:
    """Train as one rank; return the exit code."""
    torch.manual_seed(args.seed)  # every rank draws the same parameters
    train_set, test_set, classes = image_sets(args, world.device)
    train_loader = common.train_loader(train_set, args.batch_size, world, args.seed, args.workers)
    test_loader = common.test_loader(test_set, args.batch_size, world, args.workers)

    net = make_model(args.model, classes).to(world.device).to(memory_format=torch.channels_last)
    model = common.distribute(net, world, args.compile)
    training = optimization(model, common.steps_per_epoch(train_loader, args.accumulate), world, args)
    prepare = common.preparation(world.device, MEAN, STD)
    precision = common.Precision(args.precision, world.device)

    recipe = common.Recipe(prepare, smoothed_cross_entropy, precision, args.accumulate)
    return common.fit(training, recipe, train_loader, test_loader, world, args)


if __name__ == "__main__":
    sys.exit(main())
