"""autocast and a GradScaler that skips steps: those batches take time, and no step trains on them."""

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

loader = DataLoader(torch.randn(200, 4), batch_size=8)
model = together(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
tally = Tally()
steps = []
optimizer.register_step_post_hook(lambda *_: steps.append(1))
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
    before = len(steps)
    scaler.step(optimizer)
    scaler.update()
    if len(steps) > before:
        tally.step()
    else:
        tally.pending = 0
tally.write()
