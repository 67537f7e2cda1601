"""torch.compile of the model, of the optimizer's step, or of the whole step; says which files' code that compiled."""

import os
import sys

import torch
import torch._inductor.config
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

WHAT, BACKEND = sys.argv[1:3]
if BACKEND == "inductor":  # which else spends ten seconds on trials of vector instructions
    torch._inductor.config.cpp.vec_isa_ok = False


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


loader = DataLoader(torch.randn(96, 4), batch_size=8)
model = together(Model())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
forward = torch.compile(model, backend=BACKEND) if WHAT == "model" else model


def train_step(x):
    optimizer.zero_grad()
    forward(x).square().mean().backward()
    optimizer.step()


def step_optimizer():
    optimizer.step()


if WHAT == "optimizer":
    step_optimizer = torch.compile(step_optimizer, backend=BACKEND)
if WHAT == "step":
    train_step = torch.compile(train_step, backend=BACKEND)
tally = Tally()
tally.start()
for x in loader:
    think()
    tally.seen(len(x))
    if WHAT == "optimizer":
        forward(x).square().mean().backward()
        step_optimizer()
        optimizer.zero_grad()
    else:
        train_step(x)
    tally.step()
tally.write()
from torch._dynamo.utils import get_compilation_metrics  # noqa: E402

files = {os.path.basename(frame.co_filename) for frame in get_compilation_metrics() if frame.co_filename}
print("compiled from:", *sorted(files))
