"""torch.compile of the model, the optimizer's step, the whole step or the loop; prints whose code was compiled."""

import os
import sys

import torch
import torch._inductor.config
from ranks import together
from tally import Tally, think
from torch._dynamo.utils import get_compilation_metrics
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


def compiled(what, function):
    return torch.compile(function, backend=BACKEND) if what == WHAT else function


model = together(Model())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
forward = compiled("model", model)
tally = Tally()


def train_step(x):
    optimizer.zero_grad()
    forward(x).square().mean().backward()
    step_optimizer()


def train(loader):
    model.train()
    for x in loader:
        look(x)
        train_step(x)
        count()
    model.eval()


@torch.compiler.disable
def look(x):
    think()
    tally.seen(len(x))


@torch.compiler.disable
def count():
    tally.step()


step_optimizer = compiled("optimizer", lambda: optimizer.step())
train_step = compiled("step", train_step)
tally.start()
compiled("loop", train)(DataLoader(torch.randn(92, 4), batch_size=8))  # the last batch has another shape
tally.write()
names = [frame.co_filename or "<none>" for frame in get_compilation_metrics()]
print("compiled from:", *sorted({os.path.basename(name) for name in names if not name.startswith("<")}))
