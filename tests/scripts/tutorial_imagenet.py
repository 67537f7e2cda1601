"""ImageNet's main.py in small: meters, workers, accuracy reduced over the ranks, an uneven validation set."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from tally import Tally, think
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

parser = argparse.ArgumentParser(description="image classification")
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int, help="of all processes together")
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("-p", "--print-freq", default=4, type=int)
parser.add_argument("-e", "--evaluate", action="store_true")
parser.add_argument("--dist-backend", default="gloo")


class Meter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32)
        dist.all_reduce(total)
        self.sum, self.count = total.tolist()

    def __str__(self):
        return f"{self.name} {self.sum / max(self.count, 1):.3f}"


def train(loader, model, criterion, optimizer, epoch, args, tally):
    batch_time, losses = Meter("time"), Meter("loss")
    model.train()
    end = time.time()
    tally.start()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        think()
        tally.seen(len(images))
        optimizer.step()
        tally.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"epoch {epoch} [{i + 1}/{len(loader)}] {batch_time} {losses}")
    tally.leave_epoch()


def validate(loader, data, model, criterion, args):
    top1 = Meter("acc@1")

    def run(part):
        with torch.no_grad():
            for images, target in part:
                correct = model(images).argmax(dim=1).eq(target).float().mean()
                top1.update(correct.item(), images.size(0))
                think(0.02)

    model.eval()
    run(loader)
    top1.all_reduce()
    seen = len(loader.sampler) * dist.get_world_size()
    if seen < len(data):
        run(DataLoader(Subset(data, range(seen, len(data))), batch_size=args.batch_size))
    print(f" * {top1}")
    return top1.sum / top1.count


def main():
    args = parser.parse_args()
    dist.init_process_group(args.dist_backend)
    batch = args.batch_size // dist.get_world_size()
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(392, 5))
    model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    data = TensorDataset(torch.randn(201, 3, 16, 16), torch.randint(0, 5, (201,)))
    held_out = TensorDataset(torch.randn(51, 3, 16, 16), torch.randint(0, 5, (51,)))
    sampler = DistributedSampler(data)
    train_loader = DataLoader(data, batch_size=batch, num_workers=args.workers, sampler=sampler, drop_last=True)
    val_sampler = DistributedSampler(held_out, shuffle=False, drop_last=True)
    val_loader = DataLoader(held_out, batch_size=batch, num_workers=args.workers, sampler=val_sampler)
    if args.evaluate:
        validate(val_loader, held_out, model, criterion, args)
        return
    tally, best = Tally(), 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch, args, tally)
        best = max(best, validate(val_loader, held_out, model, criterion, args))
        scheduler.step()
        if int(os.environ["RANK"]) == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(), "best": best}, "checkpoint.pth.tar")
    tally.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
