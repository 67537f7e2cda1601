"""Check this machine, the settings, the training software and Slurm before a run; change nothing.

Prints a list of pass, warn, FAIL and not checked, each with what to do. Exit code 1 when something fails.
"""

from __future__ import annotations

import sys
from argparse import Namespace

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.common.command import command
from ddp_ladder.live.doctor import examine, failed, listing
from ddp_ladder.settings.load import Sources, add_options


@command("doctor.py --cluster config/sites/vega.yaml", add_options)
def main(arguments: Namespace) -> int:
    """Print the list."""
    sections = examine(Sources.of(arguments))
    print(listing(sections))
    return 1 if failed(sections) else 0


if __name__ == "__main__":
    sys.exit(main())
