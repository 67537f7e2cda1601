"""End a program under a Python that cannot run it, with one message instead of an ImportError; and import numpy.

Users start programs with the Python of the system, or Snakemake from a module of their centre. Such a program imports
this before all else, so it is written for an old Python without packages.
"""

import os
import sys
from importlib.util import find_spec

OLDEST_PYTHON = (3, 11)
# What workflow/requirements.txt lists and the ladder imports without a condition.
PACKAGES = "jinja2 matplotlib numpy packaging pandas psutil pydantic rich snakemake yaml".split()
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", ".."))
FILE = os.path.join(ROOT, "workflow", "requirements.txt")

missing = [name for name in PACKAGES if find_spec(name) is None]
if sys.version_info < OLDEST_PYTHON or missing:
    lacks = "lacks {} and cannot".format(", ".join(missing)) if missing else "cannot"
    steps = ["if this Python is new enough and yours to change: " + sys.executable + " -m pip install -r " + FILE]
    if os.path.exists(os.path.join(ROOT, "Makefile")):  # a copy of the workflow in another project has none
        steps.insert(0, "cd " + ROOT + " && make setup && source .venv/bin/activate")
    sys.exit(
        "{} (Python {}.{}) {} run ddp-ladder, which needs Python {}.{} or newer and the packages of {}\n"
        "next: {}".format(
            sys.executable, *sys.version_info[:2], lacks, *OLDEST_PYTHON, FILE, "\n      or, ".join(steps)
        )
    )

# numpy without threads: its BLAS would start one for each core of a login node, and each waits busily at first. The
# environment is left as it was: a training may want these threads.
THREADS = "OPENBLAS_NUM_THREADS"
before = os.environ.get(THREADS)
os.environ.setdefault(THREADS, "1")
import numpy  # noqa: E402, F401

if before is None:
    del os.environ[THREADS]
