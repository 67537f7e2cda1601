r"""A wide residual network on CIFAR-100 or CIFAR-10.

First the images: "python prepare_images.py cifar100 data/cifar100" fetches them.

In this directory, on one machine:

    python cifar.py --data-dir data/cifar100                                      # 1 GPU
    torchrun --standalone --nproc-per-node=4 cifar.py --data-dir data/cifar100    # 4 GPUs

In a Slurm job with 2 nodes of 4 GPUs, with one torchrun per node, or with one task per GPU:

    HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32 torchrun --nnodes=2 --nproc-per-node=4 \
        --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 cifar.py --data-dir data/cifar100
    srun --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 python cifar.py --data-dir data/cifar100

If torch sees no GPU, the same lines train on the CPU, with as many processes and Gloo instead of NCCL.

Fast on a GPU: --precision bf16 --compile.

Unlike in the other workloads, --batch-size is that of all ranks together, and --base-lr is the rate at that batch. This
is the training of the guide "PyTorch on Olivia". The guide's own options, --epochs 100 --batch-size 2048
--base-lr 0.04 --target-accuracy 0.95 --patience 2, give 256 images to each of 8 ranks. To scale the rate with the
batch, use --lr-rule linear; --base-lr is then the rate for the batch --lr-batch.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
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
    common.add_images(parser)
    parser.set_defaults(warmup_epochs=5.0)
    parser.add_argument("--data", choices=["cifar10", "cifar100"], default="cifar100", help="default: %(default)s")
    parser.add_argument("--data-dir", type=Path, required=True, help="where prepare_images.py put it")
    parser.add_argument("--depth", type=int, default=16, help="layers (default: %(default)s)")
    parser.add_argument("--width", type=int, default=4, help="factor of the channels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=100, help="default: %(default)s")
    parser.add_argument(
        "--batch-size", type=common.positive, default=256, help="of all ranks together (default: %(default)s)"
    )
    parser.add_argument("--base-lr", type=float, default=0.1, help="of SGD (default: %(default)s)")
    parser.add_argument(
        "--target-accuracy", type=float, default=0.95, metavar="FRACTION", help="end once it is reached ..."
    )
    parser.add_argument("--patience", type=common.positive, default=2, metavar="EPOCHS", help="... so often in a row")
    return parser.parse_args(argv)


def batch_per_rank(args: argparse.Namespace, world: World) -> int:
    """Return the samples per rank and loader batch."""
    shares = world.size * args.accumulate
    if args.batch_size % shares:
        nearest = max(1, round(args.batch_size / shares)) * shares
        raise SystemExit(
            f"--batch-size {args.batch_size}, of all ranks together, is not a multiple of ranks x accumulated batches "
            f"({world.size} x {args.accumulate}): for example {nearest}"
        )
    return int(args.batch_size // shares)


def optimization(model: nn.Module, epoch_steps: int, world: World, args: argparse.Namespace) -> common.Training:
    """Return SGD with Nesterov momentum; its rate follows half a cosine."""
    rate = common.scaled(args.base_lr, args.lr_rule, args.batch_size, args.lr_batch)
    fused = world.device.type == "cuda"
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rate.lr, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused
    )
    decay = common.cosine(args.epochs * epoch_steps)
    warmup_steps = round(args.warmup_epochs * epoch_steps)
    return common.Training(model, optimizer, common.scheduler(optimizer, decay, warmup_steps, rate.warmup_from))


def reached(history: Sequence[float], target: float, patience: int) -> bool:
    """Return True if the last ``patience`` accuracies have all reached the target."""
    return len(history) >= patience and min(history[-patience:]) >= target


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print each epoch and a summary; return the exit code."""
    args = arguments(argv)
    with common.process_group(args.backend, args.cores) as world:
        return train(args, world)


def train(args: argparse.Namespace, world: World) -> int:
    """Train as one rank; return the exit code."""
    torch.manual_seed(args.seed)  # every rank draws the same parameters
    data = common.READERS[args.data](args.data_dir)
    place = common.data_device(args, world.device)
    batch = batch_per_rank(args, world)
    train_set = common.Resident(data.train_images, data.train_labels, place)
    test_set = common.Resident(data.test_images, data.test_labels, place)
    train_loader = common.train_loader(train_set, batch, world, args.seed, args.workers)
    test_loader = common.test_loader(test_set, 1000, world, args.workers)

    layout = common.memory_format(args)
    net = WideResNet(args.depth, args.width, data.classes).to(world.device).to(memory_format=layout)
    if args.compile:
        net.compile()
    model = common.distribute(net, world, args.bucket_cap_mb, args.gradient_as_bucket_view)
    training = optimization(model, common.steps_per_epoch(train_loader, args.accumulate), world, args)
    prepare = common.preparation(world.device, data.mean, data.std, layout, change=common.crop_and_flip)
    prepare_test = common.preparation(world.device, data.mean, data.std, layout)
    precision = common.Precision(args.precision, world.device)
    epochs: list[common.Epoch] = []
    world.say(f"Batch of all ranks: {args.batch_size}, on each of {world.size}: {batch * args.accumulate}")

    def after_epoch(epoch: common.Epoch) -> None:
        score = common.evaluate(model, test_loader, prepare_test, precision, world.device)
        training.history.append(score.accuracy)
        epochs.append(epoch)
        world.say(
            f"Epoch {epoch.number}/{args.epochs} completed in {epoch.seconds:.3f} seconds",
            f"Validation Loss: {score.loss:.4f}, Validation Accuracy: {score.accuracy:.4f}",
            f"Epoch Throughput: {epoch.samples_per_s:.3f} images/second",
        )

    torch.manual_seed(common.rank_seed(args.seed, world.rank))  # each rank draws its own crops
    checkpoint = common.checkpoint(args, world, training, precision)
    begin_s = time.perf_counter()
    code = common.fit(
        training,
        common.Recipe(prepare, F.cross_entropy, precision, args.accumulate),
        train_loader,
        world,
        args.epochs,
        checkpoint,
        after_epoch,
        enough=functools.partial(reached, target=args.target_accuracy, patience=args.patience),
    )
    if code == 0:
        world.say(*summary(epochs, time.perf_counter() - begin_s, world))
    return code


def summary(epochs: Sequence[common.Epoch], seconds: float, world: World) -> list[str]:
    """Return the last lines to print. Throughput is that of the training, without the evaluations."""
    training_s = sum(epoch.seconds for epoch in epochs)
    rate = sum(epoch.samples for epoch in epochs) / training_s if epochs else 0.0
    return [
        "",
        "Training Summary:",
        f"Total training time: {seconds:.3f} seconds",
        f"Throughput: {rate:.3f} images/second",
        f"Number of nodes: {world.nodes}",
        f"Number of GPUs per node: {world.gpus_per_node}",
        f"Total GPUs used: {world.size}",
        "Training completed successfully.",
    ]


if __name__ == "__main__":
    sys.exit(main())
