"""The time of `snakemake stage2 --dry-run` at this commit relative to an earlier one: a ratio within one run.

    python benchmarks/dry_run.py 08a8c13                 # against that commit
    python benchmarks/dry_run.py 08a8c13 --pairs 20 --out benchmarks/results/dry_run

Both commits are checked out next to each other and started in turns, so that a drift of the machine affects both. The
result is the median of the pairs' ratios, of processor time and of wall time, with the smallest and the largest.
--out writes OUT.json. Uncommitted changes are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "snakemake", "stage2", "--dry-run"]


def check_out(commit: str, directory: Path) -> Path:
    """Return a clone of this repository at a commit."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(directory)], check=True)
    subprocess.run(["git", "-C", str(directory), "checkout", "--quiet", "--detach", commit], check=True)
    return directory


def dry_run(checkout: Path) -> tuple[float, float]:
    """Return processor time and wall time of one dry run, in seconds."""
    process = subprocess.Popen(COMMAND, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.perf_counter()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"`{' '.join(COMMAND)}` failed in {checkout}: wait status {status}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def summary(ratios: list[float]) -> dict[str, float]:
    """Return the median of the pairs' ratios, with the smallest and the largest."""
    return {"median": statistics.median(ratios), "smallest": min(ratios), "largest": max(ratios)}


def main() -> None:
    """Run the pairs, print the ratios, and write them to --out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--pairs", type=int, default=11, help="number of pairs of dry runs (default: 11)")
    parser.add_argument("--out", type=Path, help="write OUT.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        earlier = check_out(options.commit, Path(scratch, "earlier"))
        now = check_out("HEAD", Path(scratch, "now"))
        dry_run(earlier), dry_run(now)  # compile the modules
        processor: list[float] = []
        wall: list[float] = []
        for number in range(options.pairs):
            # In turns also within the pairs: neither is always the second.
            order = (earlier, now) if number % 2 else (now, earlier)
            seconds = {checkout: dry_run(checkout) for checkout in order}
            processor.append(seconds[now][0] / seconds[earlier][0])
            wall.append(seconds[now][1] / seconds[earlier][1])
            print(f"pair {number + 1} of {options.pairs}: {processor[-1]:.2f} of the processor time", flush=True)
    result = {
        "earlier": options.commit,
        "pairs": options.pairs,
        "processor_time_ratio": summary(processor),
        "wall_time_ratio": summary(wall),
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"written: {options.out.with_suffix('.json')}")


if __name__ == "__main__":
    main()
