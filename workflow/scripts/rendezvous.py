"""Print the rendezvous endpoint of a run: an address of this node and free ports of it.

A scale's job in an allocation starts this on the run's first node, once per interface.
"""

from __future__ import annotations

import itertools
import json
import sys
from argparse import Namespace

from ddp_ladder.common.command import command, option
from ddp_ladder.node.launch import address_towards, free_ports


@command(
    "rendezvous.py --interface '\"auto\"' --towards node2 --key 42",
    option("--interface", type=json.loads, required=True, help="network.interface, as JSON"),
    option("--towards", required=True, help="another node of the run; 127.0.0.1 if there is none"),
    option("--key", required=True, help="different for different jobs"),
    option("--ports", type=int, default=64, help="how many ports"),
)
def main(arguments: Namespace) -> int:
    """Print {"host": ..., "ports": [...]} on one line."""
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
