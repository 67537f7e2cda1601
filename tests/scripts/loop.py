"""The training loop of the scripts that differ in their loaders alone."""

import torch
from ranks import together
from tally import Tally, think


def train(epochs, count=len, inputs=lambda batch: batch):
    """Train on the batches of each epoch; ``count`` and ``inputs`` of a batch are its samples and the model's input."""
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    tally = Tally()
    for batches in epochs:
        tally.start()
        for batch in batches:
            optimizer.zero_grad()
            model(inputs(batch)).mean().backward()
            think()
            tally.seen(count(batch))
            optimizer.step()
            tally.step()
        tally.leave_epoch()
    tally.write()
