"""Training by hand, without an optimizer of torch."""

import torch
from torch.utils.data import DataLoader

weight = torch.zeros(4, requires_grad=True)
for x in DataLoader(torch.randn(40, 4), batch_size=4):
    (x @ weight).square().mean().backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
        weight.grad = None
print("trained without an optimizer")
