"""Batches that are drawn and not trained, and what is drawn in unusual ways; the tally knows which steps have which.

behind: a batch in seven is skipped after its forward pass. thrown: its gradients are discarded. no_grad: every fifth
batch is drawn from the training's iterator to evaluate it. aside: in each fourth step a batch of another iterator is
evaluated, with gradients on. breaks: an early break draws one batch too many.
"""

import itertools
import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, TensorDataset

KIND = sys.argv[1]
data = TensorDataset(torch.randn(124, 4))
loader, val = DataLoader(data, batch_size=4, shuffle=True), iter(DataLoader(data, batch_size=2))
model = together(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
tally = Tally()


def train(index, x):
    """Train on a batch, or leave it out as the kind says."""
    optimizer.zero_grad()
    if KIND == "behind" and index % 7 == 3:
        model(x)
        return
    if KIND == "no_grad" and index % 5 == 4:
        with torch.no_grad():
            model.module(x) if hasattr(model, "module") else model(x)
        return
    if KIND == "aside" and index % 4 == 3:
        (model.module if hasattr(model, "module") else model)(next(val)[0])
    model(x).square().mean().backward()
    think(0.004)
    if KIND == "thrown" and index % 7 == 3:
        optimizer.zero_grad()
        return
    tally.seen(len(x))
    optimizer.step()
    tally.step()


def drawn_without_gradients():
    """Draw every fifth batch with gradients off, as a function with such a decorator does."""
    iterator = iter(loader)
    for index in itertools.count():
        with torch.set_grad_enabled(index % 5 != 4):
            drawn = next(iterator, None)
        if drawn is None:
            return
        yield drawn[0]


for _ in range(3):
    tally.start()
    for index, x in enumerate(drawn_without_gradients() if KIND == "no_grad" else (x for (x,) in loader)):
        if KIND == "breaks" and index >= 20:
            break
        train(index, x)
    tally.leave_epoch()
tally.write()
