"""Show a ladder while it climbs: stages, gates, jobs, the progress of each run, and what its nodes do.

It reads the results directory and asks squeue for the ladder's jobs. It writes nothing and needs no permission to
write: it can be started on any node that sees the directory, also for a ladder that someone else has started. On a
terminal the picture is refreshed until the ladder has ended; Ctrl-C ends the view, and the ladder goes on. In a pipe,
or with --once, it is printed once.

Examples, in the checkout of a ladder, and for someone else's:

    python workflow/scripts/watch.py
    python workflow/scripts/watch.py --results /shared/someone/ddp-ladder/results --once
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.common.command import command, option
from ddp_ladder.live.screen import show_once, watch
from ddp_ladder.settings.load import read_sources

OF_CONFIG = "the ladder's directory (default: `results` of config/config.yaml)"


@command(
    "",
    option("--results", type=Path, metavar="DIR", help=OF_CONFIG),
    option("--once", action="store_true", help="print one picture and end"),
)
def main(arguments: Namespace) -> int:
    """Show the ladder."""
    results = arguments.results or Path(read_sources([], {}).load().experiment.results)
    (show_once if arguments.once or not sys.stdout.isatty() else watch)(results)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(0)
