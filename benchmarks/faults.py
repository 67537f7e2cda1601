"""How soon the ladder names the cause of a fault: each fault in a climb of its own on a real Slurm of this machine.

    sudo .venv/bin/python benchmarks/faults.py                      # all faults, one after the other
    sudo .venv/bin/python benchmarks/faults.py --only SIGSTOP

Writes benchmarks/results/faults.md: the fault, the seconds from the event to the line that names its cause, whether it
is the injected one, what was left behind, and the closed gate's reason. The cluster is that of tests/slurm; the faults
are in tests/slurm/faults.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests"), str(ROOT / "tests/slurm")]

from faults import FAULTS, HANG, Fault, Told, tell  # noqa: E402

RESULT = ROOT / "benchmarks/results/faults.md"
HEADER = f"""# Faults, and how soon the ladder names them

Written by `benchmarks/faults.py` on {date.today()}: each fault in a climb of its own, one after the other, on a real
Slurm on one machine ({os.cpu_count()} cores, Python {platform.python_version()}). *Told after* is the time from the
event to the line of the climb that names the cause. A hang is named after `hang.at_least_s`, here
{HANG["at_least_s"]} s; a dead node after Slurm's `SlurmdTimeout`, here 12 s.

| fault | scale | told after, s | named | left behind | the closed gate's reason |
| --- | --- | ---: | --- | --- | --- |
"""


def row(fault: Fault, told: Told) -> str:
    """Return a row of the table."""
    said = told.why.replace("|", "\\|").replace("\n", " ")
    named = "yes" if re.search(fault.named, told.why) else "NO"
    cells = (fault.name, fault.scale, f"{told.after_s:.1f}", named, ", ".join(told.left) or "nothing", said)
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a cause was not named, or something was left behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a fault's name; the table is then printed, not written")
    arguments = parser.parse_args(argv)
    rows = []
    for fault in (each for each in FAULTS if arguments.only in each.name):
        rows.append(row(fault, tell(fault)))
        print(rows[-1], flush=True)
        if not arguments.only:
            RESULT.write_text(HEADER + "\n".join(rows) + "\n")
    if not arguments.only:
        print(f"written: {RESULT.relative_to(ROOT)}")
    return int(any("| NO |" in each or "| nothing |" not in each for each in rows))


if __name__ == "__main__":
    sys.exit(main())
