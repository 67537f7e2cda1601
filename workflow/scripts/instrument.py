"""Run a PyTorch training script unmodified and measure it.

The script behaves as under plain python: same arguments, output, exit code and traceback. This
process also records its steps, samples, waits and identity in the run's directory.

Needs only torch and the standard library (Python 3.9 or newer, torch 2.4 or newer).
"""

from __future__ import annotations

import os
import sys
import time

STARTED_AT_S = time.time()
HERE = os.path.dirname(os.path.abspath(__file__))

# Under `python -P` or `-I` the directory of this file is not on the path.
sys.path.insert(0, HERE)

from ddp_ladder_instrument import entry  # noqa: E402

sys.path.pop(0)

if __name__ == "__main__":
    entry.main(sys.argv[1:], started_at_s=STARTED_AT_S, own_directory=HERE)
