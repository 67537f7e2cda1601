"""Validation at three points, with gradients or without, in eval mode or not, from all of a loader or a part."""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--where", choices=["between", "inside", "before_use", "accumulating"])
parser.add_argument("--grad", choices=["grad", "no_grad", "inference"])
parser.add_argument("--eval-mode", action="store_true")
parser.add_argument("--data", choices=["loader", "workers", "cut_short"], default="loader")
args = parser.parse_args()

GRAD = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}
data = TensorDataset(torch.randn(100, 4), torch.randint(0, 3, (100,)))
train = DataLoader(data, batch_size=10, shuffle=True)
val = DataLoader(data, batch_size=25, num_workers=2 if args.data == "workers" else 0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
model = together(model)
optimizer = torch.optim.Adam(model.parameters())
tally = Tally()


def validate():
    if args.eval_mode:
        model.eval()
    with GRAD[args.grad]():
        for index, (x, _) in enumerate(val):
            model(x)
            think(0.01)
            if args.data == "cut_short" and index == 1:
                break
    if args.eval_mode:
        model.train()


def interrupted_by_validation():
    tally.stop()
    validate()
    tally.start()


for _ in range(2):
    tally.start()
    for index, (x, y) in enumerate(train):
        if args.where == "before_use" and index % 5 == 0:
            interrupted_by_validation()
        F.cross_entropy(model(x), y).backward()
        think()
        tally.seen(len(x))
        if args.where == "accumulating" and index % 2 == 0:
            if index == 4:
                interrupted_by_validation()
            continue
        optimizer.step()
        optimizer.zero_grad()
        tally.step()
        if args.where == "inside" and index % 5 == 2:
            interrupted_by_validation()
    tally.leave_epoch()
    if args.where == "between":
        validate()
tally.write()
