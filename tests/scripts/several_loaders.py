"""Two loaders: drawn from together (the shorter one starts again) or alternately."""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

turns = sys.argv[1] == "turns"
labelled = DataLoader(torch.randn(24, 4), batch_size=4, shuffle=True)
unlabelled = DataLoader(torch.randn(140, 4), batch_size=7, num_workers=int(sys.argv[2]))
model = together(torch.nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tally = Tally()


def endless(loader):
    while True:
        yield from loader


def step(*batches):
    for batch in batches:
        model(batch).square().mean().backward()
        tally.seen(len(batch))
    think()
    optimizer.step()
    optimizer.zero_grad()
    tally.step()


tally.start()
if not turns:
    for many, few in zip(unlabelled, endless(labelled), strict=False):
        step(few, many)
else:
    several = [endless(labelled), endless(unlabelled)]
    for index in range(20):
        step(next(several[index % 2]))
tally.write()
