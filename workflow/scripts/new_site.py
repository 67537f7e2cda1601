"""Write a draft of cluster.yaml from what Slurm says of this cluster. Replaces no file that someone has written."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.common.command import command, option
from ddp_ladder.common.formats import in_short
from ddp_ladder.live.doctor import read_cluster, write_draft
from ddp_ladder.settings.load import CLUSTER


@command(
    "new_site.py --out config/cluster.yaml",
    option("--out", type=Path, default=CLUSTER, metavar="FILE", help="default: %(default)s"),
)
def main(arguments: Namespace) -> int:
    """Write the draft; print where it is and how to use it."""
    cluster = read_cluster()
    file, is_new, kept = write_draft(cluster, arguments.out)
    for each in kept:
        print(f"kept as it is: {each} (to compare: diff {shlex.quote(str(each))} {shlex.quote(str(file))})")
    for partition in cluster.partitions[:1]:
        print(f"chosen: partition {partition.in_words}; {cluster.limits(partition.name)}")
        if len(partition.down) == sum(partition.shapes.values()):  # none of its nodes starts a job now
            print(f"warning: no node of it starts a job now: {in_short([*partition.down])} (`sinfo --list-reasons`)")
    print(f"written: {file}" if is_new else f"nothing to write: {file} is this draft already")
    named = "" if file == CLUSTER else f" --config cluster={shlex.quote(str(file))}"
    print('\nnext: confirm its values with "confirm:" in an editor,')
    print(f"and set the scales in config/config.yaml (stages), then\n    snakemake doctor{named}")
    if named:
        print(f"and name it in each start, or copy it over {CLUSTER} if you no longer need what is there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
