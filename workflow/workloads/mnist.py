"""Train a small convolutional network on handwritten digits with DistributedDataParallel.

    python workflow/workloads/prepare_digits.py data/digits

    torchrun --standalone --nproc-per-node=1 workflow/workloads/mnist.py --data-dir data/digits          # 1 GPU
    torchrun --standalone --nproc-per-node=4 workflow/workloads/mnist.py --data-dir data/digits          # 1 node
    srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d \
        --rdzv-endpoint=$HEAD_NODE:29400 workflow/workloads/mnist.py --data-dir data/digits              # 2 nodes

The batch size is that of one GPU. Uses CUDA and NCCL where there is a GPU, else the CPU and Gloo.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    """Two convolutional and two dense layers. Input: n x 1 x 8 x 8; output: n x 10 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def setup() -> torch.device:
    """Join the process group that the launcher describes in the environment; return this process's device."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts, or every process takes GPU 0
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def load(data: str, directory: Path) -> tuple[TensorDataset, TensorDataset]:
    """The (train, test) sets that ``prepare_<data>.py`` wrote."""
    file = directory / f"{data}.pt"
    if not file.exists():
        raise SystemExit(f"{file} is missing: write it with prepare_{data}.py {directory}")
    splits = torch.load(file, weights_only=True)
    train = TensorDataset(splits["train_images"], splits["train_labels"])
    test = TensorDataset(splits["test_images"], splits["test_labels"])
    return train, test


def precision(device: torch.device, amp: bool) -> contextlib.AbstractContextManager[object]:
    """Mixed precision (bfloat16) where it is asked for."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if amp else contextlib.nullcontext()


def train_epoch(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    device: torch.device,
    amp: bool,
) -> None:
    """One pass over this process's share of the training set."""
    model.train()
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with precision(device, amp):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()


def shares(test: TensorDataset, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's share of the test set, each image once over all processes (a sampler would pad it)."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    images, labels = (tensor[mine] for tensor in test.tensors)
    yield from zip(images.split(batch_size), labels.split(batch_size), strict=True)


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset, batch_size: int, device: torch.device) -> float:
    """Fraction of the test set that is classified right, over all processes."""
    model.eval()
    right = torch.zeros(1, device=device)
    for images, labels in shares(test, batch_size):
        right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    dist.all_reduce(right)
    return right.item() / len(test)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["digits"], default="digits", help="what is in the data directory")
    parser.add_argument("--data-dir", type=Path, required=True, help="where prepare_<data>.py wrote it")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training set (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="per GPU (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="loader processes per GPU (default: %(default)s)")
    parser.add_argument("--amp", action="store_true", help="mixed precision, bfloat16")
    parser.add_argument("--seed", type=int, default=1, help="of weights and shuffling (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train, and print the accuracy on held-out digits after each epoch."""
    args = arguments()
    device = setup()
    torch.manual_seed(args.seed)
    train, test = load(args.data, args.data_dir)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(
        train,
        args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=device.type == "cuda",
    )
    model = DistributedDataParallel(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    # Warm-up over the first tenth: large global batches diverge without it (Goyal et al. 2017).
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.epochs * len(loader), pct_start=0.1
    )
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, scheduler, device, args.amp)
        score = accuracy(model, test, args.batch_size, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch:3d}  held-out accuracy {100 * score:.2f} %", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
