"""Say what the ladder has found so far: the table of scales, the verdict of the gates, and where everything is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.command import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main())
