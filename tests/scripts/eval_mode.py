"""Eval mode in every step, as a part of the training: adversarial examples (autograd.grad alone), or pseudo-labels for
a batch that is drawn meanwhile; and validations.
"""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

KIND = sys.argv[1]
data = torch.randn(160, 4)
loader, val = DataLoader(data, batch_size=8), DataLoader(data, batch_size=40)
unlabelled = iter(DataLoader(torch.randn(400, 4), batch_size=8))
layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
model = together(layers)
optimizer = torch.optim.AdamW(model.parameters())
tally = Tally()


def in_eval_mode(x):
    """Return what is made of a batch; think() stands for an attack, a teacher or a generation."""
    model.eval()
    if KIND == "adversarial":
        x = x.clone().requires_grad_()
        x = (x + torch.autograd.grad(layers(x).square().sum(), x)[0].sign()).detach()
        think(0.012)
    else:
        with torch.no_grad():
            layers(next(unlabelled))
            think(0.012)
    model.train()
    return x


def validate(batches):
    """Validate, in a time that belongs to no step."""
    model.eval()
    with torch.no_grad():
        for x in batches:
            layers(x)
            think(0.03)
    model.train()


for _ in range(2):
    tally.start()
    for index, x in enumerate(loader):
        x = in_eval_mode(x)
        tally.seen(len(x))
        model(x).square().mean().backward()
        think(0.004)
        optimizer.step()
        optimizer.zero_grad()
        tally.step()
        if index % 8 == 3:
            tally.stop()
            validate(val)
            tally.start()
    tally.leave_epoch()
    validate([data] * 3 if KIND == "adversarial" else val)
tally.write()
