"""Inject causes of lost time into real torchrun runs on this machine, and write what the attribution tells of them.

    python benchmarks/attribution.py --out benchmarks/results/attribution.md

The steps are sleeps, so that two cores are enough for four ranks; nodes are agents on this machine. What is told of the
same scale without a cause is subtracted. A cause is told right if its time is within 20 % (or 2 ms) and its kind is
right, and no other cause has more than 20 % of the injected time.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests")]

from injected_causes import CASES, Bench, Told  # noqa: E402

CAUSES = ("data", "imbalance", "computation", "communication", "rest")


def main(argv: Sequence[str] | None = None) -> int:
    """Run every case and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="causes (default: all)")
    parser.add_argument("--repeats", type=int, default=2, help="of each run (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="keep the runs below this directory")
    parser.add_argument("--out", type=Path, help="also write the table here")
    options = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options.results or Path(temporary), options.repeats)
        for injected in CASES:
            if options.only and injected.cause not in options.only:
                continue
            told = bench.told(injected)
            rows.append(told)
            print(_row(told), flush=True)
    wrong = sum(bool(told.wrong) for told in rows)
    causes = [told for told in rows if told.injected.cause != "none"]
    head = [
        "# Causes of lost time: injected and told",
        "",
        f"`python benchmarks/attribution.py --repeats {options.repeats}`, {date.today().isoformat()}, "
        f"{os.cpu_count()} cores, {platform.system()}: {len(causes) - wrong} of {len(causes)} right.",
        "Milliseconds of each step, without what is told of the same scale without a cause (first rows).",
        "",
        f"| cause | scale | injected | {' | '.join(CAUSES)} | kind of imbalance | verdict |",
        f"| --- | --- | --- |{' ---: |' * len(CAUSES)} --- | --- |",
    ]
    text = "\n".join([*head, *map(_row, rows), ""])
    if options.out:
        options.out.write_text(text)
    return 1 if wrong else 0


def _row(told: Told) -> str:
    injected = ", ".join(f"{ms:.1f} {cause}" for cause, ms in told.wanted_ms.items()) or "nothing"
    parts = " | ".join(f"{told.ms.get(cause, 0.0):.1f}" for cause in CAUSES)
    kind = told.point.step.imbalance_kind if told.point.step and "imbalance" in told.injected.ms else None
    cells = [told.injected.cause, told.injected.scale, injected, parts, kind or "", told.wrong or "right"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
