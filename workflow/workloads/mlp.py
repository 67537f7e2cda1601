r"""A small dense network on synthetic data: nothing to download, and little computing between communications.

In this directory, on one machine:

    python mlp.py                                      # 1 GPU
    torchrun --standalone --nproc-per-node=4 mlp.py    # 4 GPUs

On several nodes: as mnist.py. If torch sees no GPU, the same lines train on the CPU, with Gloo.

10 inputs, one hidden layer of 50, 2 classes. --batch-size is that of one rank. --backend gloo uses Gloo on GPUs too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import common
from common import World

INPUTS, HIDDEN, CLASSES = 10, 50, 2


class SimpleModel(nn.Sequential):
    """Input: n x 10; output: n x 2 logits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def made_up(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return normal inputs (n x 10) and labels (n): 1 if the sum of two products of inputs is above 0."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, INPUTS, generator=generator)
    labels = (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] * inputs[:, 3] > 0).long()
    return inputs, labels


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--samples", type=common.positive, default=60_000, help="to train on (default: %(default)s)")
    parser.add_argument("--batch-size", type=common.positive, default=64, help="per rank (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=0.05, help="of SGD (default: %(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and print loss and accuracy after each epoch; return the exit code."""
    args = arguments(argv)
    with common.process_group(args.backend) as world:
        return train(args, world)


def train(args: argparse.Namespace, world: World) -> int:
    """Train as one rank; return the exit code."""
    torch.manual_seed(args.seed)  # every rank draws the same parameters
    train_set = common.Resident(*made_up(args.samples, args.seed), world.device)
    test_set = common.Resident(*made_up(10_000, args.seed + 1_000_000), world.device)
    train_loader = common.train_loader(train_set, args.batch_size, world, args.seed, workers=0)
    test_loader = common.test_loader(test_set, 1000, world, workers=0)

    model = common.distribute(SimpleModel().to(world.device), world, args.compile)
    training = common.Training(model, torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9))
    precision = common.Precision(args.precision, world.device)

    def prepare(inputs: Tensor) -> Tensor:
        return inputs.to(world.device, non_blocking=True)

    recipe = common.Recipe(prepare, F.cross_entropy, precision, args.accumulate)
    return common.fit(training, recipe, train_loader, test_loader, world, args)


if __name__ == "__main__":
    sys.exit(main())
