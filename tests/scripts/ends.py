"""A script that trains a little, counts its samples, and then ends as its argument says."""

import os
import sys

import torch
from loop import train
from torch.utils.data import DataLoader

HOW = sys.argv[1]
train([DataLoader(torch.randn(80, 4), batch_size=4)])
print("trained", flush=True)
if HOW == "exit":
    sys.exit(0)
if HOW == "hard_exit_3":
    os._exit(3)
if HOW == "raise" and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    raise ValueError("the last rank's own trouble")
if HOW == "fork":
    child = os.fork()
    if child == 0:
        os._exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
