"""The command-line options that the workloads share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from common import cores, schedule
from common.distributed import World
from common.precision import NAMES, Precision
from common.training import Checkpoint, Training

# A resumed run may change these: they affect places and speed, not what is trained.
FREE = ("data_dir", "checkpoint_dir", "resume", "workers", "data_on", "cores", "save_model", "save_format")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every workload has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=1, help="of parameters, shuffling and dropout (default: %(default)s)")
    made.add_argument(
        "--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl with a GPU, else gloo"
    )
    made.add_argument(
        "--cores",
        choices=cores.CHOICES,
        default="launcher",
        help="of this process: as the launcher bound it; its own share of those that all ranks of a node have under "
        "torchrun; or the first rank's share, for every rank (default: %(default)s)",
    )
    _add_speed(made)
    _add_learning_rate(made)
    group = made.add_argument_group("checkpoints")
    group.add_argument(
        "--checkpoint-dir", type=Path, help="save after each epoch; on SIGTERM or SIGUSR1 save and exit with code 75"
    )
    group.add_argument("--resume", action="store_true", help="continue from the checkpoint, if there is one")
    return made


def _add_speed(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("arithmetic and communication")
    group.add_argument("--precision", choices=NAMES, default="fp32", help="default: %(default)s")
    group.add_argument("--compile", action="store_true", help="torch.compile the model")
    group.add_argument("--accumulate", type=positive, default=1, metavar="N", help="batches per optimizer step")
    group.add_argument(
        "--bucket-cap-mb",
        type=float,
        metavar="MB",
        help="DDP's gradient buckets (default: torch's 25; compiled: 1 or more)",
    )
    group.add_argument(
        "--gradient-as-bucket-view", action=argparse.BooleanOptionalAction, default=True, help="saves DDP a copy"
    )


def _add_learning_rate(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("learning rate")
    group.add_argument("--lr-rule", choices=schedule.RULES, default="none", help="how it follows the global batch")
    group.add_argument(
        "--lr-batch",
        type=positive,
        default=256,
        metavar="N",
        help="global batch it was chosen for (default: %(default)s)",
    )
    group.add_argument("--warmup-epochs", type=float, default=0.0, metavar="E", help="ramp up, from the unscaled rate")


def add_images(made: argparse.ArgumentParser, resident: bool = True) -> None:
    """Add the options that the workloads on images share.

    resident: the images fit into memory and can stay on the device.
    """
    group = made.add_argument_group("images")
    group.add_argument("--channels-last", action=argparse.BooleanOptionalAction, default=True, help="memory layout")
    group.add_argument("--workers", type=int, default=0, help="loader processes per rank (default: %(default)s)")
    if resident:
        group.add_argument(
            "--data-on",
            choices=["device", "host"],
            default="device",
            help="keep all images on the device that trains, or copy each batch there (default: %(default)s)",
        )


def data_device(args: argparse.Namespace, device: torch.device) -> torch.device:
    """Return the device where --data-on keeps the images, for a rank that trains on ``device``."""
    if args.data_on == "host":
        return torch.device("cpu")
    if args.workers:
        raise SystemExit("--workers: images that stay on the device need no loader processes; add --data-on host")
    return device


def memory_format(args: argparse.Namespace) -> torch.memory_format:
    """Return the memory format that --channels-last sets."""
    return torch.channels_last if args.channels_last else torch.contiguous_format


def checkpoint(args: argparse.Namespace, world: World, training: Training, precision: Precision) -> Checkpoint | None:
    """Return the checkpoint that --checkpoint-dir and --resume set; None without --checkpoint-dir."""
    if args.checkpoint_dir is None:
        if args.resume:
            raise SystemExit("--resume needs --checkpoint-dir, where the checkpoint is")
        return None
    return Checkpoint(args.checkpoint_dir, training, precision.scaler, world, facts(args, world), args.resume)


def positive(text: str) -> int:
    """Return the whole number in ``text``, which must be above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def facts(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Return the facts that must be equal in a checkpoint and in the run that resumes it."""
    return {"world_size": world.size, **{key: value for key, value in vars(args).items() if key not in FREE}}
