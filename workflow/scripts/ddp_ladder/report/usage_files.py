"""The pictures of the runs' usage as files, and inside the page: drawn one after the other, as each may be large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.report.svg import Drawing
from ddp_ladder.report.usage_runs import read_sampled_run
from ddp_ladder.report.usage_section import Picture, is_shown, run_picture, scales_picture

FOLDER = "usage"


@dataclass
class UsageFiles:
    """The pictures of a ladder. files: by their path below the report. shown: (picture, SVG element) of the page.

    others: files of runs that are not on the page. notes: samples that could not be used, and why.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    shown: list[tuple[Picture, str]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, picture: Picture) -> None:
        """Put a picture on the page and into its files."""
        drawing = Drawing(picture.figure)
        self.shown.append((picture, drawing.inline(picture.name, picture.title, picture.caption)))
        self.files[f"{FOLDER}/{picture.name}.svg"] = drawing.file()
        self.files[f"{FOLDER}/{picture.name}.png"] = drawing.png()

    def keep(self, picture: Picture) -> None:
        """Put a picture into a file only."""
        name = f"{FOLDER}/{picture.name}.svg"
        self.files[name] = Drawing(picture.figure).file()
        self.others.append(name)


def usage_files(results: Path, runs: Sequence[Record]) -> UsageFiles:
    """Draw the usage of all runs. runs: in the order of the tables."""
    made, directories = UsageFiles(), RunRecords(results)
    if across := scales_picture(runs):
        made.show(across)
    shown: list[Record] = []
    for record in runs:
        try:
            run = read_sampled_run(directories.directory(record.spec), record)
        except (OSError, ValueError) as error:
            made.notes.append(f"{record.spec.name}: no picture, as its files cannot be read: {error}")
            continue
        if run is None:
            continue
        picture = run_picture(run)
        if is_shown(record, shown):
            made.show(picture)
            shown.append(record)
        else:
            made.keep(picture)
    return made
