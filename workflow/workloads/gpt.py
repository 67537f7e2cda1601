r"""A small GPT on made-up text, trained with one of five strategies that share a model's state among the ranks or not.

In this directory, on one machine:

    python gpt.py                                                       # 1 GPU, no strategy needed
    torchrun --standalone --nproc-per-node=4 gpt.py --strategy fsdp2    # 4 GPUs

On several nodes: as mnist.py. If torch sees no GPU, the same lines train on the CPU, with Gloo.

--strategy         parameters, gradients, optimizer   sent in a step, in parameters
ddp                all on every rank                  all-reduce of the gradients: 2
ddp-bf16           the same                           the same in two bytes instead of four: 1
zero1              optimizer state is sharded         and a broadcast of the new parameters: 3
fsdp2              all sharded                        all-gather twice, reduce-scatter: 3
fsdp2-checkpoint   all sharded                        the same; activations are computed again, not kept

--batch-size is that of one rank, in sequences of --sequence characters.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

import common
from common import World

STRATEGIES = ("ddp", "ddp-bf16", "zero1", "fsdp2", "fsdp2-checkpoint")
SIZES = {"layers": (24, 2), "width": (1024, 64), "heads": (16, 4), "sequence": (1024, 64)}  # 0.3 billion parameters
CHARACTERS = 256
HELD_OUT = 16  # sequences of each rank


class Block(nn.Module):
    """Attention and a dense network, each added to its input (n x sequence x width).

    recompute: keep only the input for the backward pass, and compute the rest again there.
    """

    def __init__(self, width: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        # Inside of forward: what FSDP gathers before it stays gathered for both computations.
        y: Tensor = checkpoint(self.compute, x, use_reentrant=False) if self.recompute else self.compute(x)
        return y

    def compute(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.queries_keys_values(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, length, width))
        change: Tensor = self.dense(self.norm2(x))
        return x + change


class GPT(nn.Module):
    """Input: n x sequence characters; output: n x CHARACTERS x sequence logits of the next ones."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, args.width), nn.Embedding(args.sequence, args.width)
        recompute = args.strategy == "fsdp2-checkpoint"
        self.blocks = nn.ModuleList(Block(args.width, args.heads, recompute) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, CHARACTERS)
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits.transpose(1, 2).contiguous()


def distribute(net: GPT, world: World, args: argparse.Namespace) -> nn.Module:
    """Return the model under the strategy; without a process group it is the network itself.

    FSDP shards the parameters of each block, and then the rest, and gathers each part when it is needed.
    """
    if not args.strategy.startswith("fsdp2") or not dist.is_initialized():
        model: Any = common.distribute(net, world, args.compile)
        if args.strategy == "ddp-bf16" and dist.is_initialized():
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        return model  # type: ignore[no-any-return]
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:  # torch 2.4 and 2.5
        if world.device.type == "cpu":
            raise SystemExit(f"--strategy {args.strategy} on CPUs needs torch 2.6 or newer") from None
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard  # type: ignore[attr-defined]
    if args.compile:
        net.compile()
    half = torch.bfloat16 if args.precision == "bf16" else None
    policy: Any = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for part in (*net.blocks, net):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return net


def optimizer_of(model: nn.Module, args: argparse.Namespace) -> Optimizer:
    """Return AdamW; with zero1 each rank keeps the state of its part of the parameters, and updates only those."""
    if args.strategy == "zero1" and dist.is_initialized():
        from torch.distributed.optim import ZeroRedundancyOptimizer  # it warns where it is not used, too

        return ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=args.lr)
    return AdamW(model.parameters(), lr=args.lr)


def made_up(samples: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return texts and their next characters, both samples x length: each is 0 to 3 above the one before it."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, 4, (samples, length + 1), generator=generator)
    text[:, 0] = torch.randint(0, CHARACTERS, (samples,), generator=generator)
    text = text.cumsum(dim=1) % CHARACTERS
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp", help="default: %(default)s")
    parser.add_argument("--samples", type=common.positive, default=10_000, help="texts (default: %(default)s)")
    for option, (on_gpu, on_cpu) in SIZES.items():
        default = on_gpu if torch.cuda.is_available() else on_cpu
        words = f"default: {on_gpu} on a GPU, {on_cpu} on a CPU"
        parser.add_argument(f"--{option}", type=common.positive, default=default, help=words)
    parser.add_argument("--batch-size", type=common.positive, default=16, help="per rank (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.width % args.heads:
        parser.error(f"--width {args.width} is no multiple of --heads {args.heads}")
    if not args.strategy.startswith("ddp") and (args.checkpoint_dir or args.precision == "fp16"):
        parser.error(f"--checkpoint-dir and --precision fp16 are not for sharded states (--strategy {args.strategy})")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and print loss and accuracy after each epoch; return the exit code."""
    args = arguments(argv)
    with common.process_group(args.backend) as world:
        return train(args, world)


def train(args: argparse.Namespace, world: World) -> int:
    """Train as one rank; return the exit code."""
    torch.manual_seed(args.seed)  # every rank draws the same parameters
    train_set = common.Resident(*made_up(args.samples, args.sequence, args.seed), world.device)
    # As many on each rank: FSDP gathers parameters in an evaluation, too.
    test_texts = made_up(HELD_OUT * world.size, args.sequence, args.seed + 1_000_000)
    train_loader = common.train_loader(train_set, args.batch_size, world, args.seed, workers=0)
    test_loader = common.test_loader(common.Resident(*test_texts, world.device), HELD_OUT, world, workers=0)

    model = distribute(GPT(args).to(world.device), world, args)
    training = common.Training(model, optimizer_of(model, args))
    precision = common.Precision(args.precision, world.device)

    def prepare(text: Tensor) -> Tensor:
        return text.to(world.device, non_blocking=True)

    recipe = common.Recipe(prepare, F.cross_entropy, precision, args.accumulate)
    return common.fit(training, recipe, train_loader, test_loader, world, args)


if __name__ == "__main__":
    sys.exit(main())
