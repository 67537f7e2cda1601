"""A loop that makes its batches itself, without a DataLoader; it estimates its loss from time to time.

groups: its optimizer steps once for each group of parameters.
"""

import sys

import torch
from ranks import together
from tally import Tally, think

data = torch.randn(4000, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
model = together(model)
optimizer = torch.optim.AdamW(model.parameters())
tally = Tally()


@torch.no_grad()
def estimate():
    model.eval()
    for _ in range(3):
        model(data[torch.randint(len(data), (16,))])
        think(0.01)
    model.train()


tally.start()
for index in range(25):
    if index % 10 == 5:
        tally.stop()
        estimate()
        tally.start()
    for _ in range(2):
        x = data[torch.randint(len(data), (16,))]
        model(x).square().mean().backward()
        tally.seen(len(x))
    think()
    for _ in optimizer.param_groups * (2 if "groups" in sys.argv else 1):
        optimizer.step()
    optimizer.zero_grad()
    tally.step()
tally.write()
