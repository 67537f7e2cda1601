"""Check this machine, the settings, the training software and Slurm before a run; change nothing.

Prints a list of pass, warn, FAIL and not checked, each with what to do. Exit code 1 when something fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.command import command
from ddp_ladder.doctor import PROFILE, examine, failed
from ddp_ladder.findings import listing
from ddp_ladder.snakemake_settings import CLUSTER, CONFIG, Sources


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the list."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python workflow/scripts/doctor.py --cluster config/sites/vega.yaml",
    )
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG, help="the experiment (default: %(default)s)")
    add("--cluster", type=Path, default=CLUSTER, help="the site (default: %(default)s)")
    add("--overrides", type=json.loads, default={}, metavar="JSON", help="""such as '{"repeats": 1}'""")
    add("--profile", type=Path, default=PROFILE, help="the profile for Slurm (default: %(default)s)")
    arguments = parser.parse_args(argv)
    sections = examine(Sources(arguments.config, arguments.cluster, arguments.overrides), arguments.profile)
    print(listing(sections))
    return 1 if failed(sections) else 0


if __name__ == "__main__":
    sys.exit(main())
