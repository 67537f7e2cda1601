"""A script that trains a little, counts its samples, and then ends as its argument says."""

import os
import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader

HOW = sys.argv[1]
model = together(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tally = Tally()
tally.start()
for x in DataLoader(torch.randn(80, 4), batch_size=4):
    model(x).mean().backward()
    think()
    tally.seen(len(x))
    optimizer.step()
    tally.step()
tally.write()
print("trained", flush=True)
if HOW == "exit":
    sys.exit(0)
if HOW == "hard_exit":
    print("never flushed", end="")
    os._exit(0)
if HOW == "hard_exit_3":
    os._exit(3)
if HOW == "raise" and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    raise ValueError("the last rank's own trouble")
if HOW == "fork":
    child = os.fork()
    if child == 0:
        os._exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
