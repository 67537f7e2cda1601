r"""Handwritten digits with a small convolutional network: the "hello, world" of DistributedDataParallel.

Get the images first: "python prepare_images.py digits data/digits" writes 1,797 of 8 x 8 pixels; for --data mnist,
"python prepare_images.py mnist data/mnist" fetches 70,000 of 28 x 28.

In this directory, on one machine:

    python mnist.py --data-dir data/digits                                      # 1 GPU
    torchrun --standalone --nproc-per-node=4 mnist.py --data-dir data/digits    # 4 GPUs

In a Slurm job with 2 nodes of 4 GPUs, with one torchrun per node:

    HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32 torchrun --nnodes=2 --nproc-per-node=4 \
        --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 mnist.py --data-dir data/digits

If torch sees no GPU, the same lines train on the CPU, with as many processes and Gloo instead of NCCL.

The network, optimizer and options are those of PyTorch's MNIST example and of course exercises based on it.
--batch-size is that of one rank. With --strategy dp it is that of the one process, which splits it among all its GPUs.

The defaults are those of the example, for MNIST. An epoch of the digits has only 23 steps. A rate that is multiplied
by 0.7 after each epoch is soon too small, so --epochs 20 --gamma 0.95 suits the digits. These values were chosen on a
fifth of the training digits. The held-out digits, whose accuracy is printed, were not used for this.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import common
from common import World


class Net(nn.Module):
    """Two convolutional and two dense layers. Input: n x 1 x size x size; output: n x 10 log-probabilities."""

    def __init__(self, size: int) -> None:
        super().__init__()
        pooled = (size - 4) // 2
        # Pooling before ReLU gives the same result with a quarter of ReLU's work.
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.25)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * pooled * pooled, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return F.log_softmax(scores, dim=1)


def wrap(net: nn.Module, world: World, args: argparse.Namespace) -> nn.Module:
    """Wrap the network for the chosen --strategy."""
    if args.strategy == "ddp":
        return common.distribute(net, world, args.compile)
    if world.size > 1:
        raise SystemExit(f"--strategy dp is one process: {world.size} would each train a model")
    return nn.DataParallel(net)


def bind(choice: str) -> None:
    """Bind this process to cores, before its first computation: threads that have started keep theirs.

    launcher  as the launcher bound it: torchrun's ranks share all cores of their node's task
    own       this rank's share of the cores that the launcher gave all ranks of the node together
    first     the first rank's share, for every rank of the node
    """
    if choice == "launcher":
        return
    # Hardware threads of one core are neighbours in this order.
    cpus = sorted(os.sched_getaffinity(0), key=first_thread)
    share = len(cpus) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    place = int(os.environ.get("LOCAL_RANK", "0")) if choice == "own" else 0
    if share == 0:
        raise SystemExit(f"--cores {choice}: {len(cpus)} CPUs are fewer than ranks; use --cores launcher")
    os.sched_setaffinity(0, cpus[place * share : (place + 1) * share])


def first_thread(cpu: int) -> tuple[int, int]:
    """Return the first hardware thread of a CPU's core, and the CPU."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    return int(re.split("[,-]", siblings)[0]), cpu


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits", help="default: %(default)s")
    parser.add_argument("--data-dir", type=Path, required=True, help="where prepare_images.py put it")
    parser.add_argument(
        "--data-on",
        choices=["device", "host"],
        default="device",
        help="keep all images on the device that trains, or copy each batch there (default: %(default)s)",
    )
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank, for --data-on host")
    parser.add_argument("--cores", choices=["launcher", "own", "first"], default="launcher", help="see bind()")
    parser.add_argument("--batch-size", type=common.positive, default=64, help="per rank (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=14, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=1.0, help="of Adadelta (default: %(default)s)")
    parser.add_argument(
        "--gamma", type=float, default=0.7, help="factor of the rate after each epoch (default: %(default)s)"
    )
    parser.add_argument(
        "--strategy",
        choices=["ddp", "dp"],
        default="ddp",
        help="ddp: one process per GPU; dp: DataParallel, one process with a thread per GPU (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    if args.strategy == "dp" and args.compile:
        parser.error("--compile: DataParallel copies the model at each step, and a compiled one cannot be copied")
    if args.workers and args.data_on == "device":
        parser.error("--workers: images that stay on the device need no loader processes; add --data-on host")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and print loss and accuracy on held-out digits after each epoch; return the exit code."""
    args = arguments(argv)
    bind(args.cores)
    with common.process_group(args.backend) as world:
        return train(args, world)


def train(args: argparse.Namespace, world: World) -> int:
    """Train as one rank; return the exit code."""
    torch.manual_seed(args.seed)  # every rank draws the same parameters
    data = (common.digits if args.data == "digits" else common.mnist)(args.data_dir)
    place = world.device if args.data_on == "device" else torch.device("cpu")
    train_set = common.Resident(data.train_images, data.train_labels, place)
    test_set = common.Resident(data.test_images, data.test_labels, place)
    train_loader = common.train_loader(train_set, args.batch_size, world, args.seed, args.workers)
    test_loader = common.test_loader(test_set, 1000, world, args.workers)

    net = Net(data.train_images.size(-1)).to(world.device).to(memory_format=torch.channels_last)
    model = wrap(net, world, args)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, common.steps_per_epoch(train_loader, args.accumulate), args.gamma)
    training = common.Training(model, optimizer, scheduler)
    precision = common.Precision(args.precision, world.device)
    recipe = common.Recipe(
        common.preparation(world.device, data.mean, data.std), F.nll_loss, precision, args.accumulate
    )
    return common.fit(training, recipe, train_loader, test_loader, world, args)


if __name__ == "__main__":
    sys.exit(main())
