"""usage: preflight_probe.py

Run one rank of the preflight: join the process group as the training will, and test the device and all-reduces.

The scale's job starts it in place of the training, with the same launcher, software and environment; DDP_LADDER_RUN
names its run.json. What it finds is in ranks/rank<k>.json beside that.
Needs only torch and the standard library (Python 3.9 or newer, torch 2.4 or newer).

example (the agent does this for you):
  DDP_LADDER_RUN=$PWD/results/preflight/1x2/run.json torchrun --nproc-per-node=2 preflight_probe.py
"""

from __future__ import annotations

import os
import sys

# Under `python -P` or `-I` the directory of this file is not on the path.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ddp_ladder_probe import probe

sys.path.pop(0)

if __name__ == "__main__":
    if len(sys.argv) > 1 or "DDP_LADDER_RUN" not in os.environ:
        print(__doc__, end="", file=sys.stdout if sys.argv[1:] == ["--help"] else sys.stderr)
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    probe.main(os.environ)
