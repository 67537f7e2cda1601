"""Write one file with all that a reviewer, a support desk or a repository of data needs of a ladder.

It has settings, plan, records, gates, report, job scripts, logs, accounting, preflight and node facts, without secrets
and without the names of users, homes, accounts, login hosts and e-mail addresses. Its README.md says what is left out.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.archive.archive import Names, archive_name, make_archive
from ddp_ladder.common.command import RESULTS, command, option
from ddp_ladder.common.files import write_atomically
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.load import Sources, add_options


@command(
    "archive.py --results results",
    RESULTS,
    option("--out", type=Path, help="default: archive-<site>-<date>.zip in the results"),
    option("--warning", default="", help="what the settings differ in from those of the runs"),
    add_options,
)
def main(arguments: Namespace) -> int:
    """Write the archive; print where it is."""
    settings, results = Sources.of(arguments).load(), arguments.results
    names = Names.of_this_machine(
        results if results.exists() else Path(), accounts(settings), settings.experiment.workload.secrets
    )
    content = make_archive(
        results, settings, names, date.today(), arguments.warning, say=lambda line: print(line, flush=True)
    )
    out = arguments.out or results / archive_name(names.out_of(settings.site.site), date.today())
    write_atomically(out, content)
    print(f"written  {out} ({len(content) / 1e6:,.1f} MB)", flush=True)
    print("next     read its README.md: what is in it, what was replaced, what to look through before you publish")
    return 0


def accounts(settings: Settings) -> Iterator[str]:
    """Yield the accounts that jobs are charged to."""
    stages = (stage.slurm for stage in settings.experiment.ladder)
    for slurm in (settings.site.slurm, *(settings.site.slurm.overridden(own) for own in stages)):
        if slurm.account:
            yield slurm.account


if __name__ == "__main__":
    sys.exit(main(None))
