"""Examine one node for the preflight: started by the scale's job once on every node, before any process group.

What it finds is in facts/ of the preflight's directory.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from ddp_ladder.common.command import node_parser
from ddp_ladder.common.files import NotWritten
from ddp_ladder.common.process import Interrupted, die_with_parent
from ddp_ladder.run.interruption import raise_on_signals
from ddp_ladder.run.preflight import examine_node


def main(argv: Sequence[str] | None = None) -> int:
    """Write the node's facts; EX_CANTCREAT if they cannot be written."""
    arguments = node_parser(__doc__, "preflight_node.py --run results/preflight/2x4 --node-rank 0").parse_args(argv)
    die_with_parent(signal.SIGTERM)
    raise_on_signals()
    try:
        examine_node(arguments.run, arguments.node_rank)
    except Interrupted as interrupted:
        return 128 + interrupted.signum
    except NotWritten as error:
        print(f"node {arguments.node_rank}: {error.filename}: {error.strerror}", file=sys.stderr)
        return os.EX_CANTCREAT
    return 0


if __name__ == "__main__":
    sys.exit(main())
