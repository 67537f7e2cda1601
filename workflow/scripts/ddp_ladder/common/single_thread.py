"""Import numpy without threads: its BLAS would start one for each core of a login node, and each waits busily at first.

The environment is left as it was: a training may want these threads.
"""

import os

NAME = "OPENBLAS_NUM_THREADS"

before = os.environ.get(NAME)
os.environ.setdefault(NAME, "1")
import numpy  # noqa: E402, F401

if before is None:
    del os.environ[NAME]
