"""How much slower a step is while the witness follows it: ratios of median step times on this machine.

    python benchmarks/witness.py --out benchmarks/results/witness.json

Each shipped workload that needs no data runs as an own run on one process, in alternating order with and without
DDP_LADDER_WITNESS=1. The result of a workload is the median ratio of the pairs, with the least and the largest one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import pandas as pd
import torch

ROOT = Path(__file__).parents[1]
INSTRUMENT = ROOT / "workflow/scripts/instrument.py"
WARMUP = 5
WORKLOADS = {
    "mlp": "mlp.py --samples 4096 --epochs 1",
    "gpt": "gpt.py --samples 640 --epochs 1",
    "resnet18": "imagenet.py --synthetic 128 --model resnet18 --image-size 64 --batch-size 8 --epochs 1",
}


def median_step_s(words: list[str], is_followed: bool) -> float:
    """Run a workload, and return the median time of its steps after the first ones."""
    with tempfile.TemporaryDirectory() as directory:
        env = {**os.environ, "DDP_LADDER_DIRECTORY": f"{directory}/own", "OMP_NUM_THREADS": "1"}
        env |= {"DDP_LADDER_WITNESS": "1"} if is_followed else {}
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        script = ROOT / "workflow/workloads" / words[0]
        subprocess.run([*launcher, INSTRUMENT, script, *words[1:]], cwd=directory, env=env, check=True)
        steps = pd.read_csv(f"{directory}/own/ranks/rank0.csv")
        return float(steps["step_time_s"][WARMUP:].median())


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = {}
    for name, line in WORKLOADS.items():
        ratios, plain_s = [], []
        for pair in range(arguments.pairs):
            seconds = {kind: median_step_s(line.split(), kind) for kind in ((False, True), (True, False))[pair % 2]}
            ratios.append(seconds[True] / seconds[False])
            plain_s.append(seconds[False])
            print(f"{name}: pair {pair + 1} of {arguments.pairs}: {ratios[-1]:.2f} times", flush=True)
        results[name] = {
            "ratio": round(statistics.median(ratios), 2),
            "least": round(min(ratios), 2),
            "largest": round(max(ratios), 2),
            "step_without_ms": round(1e3 * statistics.median(plain_s), 2),
        }
    machine = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__, "date": str(date.today())}
    arguments.out.write_text(json.dumps({**machine, "pairs": arguments.pairs, "workloads": results}, indent=2) + "\n")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
