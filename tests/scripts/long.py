"""A run that is longer than what its log keeps, of which that is set here to little; with validations."""

import torch
from ddp_ladder_instrument import log
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

log.WHOLE_STEPS = 40
loader = DataLoader(torch.randn(74, 4), batch_size=2)
model = together(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
tally = Tally()
for _ in range(2):
    tally.start()
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        think(0.004)
        tally.seen(len(x))
        optimizer.step()
        tally.step()
    tally.leave_epoch()
    model.eval()
    think()
    model.train()
tally.write()
