"""Run one part of gpu_day.py by hand:

python benchmarks/gpu_day_part.py card --device cuda --work /tmp/card --out /tmp --figures /tmp/card.json
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow" / "scripts"), str(ROOT / "workflow" / "workloads")]

from ddp_ladder.common.process import die_with_parent  # noqa: E402
from gpu_day_parts.figures import Figures, Setting  # noqa: E402

MODULES = {
    "packages": "packages",
    "card": "card",
    "two_ranks": "two_ranks",
    "loops": "loops",
    "gpu_tests": "gpu_tests",
    "monitor": "known_load",
    "ladder": "ladder",
    "cifar": "cifar_pair",
    "imagenet": "imagenet_pair",
    "overhead": "overhead",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the part, and write its figures to the file --figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=MODULES)
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--work", type=Path, required=True, help="directory to work in")
    parser.add_argument("--out", type=Path, required=True, help="directory for files that are kept")
    parser.add_argument("--figures", type=Path, required=True, help="JSON file for the results")
    parser.add_argument("--wheels", type=Path, help="of the part packages: folder of wheels")
    options = parser.parse_args(argv)
    die_with_parent(signal.SIGTERM)
    if options.device == "cpu":
        # One thread: on a busy machine, the threads of such a small training mostly wait for each other.
        os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    setting = Setting(options.device, options.work.resolve(), options.out.resolve())
    measure = importlib.import_module(f"gpu_day_parts.{MODULES[options.part]}").measure
    if options.part == "packages":
        measure = functools.partial(measure, wheels=options.wheels, environment=setting.work / "venv")
    measure(setting, Figures(options.figures, judge=setting.on_gpu))
    return 0


if __name__ == "__main__":
    sys.exit(main())
