"""Print the rendezvous endpoint of a run: an address of this node and free ports of it.

A scale's job in an allocation starts this on the run's first node, once per interface.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence

from ddp_ladder.common.command import parser_of
from ddp_ladder.node.network import address_towards, free_ports


def main(argv: Sequence[str] | None = None) -> int:
    """Print {"host": ..., "ports": [...]} on one line."""
    parser = parser_of(__doc__, "rendezvous.py --interface '\"auto\"' --towards node2 --key 42")
    parser.add_argument("--interface", type=json.loads, required=True, help="network.interface, as JSON")
    parser.add_argument("--towards", required=True, help="another node of the run; 127.0.0.1 if there is none")
    parser.add_argument("--key", required=True, help="different for different jobs")
    parser.add_argument("--ports", type=int, default=64, help="how many ports")
    arguments = parser.parse_args(argv)
    try:
        host = address_towards(arguments.interface, arguments.towards)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    ports = list(itertools.islice(free_ports(arguments.key), arguments.ports))
    print(json.dumps({"host": host, "ports": ports}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
