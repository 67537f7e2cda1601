"""Time and memory of the report of a large ladder: 10,000 runs, 20 variants x 2 modes x 25 scales x 10 repeats.

    python benchmarks/report_10000_records.py --out benchmarks/results/report_10000_records.json
    python benchmarks/report_10000_records.py --variants 2 --repeats 1    # a small one: 100 runs

The runs are those of tests/make_runs.py: 60 steps on 1 to 10 ranks each, with raw files, with which the report compares
every record. The results directory takes 2 GB while it exists.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests")]

from make_runs import write_ladder  # noqa: E402

SCALES = 25
LOSS_PER_GPU = 0.01


def scales(count: int) -> list[str]:
    """Return the smallest scales, by their number of GPUs: 1x1, 1x2, 2x1, 1x3, ..."""
    shapes = sorted((n * g, n, g) for n in range(1, count + 1) for g in range(1, count + 1))
    return [f"{nodes}x{gpus}" for _, nodes, gpus in shapes[:count]]


def write_results(results: Path, variants: int, repeats: int) -> int:
    """Write a ladder in which every run went well; return the number of runs."""
    names = scales(SCALES)
    sizes = {name: int(name.split("x")[0]) * int(name.split("x")[1]) for name in names}
    with mock.patch("os.fsync"):  # a million files
        plan = write_ladder(
            results,
            scales=names,
            repeats=repeats,
            variants=["default", *(f"v{k}" for k in range(1, variants))],
            modes=["weak", "strong"],
            rates={name: 1000 * size * (1 - LOSS_PER_GPU * size) for name, size in sizes.items()},
        )
    return len(plan.runs)


def measure(results: Path) -> dict[str, float]:
    """Write the report in a process of its own; return its time and memory, and the size of its page."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, str(ROOT / "workflow/scripts/report.py"), "--results", str(results)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "passed_s": round(time.monotonic() - begun, 1),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_memory_mb": round(after.ru_maxrss * 1024 / 1e6),
        "page_mb": round((results / "report/index.html").stat().st_size / 1e6, 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures, and write them to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--results", type=Path, help="where an earlier start of this program wrote its runs")
    parser.add_argument("--keep", type=Path, help="write the runs there, and keep them")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args(argv)
    runs = arguments.variants * 2 * SCALES * arguments.repeats
    with tempfile.TemporaryDirectory() as directory:
        results = arguments.results or arguments.keep or Path(directory) / "results"
        if arguments.results is None:
            runs = write_results(results, arguments.variants, arguments.repeats)
        found = {"runs": runs, "cores": len(os.sched_getaffinity(0)), **measure(results)}
    text = json.dumps({"machine": platform.platform(), "python": platform.python_version(), **found}, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
