"""autocast and a GradScaler that skips steps: those batches take time, and no step trains on them."""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

loader = DataLoader(torch.randn(200, 4), batch_size=8)
model = together(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, **{sys.argv[1]: True})
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
tally = Tally()
tally.start()
for index, x in enumerate(loader):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    if index in (3, 9, 10):
        loss = loss * float("inf")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    think()
    tally.seen(len(x))
    before = [each.detach().clone() for each in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    if not all(map(torch.equal, before, model.parameters())):
        tally.step()
    else:
        tally.pending = 0
tally.write()
