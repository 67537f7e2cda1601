"""Optimizers: fused, closures that are called several times, one for each layer."""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

KIND = sys.argv[1]
loader = DataLoader(torch.randn(128, 4), batch_size=8)
layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
model = together(layers)
tally = Tally()


def make():
    parameters = model.parameters()
    if KIND == "lbfgs":
        return [torch.optim.LBFGS(parameters, lr=0.1, max_iter=4)]
    if KIND == "per_layer":
        return [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in layers]
    return [torch.optim.AdamW(parameters, **{KIND: True})]


optimizers = make()
tally.start()
for x in loader:

    def closure(x=x):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    think(0.006)
    tally.seen(len(x))
    if KIND == "lbfgs":
        optimizers[0].step(closure)
    else:
        closure()
        for optimizer in optimizers:
            optimizer.step()
    tally.step()
tally.write()
