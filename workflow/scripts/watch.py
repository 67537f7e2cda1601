"""Show a ladder while it climbs: stages, gates, jobs, the progress of each run, and what its nodes do.

It reads the results directory and asks squeue for the ladder's jobs. It writes nothing and needs no permission to
write: it can be started on any node that sees the directory, also for a ladder that someone else has started. On a
terminal the picture is refreshed; q or Ctrl-C ends the view, and the ladder goes on. In a pipe, each change is a line.
The view ends when the ladder has ended.

Examples, in the checkout of a ladder, and for someone else's:

    python workflow/scripts/watch.py
    python workflow/scripts/watch.py --results /shared/someone/ddp-ladder/results --once
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401


def main(argv: Sequence[str] | None = None) -> int:
    """Show the ladder."""
    arguments = parse(argv)
    # Imported here, so that Ctrl-C ends the command without a traceback from the start on.
    from ddp_ladder.common.command import command
    from ddp_ladder.live.watch import results_directory, show_once, watch

    @command
    def run() -> int:
        results = arguments.results or results_directory()
        return show_once(results) if arguments.once else watch(results, arguments.every)

    return run()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--results", type=Path, metavar="DIR", help="the ladder's directory (default: `results` of config/config.yaml)")
    add("--every", type=seconds, default=2.0, metavar="SECONDS", help="read the files so often (default: %(default)g)")
    add("--once", action="store_true", help="print one picture and end")
    return parser.parse_args(argv)


def seconds(text: str) -> float:
    """Return a time between two looks. Raises ArgumentTypeError for one that would burden the file system."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: allowed are 0.5 to 3600 seconds")
    return value


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(0)
